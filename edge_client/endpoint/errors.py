"""Errors as clients of OpenAI's API expect them: a status and a JSON object that names a parameter.

What is wrong is said in the words of our own errors; here is only how it travels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from draftwire.errors import (
    DeadlineExceeded,
    DraftwireError,
    InternalError,
    InvalidRequest,
    ModelError,
    ModelNotFound,
    PromptTooLong,
    QuotaExceeded,
    ServerFull,
    Unavailable,
    UnsupportedParameter,
)

_KINDS: tuple[tuple[type[DraftwireError], int, str], ...] = (
    (ModelNotFound, 404, "invalid_request_error"),
    (InvalidRequest, 400, "invalid_request_error"),
    (UnsupportedParameter, 400, "invalid_request_error"),
    (PromptTooLong, 400, "invalid_request_error"),
    (ServerFull, 429, "rate_limit_error"),
    (QuotaExceeded, 429, "rate_limit_error"),
    (DeadlineExceeded, 504, "timeout_error"),
    (Unavailable, 503, "service_unavailable_error"),
    (ModelError, 500, "server_error"),
    (InternalError, 500, "server_error"),
    # The rest is between this device and its verifier: the caller can't mend it.
    (DraftwireError, 502, "upstream_error"),
)

_CODES = {PromptTooLong.code: "context_length_exceeded"}
"""Codes that clients know by another name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiError:
    """What the caller gets: an HTTP status, and `error` of the body."""

    status: int
    type: str
    code: str
    message: str
    param: str | None = None

    @property
    def body(self) -> dict[str, object]:
        """The response's JSON object."""
        fields = {"message": self.message, "type": self.type, "param": self.param}
        return {"error": fields | {"code": self.code}}


class Refused(Exception):
    """A request that gets `error` for an answer."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


def described(error: DraftwireError, param: str | None = None) -> ApiError:
    """An error of ours as one of OpenAI's."""
    status, kind = next(
        (status, kind) for known, status, kind in _KINDS if isinstance(error, known)
    )
    if param is None and isinstance(error, ModelNotFound):
        param = "model"
    code = _CODES.get(error.code, error.code.lower())
    return ApiError(status=status, type=kind, code=code, message=str(error), param=param)


def invalid(message: str, param: str | None, *, remedy: str = "") -> Refused:
    """A value that is malformed or out of range."""
    return Refused(described(InvalidRequest(message, remedy=remedy), param))


def unsupported(param: str, message: str = "", *, remedy: str = "leave it out") -> Refused:
    """A parameter, or a value of it, that isn't served here."""
    error = UnsupportedParameter(message or f"{param} is not supported", remedy=remedy)
    return Refused(described(error, param))


def plain(status: int, message: str, code: str) -> Refused:
    """A request that isn't wrong in any parameter."""
    return Refused(
        ApiError(status=status, type="invalid_request_error", code=code, message=message)
    )


def busy(limit: int) -> Refused:
    """More requests at once than are let in."""
    error = described(ServerFull(f"{limit} requests are under way", remedy="try again later"))
    return Refused(replace(error, code="too_many_requests"))
