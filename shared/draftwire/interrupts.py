"""Ctrl-C while a command's modules load. Imports next to nothing: it is there before they are."""

import os
import signal
from types import TracebackType


class QuietInterrupt:
    """Within, Ctrl-C ends the process at once with status 130 and without a word.

    Nothing is to be tidied up while modules load, and an exception there may come out of the midst
    of a library, which reports it, or swallows it. Where Ctrl-C is ignored, it stays so.
    """

    def __enter__(self) -> None:
        self._before = signal.getsignal(signal.SIGINT)
        if self._before is signal.default_int_handler:
            signal.signal(signal.SIGINT, lambda *_: os._exit(130))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        if self._before is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._before)
