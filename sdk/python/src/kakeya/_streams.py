"""_streams.py - requests over asyncio's streams; what `_sockets.py` is for threads.

A task that is cancelled while it waits here closes its connection, which ends the work on the server.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, Mapping

from . import errors
from ._http import Address, Request, Response
from ._sockets import BUFFER, KEPT, lost, tls_context

Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class AsyncStream:
    """An answer that comes in pieces, on a connection of its own until it ends."""

    def __init__(self, transport: AsyncTransport, pair: Pair) -> None:
        self._transport = transport
        self._reader, self._writer = pair
        self._closed = False
        self.response = Response()

    async def send(self, data: bytes) -> None:
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as why:
            raise lost(why) from why

    async def receive(self) -> None:
        """Waits for some bytes."""
        timeout = self._transport.timeout
        try:
            if timeout is None:
                data = await self._reader.read(BUFFER)
            else:
                data = await asyncio.wait_for(self._reader.read(BUFFER), timeout)
        except asyncio.TimeoutError:
            raise lost(TimeoutError()) from None
        except OSError as why:
            raise lost(why) from why
        self.response.feed(data)

    async def read(self) -> bytes:
        """The next bytes of the body; none: it is over."""
        while not self.response.body:
            if self.response.complete:
                return b""
            await self.receive()
        return self.response.take()

    def close(self) -> None:
        """Gives the connection back, or ends it where the answer is not over; once."""
        if self._closed:
            return
        self._closed = True
        if self.response.reusable:
            self._transport.keep((self._reader, self._writer))
        else:
            self._writer.close()


class AsyncTransport:
    """Sends requests to one server, from one event loop."""

    def __init__(self, address: Address, headers: Mapping[str, str], timeout: float | None,
                 connect_timeout: float, tls: ssl.SSLContext | None) -> None:
        self.address = address
        self.timeout = timeout
        self._headers = headers
        self._connect_timeout = connect_timeout
        self._tls = tls_context(address, tls)
        self._idle: list[Pair] = []
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
            await stream.send(data)
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

    def keep(self, pair: Pair) -> None:
        if self._closed or len(self._idle) >= KEPT:
            pair[1].close()
        else:
            self._idle.append(pair)

    async def close(self) -> None:
        self._closed = True
        idle, self._idle = self._idle, []
        for _, writer in idle:
            writer.close()
        for _, writer in idle:
            try:
                await writer.wait_closed()
            except OSError:
                pass

    async def _connection(self) -> Pair:
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.close()
        return await self._connect()

    async def _connect(self) -> Pair:
        host = self.address.host if self._tls is not None else None
        opening = asyncio.open_connection(self.address.host, self.address.port, ssl=self._tls,
                                          server_hostname=host)
        try:
            return await asyncio.wait_for(opening, self._connect_timeout)
        except (OSError, asyncio.TimeoutError) as why:
            raise errors.make("UNAVAILABLE",
                              f"no server at {self.address.authority}: {why}") from why
