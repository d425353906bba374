"""Every error Draftwire raises, and its status on the wire.

::

    DraftwireError
    ├── RequestError             the request can't be honoured; changing it helps
    │   ├── InvalidRequest         a value is out of range or malformed
    │   ├── UnsupportedParameter   a parameter, mode or feature is not served
    │   ├── PromptTooLong          prompt and room for output exceed the context
    │   ├── VocabularyMismatch     draft and target do not share a vocabulary
    │   ├── ModelNotFound          no such model here
    │   ├── Unauthenticated        no credentials, or none that hold
    │   ├── PermissionDenied       the session belongs to another key
    │   └── LinkNotSecure          TLS failed, or a secret would go in plaintext
    ├── ProtocolError            the peer broke a rule of the wire
    │   ├── ProtocolViolation      a frame out of order or out of place
    │   ├── ProtocolVersion        the peer speaks another version
    │   └── LimitExceeded          more than the limits in `opened` allow
    ├── SessionError             the session can't go on as it was
    │   ├── SessionGone            the verifier no longer holds it; open with the whole history
    │   ├── Superseded             a later attempt owns it
    │   └── ModelChanged           another target would go on with another text
    ├── Unavailable              the verifier can't serve now
    │   ├── ServerFull             no session or KV memory free
    │   ├── QuotaExceeded          the key has used up what it may for now
    │   ├── Draining               it is shutting down
    │   ├── SlowReader             verdicts were not read in time
    │   ├── LinkLost               the connection broke
    │   └── DeadlineExceeded       an answer did not come in time
    ├── ModelError               a model can't be used here
    │   ├── ModelLoadFailed        its files are missing or broken
    │   ├── CannotRollBack         its cache can't be rewound, which drafting needs
    │   └── MissingDependency      an extra is not installed
    └── InternalError            a fault of ours
"""

from __future__ import annotations

from typing import ClassVar

from draftwire.printable import printable

MOST_SAID = 2000
"""Characters of a peer's message, and of its remedy, that are passed on."""


class DraftwireError(Exception):
    """Base of all errors.

    `code` is stable and machine-readable; `status` names the gRPC status that carries it;
    `retryable` says whether the same request may succeed when sent again. `remedy` says what
    to do, in words for a person. `session_id` is the session's hexadecimal id, if there is one.
    """

    code: ClassVar[str] = "INTERNAL"
    status: ClassVar[str] = "INTERNAL"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, remedy: str = "", session_id: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.session_id = session_id

    def __str__(self) -> str:
        return f"{self.message} — {self.remedy}" if self.remedy else self.message


class RequestError(DraftwireError):
    """The request can't be honoured as it is."""

    code = "INVALID_REQUEST"
    status = "INVALID_ARGUMENT"


class InvalidRequest(RequestError):
    """A value is out of range or malformed."""


class UnsupportedParameter(RequestError):
    """A parameter, verification mode or feature that is not served here."""

    code = "UNSUPPORTED_PARAMETER"
    status = "UNIMPLEMENTED"


class PromptTooLong(RequestError):
    """Prompt and room for output exceed the target's context."""

    code = "PROMPT_TOO_LONG"


class VocabularyMismatch(RequestError):
    """Draft model and target do not share a vocabulary."""

    code = "VOCABULARY_MISMATCH"
    status = "FAILED_PRECONDITION"


class ModelNotFound(RequestError):
    """No model of that name is served here."""

    code = "MODEL_NOT_FOUND"
    status = "NOT_FOUND"


class Unauthenticated(RequestError):
    """No credentials came, or none that hold: unknown, expired or revoked."""

    code = "UNAUTHENTICATED"
    status = "UNAUTHENTICATED"


class PermissionDenied(RequestError):
    """The session belongs to another key."""

    code = "PERMISSION_DENIED"
    status = "PERMISSION_DENIED"


class LinkNotSecure(RequestError):
    """The connection would not be as secure as it must be: TLS failed, or is missing."""

    code = "LINK_NOT_SECURE"
    status = "FAILED_PRECONDITION"


class ProtocolError(DraftwireError):
    """The peer broke a rule of the wire."""

    code = "PROTOCOL_VIOLATION"
    status = "FAILED_PRECONDITION"


class ProtocolViolation(ProtocolError):
    """A frame out of order, out of place or malformed."""


class ProtocolVersion(ProtocolError):
    """The peer speaks another protocol version."""

    code = "PROTOCOL_VERSION"
    status = "UNIMPLEMENTED"


