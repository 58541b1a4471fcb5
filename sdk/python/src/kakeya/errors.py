"""errors.py - what a call raises.

Every error is a `KakeyaError` and has `rpc_code`, the name that gRPC has for it, whether the server
said it over HTTP or the engine in this process.  Which class belongs to which code is one table,
`CLASSES`, and which code belongs to an answer over HTTP is `from_answer`: the server's own rule
(server/fault.c), read backwards.
"""

from __future__ import annotations

from typing import Any, Mapping

__all__ = [
    "DeadlineExceededError",
    "InternalError",
    "InvalidArgumentError",
    "InvariantViolationError",
    "KakeyaError",
    "PermissionDeniedError",
    "ResourceExhaustedError",
    "RpcCancelledError",
    "SessionBusyError",
    "SessionClosedError",
    "SessionNotFoundError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
]


class KakeyaError(Exception):
    """A call failed.

    rpc_code: gRPC's name of the reason, as in "NOT_FOUND"; None: no call was made.
    status: the status of HTTP; None: there was no answer.
    code: the server's word for programs, as in "session_busy"; None: it has none.
    param: the member of the request that is wrong; None: none is named.
    retry_after: seconds after which the server asks to be called again; None: it does not.
    """

    def __init__(
        self,
        message: str,
        *,
        rpc_code: str | None = None,
        status: int | None = None,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.rpc_code = rpc_code
        self.status = status
        self.code = code
        self.param = param
        self.retry_after = retry_after


class SessionNotFoundError(KakeyaError):
    """No session has this id, or it was closed (NOT_FOUND)."""


class InvalidArgumentError(KakeyaError):
    """An argument is wrong, or the tokens do not fit the context (INVALID_ARGUMENT)."""


class InvariantViolationError(KakeyaError):
    """An invariant of the session does not hold: it can only be closed (FAILED_PRECONDITION)."""


class ResourceExhaustedError(KakeyaError):
    """Too many sessions or calls, or no memory (RESOURCE_EXHAUSTED)."""


class UnimplementedError(KakeyaError):
    """The server does not know the call (UNIMPLEMENTED)."""


class RpcCancelledError(KakeyaError):
    """The call was cancelled (CANCELLED)."""


class SessionBusyError(KakeyaError):
    """Another call works on the session (ABORTED)."""


class UnavailableError(KakeyaError):
    """The server is not there, loads its model, or is shutting down (UNAVAILABLE)."""


class DeadlineExceededError(KakeyaError):
    """The call took longer than the client or the server allows (DEADLINE_EXCEEDED)."""


class UnauthenticatedError(KakeyaError):
    """The server wants an API key, or another one (UNAUTHENTICATED)."""


class PermissionDeniedError(KakeyaError):
    """The server refuses this client (PERMISSION_DENIED)."""


class InternalError(KakeyaError):
    """The engine or the device failed, or an answer cannot be read (INTERNAL)."""


class SessionClosedError(KakeyaError):
    """This object was closed: no call was made."""


CLASSES: Mapping[str, type[KakeyaError]] = {
    "NOT_FOUND": SessionNotFoundError,
    "INVALID_ARGUMENT": InvalidArgumentError,
    "FAILED_PRECONDITION": InvariantViolationError,
    "RESOURCE_EXHAUSTED": ResourceExhaustedError,
    "UNIMPLEMENTED": UnimplementedError,
    "CANCELLED": RpcCancelledError,
    "ABORTED": SessionBusyError,
    "UNAVAILABLE": UnavailableError,
    "DEADLINE_EXCEEDED": DeadlineExceededError,
    "UNAUTHENTICATED": UnauthenticatedError,
    "PERMISSION_DENIED": PermissionDeniedError,
    "INTERNAL": InternalError,
    "DATA_LOSS": InternalError,
}

_BY_WORD = {
    "invariant_violation": "FAILED_PRECONDITION",
    "out_of_memory": "RESOURCE_EXHAUSTED",
    "data_loss": "DATA_LOSS",
}

_BY_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    413: "RESOURCE_EXHAUSTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}

# An error inside a stream comes without a status: its type says which it would have had.
_BY_TYPE = {
    "invalid_request_error": 400,
    "exceed_context_size_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "rate_limit_error": 429,
    "cancelled_error": 499,
    "not_supported_error": 501,
    "unavailable_error": 503,
    "timeout_error": 504,
}


def make(rpc_code: str, message: str, **more: Any) -> KakeyaError:
    """The error of this code."""
    return CLASSES.get(rpc_code, KakeyaError)(message, rpc_code=rpc_code, **more)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def from_answer(status: int | None, body: object, retry_after: float | None = None) -> KakeyaError:
    """The error that an answer's JSON tells; status None: it came inside a stream."""
    error = body.get("error") if isinstance(body, dict) else None
    told: dict[str, Any] = error if isinstance(error, dict) else {}
    code = _text(told.get("code"))
    if status is None:
        status = _BY_TYPE.get(_text(told.get("type")) or "", 500)
    rpc_code = _BY_WORD.get(code or "", _BY_STATUS.get(status, "INTERNAL"))
    message = _text(told.get("message")) or f"the server answered with the status {status}"
    return make(rpc_code, message, status=status, code=code, param=_text(told.get("param")),
                retry_after=retry_after)
