"""kakeya - client of a Kakeya server, and its engine in this process.

`Client` and `AsyncClient` hold sessions on a server over HTTP, with the standard library alone.
`kakeya.native` runs the engine in this process through libkakeya.
"""

from ._version import __version__
from .aio import AsyncClient, AsyncGeneration, AsyncSession
from .client import Client, Generation, Session
from .errors import (DeadlineExceededError, InternalError, InvalidArgumentError,
                     InvariantViolationError, KakeyaError, PermissionDeniedError,
                     ResourceExhaustedError, RpcCancelledError, SessionBusyError, SessionClosedError,
                     SessionNotFoundError, UnauthenticatedError, UnavailableError,
                     UnimplementedError)
from .options import GenerateOptions, SamplingOptions, SessionOptions
from .types import Appended, GenerateResult, Piece, SessionInfo, StopReason

__all__ = [
    "Appended", "AsyncClient", "AsyncGeneration", "AsyncSession", "Client", "DeadlineExceededError",
    "GenerateOptions", "GenerateResult", "Generation", "InternalError", "InvalidArgumentError",
    "InvariantViolationError", "KakeyaError", "PermissionDeniedError", "Piece",
    "ResourceExhaustedError", "RpcCancelledError", "SamplingOptions", "Session", "SessionBusyError",
    "SessionClosedError", "SessionInfo", "SessionNotFoundError", "SessionOptions", "StopReason",
    "UnauthenticatedError", "UnavailableError", "UnimplementedError", "__version__",
]
