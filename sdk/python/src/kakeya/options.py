"""options.py - what a session and a generation may be told, by name; each is optional.

What is not given is the server's or the session's own: `kakeya serve` has the first, and
`create_session` the second.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence, TypedDict

__all__ = ["CacheOptions", "GenerateOptions", "SamplingOptions", "SessionOptions"]


class SamplingOptions(TypedDict, total=False):
    """How a token is chosen.  The seed and the position fix the draw."""

    seed: int | None  #: 0 to 2**64 - 1
    temperature: float | None  #: 0: the likeliest token
    top_p: float | None
    top_k: int | None  #: 0: all
    min_p: float | None
    repeat_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repeat_last_n: int | None  #: tokens that the penalties look back over; -1: all


class GenerateOptions(SamplingOptions, total=False):
    """Of one generation."""

    stop: str | Sequence[str] | None  #: the first of these texts ends it; 16 at most
    stop_token_ids: Sequence[int] | None  #: beside the model's and the session's; 64 at most
    logit_bias: Mapping[int, float] | None  #: added to the logits of these ids; -100 to 100
    ignore_eos: bool | None  #: no id ends it


class CacheOptions(TypedDict, total=False):
    """What a session keeps, and who drafts for it."""

    context: int | None  #: most tokens of the history
    kv_format: str | None  #: how K/V rows are stored: bf16, f32, q8, q4, s8
    kv_sliding: str | None  #: rows that sliding layers keep: native, window, restored
    kv_full: str | None  #: rows that full layers keep: exact, window, restored
    sink: int | None  #: rows kept of the start, with window and restored
    window: int | None  #: rows kept before the last
    chunk: int | None  #: rows evicted at a time
    spec: str | None  #: who drafts: auto, none, dflash, ngram
    draft_max: int | None  #: most tokens drafted in a round; 0: what pays


class SessionOptions(SamplingOptions, CacheOptions, total=False):
    """Of a session, from its beginning."""


def check(given: Mapping[str, Any], known: type) -> Mapping[str, Any]:
    """A name that is none of these is a slip, which the server would ignore."""
    names = known.__annotations__
    for name in given:
        if name not in names:
            raise TypeError(f"there is no option {name!r}: {', '.join(sorted(names))}")
    return given
