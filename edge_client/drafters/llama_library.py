"""llama.cpp's C interface: imported when first needed, its log sent to `logging`."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import signal
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

from draftwire.errors import MissingDependency

log = logging.getLogger("edge_client.llama")

# ggml's own levels. Its INFO concerns developers, and it warns of contexts that are merely short.
_ERROR, _CONTINUED = 4, 5
_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.INFO, _ERROR: logging.ERROR}

_lock = threading.Lock()
_library: Any = None
_callback: Any = None  # C holds a pointer to it: it lives as long as the process
_errors: deque[str] = deque(maxlen=4)


def llama() -> Any:
    """The module of llama.cpp's C functions (`llama_cpp.llama_cpp`), ready for use.

    The first call imports it and takes over llama.cpp's log, which is one for the process.
    Raises `MissingDependency` if llama-cpp-python is absent or can't be loaded.
    """
    global _library
    with _lock:
        if _library is None:
            _library = _import()
        return _library


def recent_errors() -> str:
    """What llama.cpp last reported as errors, oldest first, and forget it; empty for none."""
    with _lock:
        reported = "; ".join(_errors)
        _errors.clear()
    return reported


@contextlib.contextmanager
def signals_later() -> Iterator[None]:
    """Run Python's signal handlers when this is over, not within.

    They run in the main thread wherever it is, so in the log callback too, whose exceptions are
    dropped on their way through C: a Ctrl-C that came there would be lost.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    ours = [number for number, handler in kept.items() if callable(handler)]
    for number in ours:
        signal.signal(number, lambda which, _: came.append(which))
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, kept[number])
        for late in came:
            signal.raise_signal(late)


def _import() -> Any:
    global _callback
    try:
        from llama_cpp import llama_cpp
    except (ImportError, OSError, RuntimeError) as error:
        raise MissingDependency(
            f"llama-cpp-python, which runs GGUF models, can't be imported: {error}",
            remedy="pip install 'draftwire[edge]' (compiles llama.cpp: several minutes)",
        ) from error
    # Without a handler Python itself would print warnings to stderr.
    log.addHandler(logging.NullHandler())
    _callback = llama_cpp.llama_log_callback(_forwarder())
    llama_cpp.llama_log_set(_callback, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    return llama_cpp


def _forwarder() -> Any:
    """A log callback that joins llama.cpp's pieces to lines and logs each at its level."""
    pending: list[str] = []
    level = logging.DEBUG

    def forward(ggml_level: int, text: bytes, _user_data: Any) -> None:
        nonlocal level
        if ggml_level != _CONTINUED:
            level = _LEVELS.get(ggml_level, logging.DEBUG)
        piece = text.decode("utf-8", "replace")
        if ggml_level == _ERROR and piece.strip():
            _errors.append(piece.strip())
        pending.append(piece)
        if piece.endswith("\n"):
            line = "".join(pending).rstrip()
            pending.clear()
            if line:
                log.log(level, "%s", line)

    return forward
