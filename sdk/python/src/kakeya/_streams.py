"""_streams.py - requests over asyncio; what `_sockets.py` is for threads.

Bytes go from the event loop straight into the answer that waits for them, without the buffer of
asyncio's streams in between, which costs more than all the rest for a token.  A task that is cancelled
while it waits here closes its connection, which ends the work on the server.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, Mapping

from . import errors
from ._http import Address, Request, Response
from ._sockets import KEPT, lost, tls_context

HIGH = 1 << 18  # bytes of an answer that nobody has taken, above which no more are read


class Link(asyncio.Protocol):
    """A connection.  Invariants: (1) at most one task waits; (2) bytes that come while there is no
    answer to feed end the connection; (3) once it is lost, `failed` says why, or the answer is whole."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.response: Response | None = None
        self.failed: Exception | None = None
        self.over: asyncio.Future[None] = self.loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._paused = False

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self.response is None:
            self.close()
            return
        try:
            self.response.feed(data)
        except errors.KakeyaError as why:
            self.failed = why
        if len(self.response.body) > HIGH and self._transport is not None:
            self._transport.pause_reading()
            self._paused = True
        self._wake()

    def connection_lost(self, why: Exception | None) -> None:
        try:
            if why is not None:
                self.failed = self.failed or lost(why)
            elif self.response is not None and not self.response.complete:
                self.response.feed(b"")
        except errors.KakeyaError as short:
            self.failed = self.failed or short
        if not self.over.done():
            self.over.set_result(None)
        self._wake()

    def send(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    async def receive(self, timeout: float | None) -> None:
        """Waits until some bytes came."""
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        if self.failed is None and not self.over.done():
            self._waiter = self.loop.create_future()
            alarm = self.loop.call_later(timeout, self._expire) if timeout is not None else None
            try:
                await self._waiter
            finally:
                self._waiter = None
                if alarm is not None:
                    alarm.cancel()
        if self.failed is not None:
            raise self.failed
        if self.over.done() and self.response is not None and not self.response.complete:
            raise errors.make("UNAVAILABLE", "the server closed the connection")

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _expire(self) -> None:
        self.failed = lost(TimeoutError())
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class AsyncStream:
    """An answer that comes in pieces, on a connection of its own until it ends."""

    def __init__(self, transport: AsyncTransport, link: Link) -> None:
        self._transport = transport
        self._link = link
        self._closed = False
        self.response = link.response = Response()

    def send(self, data: bytes) -> None:
        self._link.send(data)

    async def receive(self) -> None:
        """Waits for some bytes."""
        await self._link.receive(self._transport.timeout)

    async def read(self) -> bytes:
        """The next bytes of the body; none: it is over."""
        while not self.response.body:
            if self.response.complete:
                return b""
            await self._link.receive(self._transport.timeout)
        return self.response.take()

    def close(self) -> None:
        """Gives the connection back, or ends it where the answer is not over; once."""
        if self._closed:
            return
        self._closed = True
        self._link.response = None
        if self.response.reusable:
            self._transport.keep(self._link)
        else:
            self._link.close()


class AsyncTransport:
    """Sends requests to one server, from one event loop."""

    def __init__(self, address: Address, headers: Mapping[str, str], timeout: float | None,
                 connect_timeout: float, tls: ssl.SSLContext | None) -> None:
        self.address = address
        self.timeout = timeout
        self._headers = headers
        self._connect_timeout = connect_timeout
        self._tls = tls_context(address, tls)
        self._idle: list[Link] = []
        self._closed = False

    async def call(self, request: Request) -> Any:
        """Sends it and returns the JSON of the answer."""
        stream = await self.open(request)
        try:
            while not stream.response.complete:
                await stream.receive()
            return stream.response.json()
        finally:
            stream.close()

    async def open(self, request: Request) -> AsyncStream:
        """Sends it and returns the answer with its head read; refusals are raised."""
        data = request.encode(self.address, self._headers)
        stream = AsyncStream(self, await self._connection())
        try:
            stream.send(data)
            while stream.response.status == 0:
                await stream.receive()
            if stream.response.status >= 300:
                while not stream.response.complete:
                    await stream.receive()
                raise stream.response.error()
        except BaseException:
            stream.close()
            raise
        return stream

    def keep(self, link: Link) -> None:
        if self._closed or len(self._idle) >= KEPT or not link.usable:
            link.close()
        else:
            self._idle.append(link)

    async def close(self) -> None:
        self._closed = True
        idle, self._idle = self._idle, []
        for link in idle:
            link.close()
        for link in idle:
            await link.over

    async def _connection(self) -> Link:
        while self._idle:
            link = self._idle.pop()
            if link.usable:
                return link
        host = self.address.host if self._tls is not None else None
        opening = asyncio.get_running_loop().create_connection(
            Link, self.address.host, self.address.port, ssl=self._tls, server_hostname=host)
        try:
            return (await asyncio.wait_for(opening, self._connect_timeout))[1]
        except (OSError, asyncio.TimeoutError) as why:
            raise errors.make("UNAVAILABLE",
                              f"no server at {self.address.authority}: {why}") from why
