"""aio.py - sessions of a Kakeya server, for asyncio: `AsyncClient` and `AsyncSession`.

    async with AsyncClient("localhost:8080") as client, await client.create_session() as session:
        await session.append_text("def main():")
        async for text in session.generate_text(max_tokens=64):
            print(text, end="", flush=True)

The names and their meaning are those of `client.py`.  A client belongs to one event loop.  A task
that is cancelled while it waits ends its work on the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from types import TracebackType
from typing import (TYPE_CHECKING, Any, AsyncIterator, Awaitable, Callable, Generic, Iterable, Mapping,
                    Sequence, TypeVar)

from . import _calls, errors
from ._http import Address, Request
from ._session import BUSY_PAUSE_S, Choice, SessionState, piece_of, text_of, token_of
from ._streams import AsyncStream, AsyncTransport
from .client import DEFAULT_ADDRESS
from .options import GenerateOptions, SessionOptions, check
from .types import Appended, GenerateResult, Piece, SessionInfo

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

__all__ = ["AsyncClient", "AsyncGeneration", "AsyncSession"]

T = TypeVar("T")


class AsyncClient:
    """A server, by its address; the arguments are those of `Client`."""

    def __init__(self, address: str = DEFAULT_ADDRESS, *, api_key: str | None = None,
                 timeout: float | None = None, connect_timeout: float = 10.0,
                 tls: ssl.SSLContext | None = None) -> None:
        self._address = address
        self._closed = False
        self._transport = AsyncTransport(Address.parse(address), _calls.headers(api_key), timeout,
                                         connect_timeout, tls)

    @property
    def address(self) -> str:
        return self._address

    @property
    def closed(self) -> bool:
        return self._closed

    async def create_session(self, eos_token_ids: Iterable[int] = (), client_label: str = "",
                             **options: Unpack[SessionOptions]) -> AsyncSession:
        """A session with an empty history, as `Client.create_session` makes it."""
        made = await self._call(_calls.create(eos_token_ids, client_label,
                                              check(options, SessionOptions)))
        return AsyncSession(self, str(made["id"]))

    def session(self, session_id: str) -> AsyncSession:
        """A session that is there already, by its id; the server is not asked."""
        return AsyncSession(self, session_id)

    async def list_sessions(self) -> list[SessionInfo]:
        """All sessions, the newest first."""
        answer = await self._call(Request("GET", _calls.SESSIONS))
        return [SessionInfo.read(one) for one in answer["data"]]

    async def tokenize(self, text: str) -> list[int]:
        """The tokens of a text."""
        answer = await self._call(Request("POST", "/tokenize", {"content": text}))
        return [int(t) for t in answer["tokens"]]

    async def detokenize(self, tokens: Iterable[int]) -> str:
        """The text of tokens, special ones included."""
        answer = await self._call(Request("POST", "/detokenize", {"tokens": list(tokens)}))
        return str(answer["content"])

    async def ready(self) -> bool:
        """Whether the server answers and has its model."""
        try:
            await self._call(Request("GET", "/health"))
        except errors.UnavailableError:
            return False
        return True

    async def close(self) -> None:
        """Closes the connections; the sessions stay on the server."""
        self._closed = True
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncClient {self._address}{' closed' if self._closed else ''}>"

    def _check_open(self) -> None:
        if self._closed:
            raise errors.SessionClosedError(f"the client of {self._address} is closed")

    async def _call(self, request: Request) -> Any:
        self._check_open()
        return await self._transport.call(request)

    async def _stream(self, request: Request) -> AsyncStream:
        self._check_open()
        return await self._transport.open(request)


class AsyncGeneration(Generic[T], AsyncIterator[T]):
    """What a generation says, as it comes; the call is made when the first of it is asked for.

    Leaving it early (`aclose`, or the end of an `async with`) ends the work on the server; what came
    until then is part of the history.
    """

    def __init__(self, session: AsyncSession, start: Callable[[], Awaitable[AsyncStream]],
                 choose: Choice[T]) -> None:
        self._session = session
        self._start = start
        self._started = time.monotonic()
        self._choose = choose
        self._stream: AsyncStream | None = None
        self._reading = _calls.Reading()
        self._waiting: list[Piece] = []  # those that came, the next one last
        self._over = False

    @property
    def result(self) -> GenerateResult | None:
        """What it did; None: it has not ended."""
        return self._reading.result

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        while True:
            while self._waiting:
                chosen = self._choose(self._waiting.pop())
                if chosen is not None:
                    return chosen
            if self._over:
                raise StopAsyncIteration
            await self._fill()

    async def aclose(self) -> None:
        """Ends it; after its end this does nothing."""
        self._waiting.clear()
        self._finish()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.aclose()

    def __del__(self) -> None:  # of a loop that was left: the server should not go on
        with contextlib.suppress(RuntimeError):  # the event loop is closed, and the connection too
            if not getattr(self, "_over", True):
                self._finish()

    async def _fill(self) -> None:
        try:
            if self._stream is None:
                self._session._begin()
                self._stream = await self._start()
            data = await self._stream.read()
            if data:
                self._waiting = self._reading.feed(data)[::-1]
                return
            self._reading.ended()
        except errors.SessionBusyError as why:  # said in the stream, before anything else
            if not self._session._again(why, time.monotonic() - self._started):
                self._finish()
                raise
            if self._stream is not None:
                self._stream.close()
            self._stream = None
            await asyncio.sleep(BUSY_PAUSE_S)
            return
        except BaseException:
            self._finish()
            raise
        self._finish()

    def _finish(self) -> None:
        if self._over:
            return
        self._over = True
        if self._stream is not None:
            self._stream.close()
            self._session._end(self._reading.result)


class AsyncSession(SessionState):
    """A token history with its own K/V cache on the server; it only grows."""

    def __init__(self, client: AsyncClient, session_id: str) -> None:
        super().__init__(session_id)
        self._client = client

    async def append(self, tokens: Iterable[int]) -> int:
        """Appends token ids and evaluates them; the length of the history then."""
        return (await self._append(_calls.append_tokens(self._id, tokens))).history_length

    async def append_text(self, text: str) -> Appended:
        """Appends text: with <bos> before the first; special strings become special tokens."""
        return await self._append(_calls.append_text(self._id, text))

    async def append_messages(self, messages: Sequence[Mapping[str, Any]], *,
                              tools: Sequence[Mapping[str, Any]] | None = None,
                              enable_thinking: bool | None = None,
                              add_generation_prompt: bool | None = None) -> Appended:
        """Appends turns in the model's chat format, as `Session.append_messages` does."""
        return await self._append(_calls.append_messages(self._id, messages, tools, enable_thinking,
                                                         add_generation_prompt))

    def generate(self, max_tokens: int, **options: Unpack[GenerateOptions]) -> AsyncGeneration[int]:
        """Continues the history; yields token ids."""
        return self._generate(max_tokens, options, token_of)

    def generate_text(self, max_tokens: int,
                      **options: Unpack[GenerateOptions]) -> AsyncGeneration[str]:
        """The same; yields text, whole characters at a time."""
        return self._generate(max_tokens, options, text_of)

    def generate_pieces(self, max_tokens: int,
                        **options: Unpack[GenerateOptions]) -> AsyncGeneration[Piece]:
        """The same; yields tokens with their text."""
        return self._generate(max_tokens, options, piece_of)

    async def info(self) -> SessionInfo:
        """What the server knows of it; of a closed one, `SessionNotFoundError`."""
        return SessionInfo.read(await self._client._call(Request("GET", _calls.of_session(self._id))))

    async def tokens(self) -> list[int]:
        """The tokens of the history."""
        self._open()
        answer = await self._client._call(Request("GET", _calls.of_session(self._id, "tokens")))
        return [int(t) for t in answer["tokens"]]

    async def fork(self, *, at: int | None = None, turn: int | None = None) -> AsyncSession:
        """A second session with the first `at` tokens, or up to the end of `turn` generations."""
        self._open()
        request = _calls.fork(self._id, at, turn)
        answer = await self._patiently(lambda: self._client._call(request))
        return AsyncSession(self._client, str(answer["id"]))

    async def close(self) -> int:
        """Ends it on the server; the length of its history, or 0 when it was closed before."""
        if self._closed:
            return 0
        answer = await self._client._call(Request("DELETE", _calls.of_session(self._id)))
        self._closed = True
        return int(answer["history_length"])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None,
                        trace: TracebackType | None) -> None:
        try:
            await self.close()
        except errors.KakeyaError:
            if value is None:  # what failed inside is worth more
                raise

    async def _append(self, request: Request) -> Appended:
        self._open()
        return Appended.read(await self._patiently(lambda: self._client._call(request)))

    def _generate(self, max_tokens: int, options: Mapping[str, Any],
                  choose: Choice[T]) -> AsyncGeneration[T]:
        self._open()
        request = _calls.generate(self._id, max_tokens, check(options, GenerateOptions))
        return AsyncGeneration(self, lambda: self._client._stream(request), choose)

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        start = time.monotonic()
        while True:
            try:
                answer = await call()
                self._left = False
                return answer
            except errors.KakeyaError as why:
                if not self._again(why, time.monotonic() - start):
                    raise
            await asyncio.sleep(BUSY_PAUSE_S)
