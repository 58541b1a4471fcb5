"""_calls.py - the calls of the sessions API: arguments to requests, answers to values.

Nothing here sends anything, so the sync and the async client say the same to the server and read the
same from it.  docs/serving.md has the API.
"""

from __future__ import annotations

import json
from typing import Any, Iterable, Mapping, Sequence
from urllib.parse import quote

from . import errors
from ._events import EventReader
from ._http import Request
from .types import GenerateResult, Piece

SESSIONS = "/v1/sessions"


def headers(api_key: str | None) -> dict[str, str]:
    """Those of every request."""
    out = {"User-Agent": "kakeya-python", "Accept": "application/json, text/event-stream"}
    if api_key is not None:
        if not api_key.isprintable() or not api_key.isascii():
            raise errors.make("INVALID_ARGUMENT", "an API key is printable ASCII", param="api_key")
        out["Authorization"] = f"Bearer {api_key}"
    return out


def _given(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}


def _ids(tokens: Iterable[int], name: str) -> list[int]:
    ids = list(tokens)
    for token in ids:
        if not isinstance(token, int) or isinstance(token, bool) or token < 0:
            raise errors.make("INVALID_ARGUMENT", f"{name}: {token!r} is no token id", param=name)
    return ids


def _seed(seed: int | None) -> int | None:
    """A seed has 64 bits; JSON's integers, as the server reads them, have a sign."""
    if seed is None:
        return None
    if not 0 <= seed < 1 << 64:
        raise errors.make("INVALID_ARGUMENT", f"the seed {seed} is not from 0 to 2**64 - 1",
                          param="seed")
    return seed - (1 << 64) if seed >= 1 << 63 else seed


def of_session(session_id: str, verb: str = "") -> str:
    return f"{SESSIONS}/{quote(session_id, safe='')}{'/' if verb else ''}{verb}"


def create(eos_token_ids: Iterable[int], client_label: str, options: Mapping[str, Any]) -> Request:
    more = dict(options)
    body = {"label": client_label or None, "stop_token_ids": _ids(eos_token_ids, "eos_token_ids"),
            "seed": _seed(more.pop("seed", None)), **more}
    return Request("POST", SESSIONS, _given(body))


def append_tokens(session_id: str, tokens: Iterable[int]) -> Request:
    return Request("POST", of_session(session_id, "append"), {"tokens": _ids(tokens, "tokens")})


def append_text(session_id: str, text: str) -> Request:
    return Request("POST", of_session(session_id, "append"), {"text": text})


def append_messages(
    session_id: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    enable_thinking: bool | None,
    add_generation_prompt: bool | None,
) -> Request:
    body = {"messages": list(messages), "tools": list(tools) if tools is not None else None,
            "enable_thinking": enable_thinking, "add_generation_prompt": add_generation_prompt}
    return Request("POST", of_session(session_id, "append"), _given(body))


def generate(session_id: str, max_tokens: int, options: Mapping[str, Any]) -> Request:
    more = dict(options)
    bias, stop_ids = more.pop("logit_bias", None), more.pop("stop_token_ids", None)
    body = {
        "max_tokens": max_tokens,
        "seed": _seed(more.pop("seed", None)),
        "logit_bias": {str(token): b for token, b in bias.items()} if bias is not None else None,
        "stop_token_ids": _ids(stop_ids, "stop_token_ids") if stop_ids is not None else None,
        "stream": True,
        **more,
    }
    return Request("POST", of_session(session_id, "generate"), _given(body))


def fork(session_id: str, at: int | None, turn: int | None) -> Request:
    return Request("POST", of_session(session_id, "fork"), _given({"at": at, "turn": turn}))


class Reading:
    """A generation as it is read: pieces of what came, and the result at its end."""

    __slots__ = ("_events", "result")

    def __init__(self) -> None:
        self._events = EventReader()
        self.result: GenerateResult | None = None

    def feed(self, data: bytes) -> list[Piece]:
        out: list[Piece] = []
        for event in self._events.feed(data):
            if event == b"[DONE]":
                continue
            told = self._parse(event)
            if "error" in told:
                raise errors.from_answer(None, told)
            if "done" in told:
                self.result = GenerateResult.read(told["done"])
            else:
                out.append(Piece(told.get("token"), told.get("text", "")))
        return out

    def ended(self) -> None:
        """The stream is over: whether it may be."""
        if self.result is None:
            raise errors.make("UNAVAILABLE", "the server ended a generation without its result")

    @staticmethod
    def _parse(event: bytes) -> dict[str, Any]:
        try:
            told = json.loads(event)
        except ValueError:
            told = None
        if not isinstance(told, dict):
            raise errors.make("INTERNAL", f"an event of the stream cannot be read: {event[:60]!r}")
        return told
