"""Memory that passes have freed goes back to the system."""

from __future__ import annotations

import ctypes
import os

_M_MMAP_THRESHOLD = -3  # glibc's malloc.h
_THRESHOLD_BYTES = 8 << 20  # lower, and passes wait for fresh pages


def return_large_blocks() -> bool:
    """Let glibc map tensors of 8 MB and more one by one; whether it could be told to.

    It would else soon take all up to 32 MB from its heap, which passes of ever other sizes leave
    in pieces too small for the next, so that resident memory grows and grows. The environment's
    MALLOC_MMAP_THRESHOLD_ comes first. Other C libraries have no such setting.
    """
    if "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return False
    try:
        return bool(ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _THRESHOLD_BYTES))
    except (OSError, AttributeError):
        return False
