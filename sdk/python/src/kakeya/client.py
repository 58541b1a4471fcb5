"""client.py - sessions of a Kakeya server, for programs that wait: `Client` and `Session`.

    with Client("localhost:8080") as client, client.create_session() as session:
        session.append_text("def main():")
        for text in session.generate_text(max_tokens=64):
            print(text, end="", flush=True)

A client may be used from many threads.  One call at a time works on a session; the server refuses
another with `SessionBusyError`.
"""

from __future__ import annotations

import ssl
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Generic, Iterable, Iterator, Mapping, Sequence, TypeVar

from . import _calls, errors
from ._http import Address, Request
from ._session import BUSY_PAUSE_S, Choice, SessionState, piece_of, text_of, token_of
from ._sockets import SocketStream, SocketTransport
from .options import GenerateOptions, SessionOptions, check
from .types import Appended, GenerateResult, Piece, SessionInfo

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

__all__ = ["Client", "Generation", "Session"]

T = TypeVar("T")
DEFAULT_ADDRESS = "localhost:8080"


class Client:
    """A server, by its address.

    address: HOST:PORT, or with http:// or https:// before it.
    api_key: one of the server's --api-key-file; None: it wants none.
    timeout: seconds of silence after which a call fails with `DeadlineExceededError`; None: the
        server's own limits hold.  A long append is silent until it is done.
    tls: for https, where the system's certificates are not those wanted.
    """

    def __init__(self, address: str = DEFAULT_ADDRESS, *, api_key: str | None = None,
                 timeout: float | None = None, connect_timeout: float = 10.0,
                 tls: ssl.SSLContext | None = None) -> None:
        self._address = address
        self._closed = False
        self._transport = SocketTransport(Address.parse(address), _calls.headers(api_key), timeout,
                                          connect_timeout, tls)

    @property
    def address(self) -> str:
        return self._address

    @property
    def closed(self) -> bool:
        return self._closed

    def create_session(self, eos_token_ids: Iterable[int] = (), client_label: str = "",
                       **options: Unpack[SessionOptions]) -> Session:
        """A session with an empty history.

        eos_token_ids: end a generation, beside the model's own; 16 at most.
        client_label: any text of up to 63 bytes, which `list_sessions` shows.
        """
        made = self._call(_calls.create(eos_token_ids, client_label, check(options, SessionOptions)))
        return Session(self, str(made["id"]))

    def session(self, session_id: str) -> Session:
        """A session that is there already, by its id; the server is not asked."""
        return Session(self, session_id)

    def list_sessions(self) -> list[SessionInfo]:
        """All sessions, the newest first."""
        return [SessionInfo.read(one) for one in self._call(Request("GET", _calls.SESSIONS))["data"]]

    def tokenize(self, text: str) -> list[int]:
        """The tokens of a text."""
        return [int(t) for t in self._call(Request("POST", "/tokenize", {"content": text}))["tokens"]]

    def detokenize(self, tokens: Iterable[int]) -> str:
        """The text of tokens, special ones included."""
        body = {"tokens": list(tokens)}
        return str(self._call(Request("POST", "/detokenize", body))["content"])

    def ready(self) -> bool:
        """Whether the server answers and has its model."""
        try:
            self._call(Request("GET", "/health"))
        except errors.UnavailableError:
            return False
        return True

    def close(self) -> None:
        """Closes the connections; the sessions stay on the server."""
        self._closed = True
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client {self._address}{' closed' if self._closed else ''}>"

    def _check_open(self) -> None:
        if self._closed:
            raise errors.SessionClosedError(f"the client of {self._address} is closed")

    def _call(self, request: Request) -> Any:
        self._check_open()
        return self._transport.call(request)

    def _stream(self, request: Request) -> SocketStream:
        self._check_open()
        return self._transport.open(request)


