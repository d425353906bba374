"""How the verifier's log looks. For the command only: a library leaves logging as it is.

Records say which session they are about in `session` (hexadecimal) and name errors in `code`, both
given as `extra`. No record holds text or token ids; an exception's own words might, and are told
above no level but "debug".
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, TextIO

from draftwire.errors import DraftwireError

_FIELDS = ("session", "code")

_CHATTER = {
    "torchao": "Failed to load ",  # one of its libraries, which another processor needs
    "torchao.kernel.intmm": "Warning: Detected no triton",
    "torch.utils._pytree": "%s is an Enum subclass",  # torchao's own, as it is imported
}
"""What libraries warn of at every start, quantized or not: by logger, how the message begins.

Nothing follows from it for whoever serves: what can't be honoured is refused with an error.
"""


class _Formatter(logging.Formatter):
    def formatException(self, ei: Any) -> str:  # noqa: N802 (logging's name)
        """The trace, outermost exception last; without the words of those that aren't ours."""
        if logging.getLogger().isEnabledFor(logging.DEBUG):
            return super().formatException(ei)
        return "\n".join(reversed(list(_traces(ei[1]))))


class TextFormatter(_Formatter):
    """A line for people; session and code at its end."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        """The line, without what belongs to an exception."""
        line = super().formatMessage(record)
        return " ".join([line, *(f"{name}={value}" for name, value in _fields(record).items())])


class JsonFormatter(_Formatter):
    """One JSON object a line: time (UTC), level, logger, message; session, code and error."""

    def format(self, record: logging.LogRecord) -> str:
        """The object."""
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= _fields(record)
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(level: str, style: str, stream: TextIO | None = None) -> None:
    """Log from `level` up as "text" or "json", to stderr unless a stream is given.

    Chatter of libraries is left out above the level "debug".
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    leave_out_chatter()


def leave_out_chatter() -> None:
    """Keep what libraries warn of at every start from the log, above the level "debug"."""
    for name in _CHATTER:
        logging.getLogger(name).addFilter(_matters)


def _matters(record: logging.LogRecord) -> bool:
    chatter = str(record.msg).startswith(_CHATTER[record.name])
    return not chatter or logging.getLogger().isEnabledFor(logging.DEBUG)


def _traces(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        words = f": {error}" if isinstance(error, DraftwireError) else ""
        frames = "".join(traceback.format_tb(error.__traceback__))
        yield f"Traceback (most recent call last):\n{frames}{type(error).__qualname__}{words}"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _fields(record: logging.LogRecord) -> dict[str, str]:
    values = {name: getattr(record, name, None) for name in _FIELDS}
    return {name: value for name, value in values.items() if value is not None}
