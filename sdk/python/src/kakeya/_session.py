"""_session.py - what a session is on this side, whoever sends its calls.

`client.py` and `aio.py` differ in how they wait, and in nothing else: ids, options, what the last
generation did and when a call is made again live here.
"""

from __future__ import annotations

from typing import Callable, TypeVar

from . import errors
from .types import GenerateResult, Piece, StopReason

T = TypeVar("T")
Choice = Callable[[Piece], "T | None"]

BUSY_S = 5.0  # longest wait for the server to notice that a stream was left
BUSY_PAUSE_S = 0.01


def token_of(piece: Piece) -> int | None:
    return piece.token


def text_of(piece: Piece) -> str | None:
    return piece.text or None


def piece_of(piece: Piece) -> Piece | None:
    return piece


class SessionState:
    """The part of a session that needs no server."""

    def __init__(self, session_id: str) -> None:
        self._id = session_id
        self._closed = False
        self._last: GenerateResult | None = None
        self._stop: StopReason | None = None
        self._left = False  # the last generation was given up before its end

    @property
    def session_id(self) -> str:
        """The id that the server has given it."""
        return self._id

    @property
    def closed(self) -> bool:
        """Whether `close` was called here."""
        return self._closed

    @property
    def last_result(self) -> GenerateResult | None:
        """All that the last generation did; None: there was none, or it did not end."""
        return self._last

    @property
    def last_stop_reason(self) -> StopReason | None:
        """Why the last generation ended; None: there was none, or it runs."""
        return self._stop

    @property
    def last_generated_token_count(self) -> int | None:
        return self._last.generated_token_count if self._last else None

    @property
    def last_prefill_duration_seconds(self) -> float | None:
        return self._last.prefill_duration_seconds if self._last else None

    @property
    def last_total_duration_seconds(self) -> float | None:
        return self._last.total_duration_seconds if self._last else None

    @property
    def last_history_truncated_dropped(self) -> int | None:
        """Tokens that full layers under a window no longer saw in the last generation."""
        return self._last.history_truncated_dropped if self._last else None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._id}{' closed' if self._closed else ''}>"

    def _open(self) -> None:
        if self._closed:
            raise errors.SessionClosedError(f"the session {self._id} is closed")

    def _begin(self) -> None:
        self._last, self._stop = None, None

    def _end(self, result: GenerateResult | None) -> None:
        """A generation ended; None: it was given up."""
        self._last = result
        self._stop = result.stop_reason if result else StopReason.CANCELLED
        self._left = result is None

    def _again(self, why: errors.KakeyaError, waited: float) -> bool:
        """Whether to call again: the server may still be ending what was given up here."""
        return self._left and isinstance(why, errors.SessionBusyError) and waited < BUSY_S