class Generation(Generic[T], Iterator[T]):
    """What a generation says, as it comes.

    Leaving it early (`close`, or the end of a `with`) ends the work on the server; what came until
    then is part of the history.
    """

    def __init__(self, session: Session, start: Callable[[], SocketStream], choose: Choice[T]) -> None:
        self._over = True  # until there is a stream
        self._session = session
        self._start = start
        self._started = time.monotonic()
        self._stream = start()
        self._choose = choose
        self._reading = _calls.Reading()
        self._waiting: list[Piece] = []  # those that came, the next one last
        self._over = False

    @property
    def result(self) -> GenerateResult | None:
        """What it did; None: it has not ended."""
        return self._reading.result

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        while True:
            while self._waiting:
                chosen = self._choose(self._waiting.pop())
                if chosen is not None:
                    return chosen
            if self._over:
                raise StopIteration
            self._fill()

    def cancel(self) -> None:
        """Ends it from another thread: whoever iterates gets an `RpcCancelledError`."""
        self._stream.cancel()

    def close(self) -> None:
        """Ends it; after its end this does nothing."""
        self._waiting.clear()
        if not self._over:
            self._finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_over", True):
            self._finish()

    def _fill(self) -> None:
        try:
            data = self._stream.read()
            if data:
                self._waiting = self._reading.feed(data)[::-1]
                return
            self._reading.ended()
        except errors.SessionBusyError as why:  # said in the stream, before anything else
            if not self._session._again(why, time.monotonic() - self._started):
                self._finish()
                raise
            self._stream.close()
            time.sleep(BUSY_PAUSE_S)
            self._stream = self._start()
            return
        except BaseException:
            self._finish()
            raise
        self._finish()

    def _finish(self) -> None:
        self._over = True
        self._stream.close()
        self._session._end(self._reading.result)


class Session(SessionState):
    """A token history with its own K/V cache on the server; it only grows."""

    def __init__(self, client: Client, session_id: str) -> None:
        super().__init__(session_id)
        self._client = client

    def append(self, tokens: Iterable[int]) -> int:
        """Appends token ids and evaluates them; the length of the history then."""
        return self._append(_calls.append_tokens(self._id, tokens)).history_length

    def append_text(self, text: str) -> Appended:
        """Appends text: with <bos> before the first; special strings become special tokens."""
        return self._append(_calls.append_text(self._id, text))

    def append_messages(self, messages: Sequence[Mapping[str, Any]], *,
                        tools: Sequence[Mapping[str, Any]] | None = None,
                        enable_thinking: bool | None = None,
                        add_generation_prompt: bool | None = None) -> Appended:
        """Appends turns in the model's chat format, behind those that are there.

        messages and tools have the shapes of OpenAI's API.
        """
        return self._append(_calls.append_messages(self._id, messages, tools, enable_thinking,
                                                   add_generation_prompt))

    def generate(self, max_tokens: int, **options: Unpack[GenerateOptions]) -> Generation[int]:
        """Continues the history; yields token ids.

        A wrong option is refused here; what is wrong with the session, by the first `next`.
        """
        return self._generate(max_tokens, options, token_of)

    def generate_text(self, max_tokens: int, **options: Unpack[GenerateOptions]) -> Generation[str]:
        """The same; yields text, whole characters at a time."""
        return self._generate(max_tokens, options, text_of)

    def generate_pieces(self, max_tokens: int,
                        **options: Unpack[GenerateOptions]) -> Generation[Piece]:
        """The same; yields tokens with their text."""
        return self._generate(max_tokens, options, piece_of)

    def info(self) -> SessionInfo:
        """What the server knows of it; of a closed one, `SessionNotFoundError`."""
        return SessionInfo.read(self._client._call(Request("GET", _calls.of_session(self._id))))

    def tokens(self) -> list[int]:
        """The tokens of the history."""
        self._open()
        answer = self._client._call(Request("GET", _calls.of_session(self._id, "tokens")))
        return [int(t) for t in answer["tokens"]]

    def fork(self, *, at: int | None = None, turn: int | None = None) -> Session:
        """A second session with the first `at` tokens, or up to the end of `turn` generations."""
        self._open()
        answer = self._patiently(lambda: self._client._call(_calls.fork(self._id, at, turn)))
        return Session(self._client, str(answer["id"]))

    def close(self) -> int:
        """Ends it on the server; the length of its history, or 0 when it was closed before."""
        if self._closed:
            return 0
        answer = self._client._call(Request("DELETE", _calls.of_session(self._id)))
        self._closed = True
        return int(answer["history_length"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        try:
            self.close()
        except errors.KakeyaError:
            if value is None:  # what failed inside is worth more
                raise

    def _append(self, request: Request) -> Appended:
        self._open()
        return Appended.read(self._patiently(lambda: self._client._call(request)))

    def _generate(self, max_tokens: int, options: Mapping[str, Any],
                  choose: Choice[T]) -> Generation[T]:
        self._open()
        request = _calls.generate(self._id, max_tokens, check(options, GenerateOptions))
        self._begin()
        return Generation(self, lambda: self._client._stream(request), choose)

    def _patiently(self, call: Callable[[], T]) -> T:
        start = time.monotonic()
        while True:
            try:
                answer = call()
                self._left = False
                return answer
            except errors.KakeyaError as why:
                if not self._again(why, time.monotonic() - start):
                    raise
            time.sleep(BUSY_PAUSE_S)
