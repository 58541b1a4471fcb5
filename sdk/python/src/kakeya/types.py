"""types.py - what calls return: plain values, the same from the sync and the async client."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Mapping, NamedTuple

__all__ = ["Appended", "GenerateResult", "Piece", "SessionInfo", "StopReason"]


class StopReason(enum.Enum):
    """Why a generation ended; the numbers are those of runtime.proto."""

    UNSPECIFIED = 0
    MAX_TOKENS = 1
    EOS = 2  #: a stop id, which is the last token and part of the history
    CANCELLED = 3
    TRUNCATED = 4  #: not used
    CONTEXT_FULL = 5
    STOP_TEXT = 6


STOP_WORDS: Mapping[str, StopReason] = {
    "max_tokens": StopReason.MAX_TOKENS,
    "eos": StopReason.EOS,
    "cancelled": StopReason.CANCELLED,
    "context": StopReason.CONTEXT_FULL,
    "stop_text": StopReason.STOP_TEXT,
}


class Piece(NamedTuple):
    """A token as it comes, with the text that is certain by it: whole characters, perhaps none.

    The last piece may have no token: it is text that was held back as the start of a stop text.
    """

    token: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Appended:
    """What an append did, in tokens."""

    history_length: int
    added_tokens: int
    cached_tokens: int  #: of the history, whose K/V was there
    evaluated_tokens: int  #: that passed through the model
    seconds: float

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Appended:
        return cls(
            history_length=int(told["history_length"]),
            added_tokens=int(told["added_tokens"]),
            cached_tokens=int(told["cached_tokens"]),
            evaluated_tokens=int(told["evaluated_tokens"]),
            seconds=float(told["seconds"]),
        )


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """What a generation did."""

    stop_reason: StopReason
    generated_token_count: int
    prefill_duration_seconds: float  #: tokens of the history whose K/V had to be computed again
    total_duration_seconds: float
    history_truncated_dropped: int  #: tokens that full layers under a window see no more
    history_length: int
    rounds: int  #: forward passes of the model
    drafted_tokens: int  #: that were checked in them
    accepted_tokens: int
    cached_tokens: int
    evaluated_tokens: int
    logits_hash: str  #: of the logits of every chosen token, in order; 16 hexadecimal digits

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> GenerateResult:
        prefill, decode = float(told["prefill_seconds"]), float(told["decode_seconds"])
        return cls(
            stop_reason=STOP_WORDS.get(told["stop_reason"], StopReason.UNSPECIFIED),
            generated_token_count=int(told["generated_tokens"]),
            prefill_duration_seconds=prefill,
            total_duration_seconds=prefill + decode,
            history_truncated_dropped=int(told.get("dropped_tokens", 0)),
            history_length=int(told["history_length"]),
            rounds=int(told["rounds"]),
            drafted_tokens=int(told["drafted_tokens"]),
            accepted_tokens=int(told["accepted_tokens"]),
            cached_tokens=int(told["cached_tokens"]),
            evaluated_tokens=int(told["evaluated_tokens"]),
            logits_hash=str(told["logits_hash"]),
        )


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """What the server knows of a session; `raw` is all that it said."""

    session_id: str
    history_length: int
    kv_live_bytes: int  #: in memory, pages that it shares with others included
    cache_invariant_inv1_violations: int
    cache_invariant_inv2_violations: int
    cache_invariant_inv3_violations: int
    idle_seconds: float
    client_label: str
    turns: int  #: generations that ended
    context: int  #: most tokens of the history
    busy: bool  #: a call works on it
    resident: bool  #: its K/V is in memory
    stored: bool  #: it has files under the server's --state
    created_unix_seconds: int
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> SessionInfo:
        violations = [int(n) for n in told["invariant_violations"]]
        return cls(
            session_id=str(told["id"]),
            history_length=int(told["history_length"]),
            kv_live_bytes=int(told["kv"]["bytes"]),
            cache_invariant_inv1_violations=violations[0],
            cache_invariant_inv2_violations=violations[1],
            cache_invariant_inv3_violations=violations[2],
            idle_seconds=float(told["idle_seconds"]),
            client_label=str(told["label"]),
            turns=int(told["turns"]),
            context=int(told["context"]),
            busy=bool(told["busy"]),
            resident=bool(told["resident"]),
            stored=bool(told["stored"]),
            created_unix_seconds=int(told["created"]),
            raw=told,
        )
