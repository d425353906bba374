"""A model in memory that several drafters share."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

from draftwire.errors import InternalError


class SharedModel(ABC):
    """Memory that is freed when the model and every user of it are closed, in whatever order."""

    name: str

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 1
        self._closed = False

    def retain(self) -> None:
        """Keep the memory until a matching `release`."""
        with self._lock:
            if not self._users:
                raise self._is_closed()
            self._users += 1

    def release(self) -> None:
        """Undo one `retain`; the last frees the memory."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._free()

    def close(self) -> None:
        """Give up the model. May be called again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.release()

    @abstractmethod
    def _free(self) -> None:
        """Free the memory."""

    def _is_closed(self) -> InternalError:
        return InternalError(f"the model {self.name} is closed")