class LimitExceeded(ProtocolError):
    """More tokens or credit than `opened` allows."""

    code = "LIMIT_EXCEEDED"
    status = "RESOURCE_EXHAUSTED"


class SessionError(DraftwireError):
    """The session can't go on as it was."""

    code = "SESSION_GONE"
    status = "NOT_FOUND"


class SessionGone(SessionError):
    """The verifier does not hold this session or this history; open with the whole of it."""

    retryable = True


class Superseded(SessionError):
    """A later attempt owns the session."""

    code = "SUPERSEDED"
    status = "ABORTED"


class ModelChanged(SessionError):
    """The target is not the one the session began on."""

    code = "MODEL_CHANGED"
    status = "FAILED_PRECONDITION"


class Unavailable(DraftwireError):
    """The verifier can't serve now; the same request may succeed later or elsewhere."""

    code = "UNAVAILABLE"
    status = "UNAVAILABLE"
    retryable = True


class ServerFull(Unavailable):
    """No session or no KV memory is free."""

    code = "SERVER_FULL"
    status = "RESOURCE_EXHAUSTED"


class QuotaExceeded(Unavailable):
    """The key has used up what it may: sessions at once, or tokens for the moment."""

    code = "QUOTA_EXCEEDED"
    status = "RESOURCE_EXHAUSTED"


class Draining(Unavailable):
    """The verifier is shutting down and admits nothing new."""

    code = "DRAINING"


class SlowReader(Unavailable):
    """The client did not read its verdicts in time."""

    code = "SLOW_READER"
    status = "RESOURCE_EXHAUSTED"


class LinkLost(Unavailable):
    """The connection to the verifier broke or could not be made."""

    code = "LINK_LOST"


class DeadlineExceeded(Unavailable):
    """An answer did not come in time."""

    code = "DEADLINE_EXCEEDED"
    status = "DEADLINE_EXCEEDED"


class ModelError(DraftwireError):
    """A model can't be used here."""

    code = "MODEL_LOAD_FAILED"
    status = "FAILED_PRECONDITION"


class ModelLoadFailed(ModelError):
    """A model's files are missing, broken or of an unknown kind."""


class CannotRollBack(ModelError):
    """The model's cache can't be rewound, which speculative decoding needs."""

    code = "CANNOT_ROLL_BACK"


class MissingDependency(ModelError):
    """A package that this needs is not installed."""

    code = "MISSING_DEPENDENCY"


class InternalError(DraftwireError):
    """A fault of Draftwire's own."""


_CODED: tuple[type[DraftwireError], ...] = (
    InvalidRequest,
    UnsupportedParameter,
    PromptTooLong,
    VocabularyMismatch,
    ModelNotFound,
    Unauthenticated,
    PermissionDenied,
    LinkNotSecure,
    ProtocolViolation,
    ProtocolVersion,
    LimitExceeded,
    SessionGone,
    Superseded,
    ModelChanged,
    Unavailable,
    ServerFull,
    QuotaExceeded,
    Draining,
    SlowReader,
    LinkLost,
    DeadlineExceeded,
    ModelLoadFailed,
    CannotRollBack,
    MissingDependency,
    InternalError,
)

BY_CODE: dict[str, type[DraftwireError]] = {error.code: error for error in _CODED}
"""Error class of every code on the wire. Codes are unique."""

_BY_STATUS: dict[str, type[DraftwireError]] = {
    "INVALID_ARGUMENT": InvalidRequest,
    "UNIMPLEMENTED": UnsupportedParameter,
    "NOT_FOUND": ModelNotFound,
    "PERMISSION_DENIED": PermissionDenied,
    "UNAUTHENTICATED": Unauthenticated,
    "FAILED_PRECONDITION": ProtocolViolation,
    "RESOURCE_EXHAUSTED": ServerFull,
    "ABORTED": Superseded,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
}


def from_wire(
    status: str, code: str | None, message: str, remedy: str = "", session_id: str | None = None
) -> DraftwireError:
    """The error a peer reported.

    `code` decides where it is known; else the gRPC status name does, and a status that says
    nothing of a request (UNAVAILABLE, CANCELLED, UNKNOWN and the like; INTERNAL, which without a
    code is gRPC's own) is a lost link. The words go to people and logs: without control characters,
    and no longer than `MOST_SAID`.
    """
    kind = BY_CODE.get(code or "") or _BY_STATUS.get(status, LinkLost)
    message, remedy = (printable(words[:MOST_SAID]) for words in (message, remedy))
    return kind(message, remedy=remedy, session_id=session_id)
