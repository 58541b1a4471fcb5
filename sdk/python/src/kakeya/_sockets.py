"""_sockets.py - requests over sockets that block; many threads may use one transport.

Connections are kept and used again.  The server closes those that are idle for long, and a request
must not be sent twice, so a kept connection that can be read from, which means that it ended, is
closed instead of used.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
from typing import Any, Mapping

from . import errors
from ._http import Address, Request, Response

BUFFER = 1 << 16  # bytes read at a time
KEPT = 64  # idle connections


def tls_context(address: Address, given: ssl.SSLContext | None) -> ssl.SSLContext | None:
    """How to speak TLS to that address; None: it is plain HTTP."""
    if not address.tls:
        return None
    return given if given is not None else ssl.create_default_context()


def lost(why: BaseException) -> errors.KakeyaError:
    """What a failure of the network is to the caller."""
    if isinstance(why, TimeoutError):
        return errors.make("DEADLINE_EXCEEDED", "the server was silent for longer than `timeout`")
    return errors.make("UNAVAILABLE", f"the connection to the server failed: {why}")


class SocketStream:
    """An answer that comes in pieces, on a connection of its own until it ends."""

    def __init__(self, transport: SocketTransport, sock: socket.socket) -> None:
        self._transport = transport
        self._sock = sock
        self._cancelled = False
        self._closed = False
        self.response = Response()

    def send(self, data: bytes) -> None:
        try:
            self._sock.sendall(data)
        except OSError as why:
            raise lost(why) from why

    def receive(self) -> None:
        """Waits for some bytes."""
        try:
            self.response.feed(self._sock.recv(BUFFER))
        except (OSError, ValueError, errors.KakeyaError) as why:
            if self._cancelled:
                raise errors.make("CANCELLED", "the generation was cancelled") from why
            if isinstance(why, errors.KakeyaError):
                raise
            raise lost(why) from why

    def read(self) -> bytes:
        """The next bytes of the body; none: it is over."""
        while not self.response.body:
            if self.response.complete:
                return b""
            self.receive()
        return self.response.take()

    def cancel(self) -> None:
        """Ends it from another thread: whoever reads gets an `RpcCancelledError`."""
        self._cancelled = True
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self) -> None:
        """Gives the connection back, or ends it where the answer is not over; once."""
        if self._closed:
            return
        self._closed = True
        if self.response.reusable and not self._cancelled:
            self._transport.keep(self._sock)
        else:
            self._sock.close()


class SocketTransport:
    """Sends requests to one server."""

    def __init__(self, address: Address, headers: Mapping[str, str], timeout: float | None,
                 connect_timeout: float, tls: ssl.SSLContext | None) -> None:
        self.address = address
        self._headers = headers
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._tls = tls_context(address, tls)
        self._lock = threading.Lock()
        self._idle: list[socket.socket] = []
        self._closed = False

    def call(self, request: Request) -> Any:
        """Sends it and returns the JSON of the answer."""
        stream = self.open(request)
        try:
            while not stream.response.complete:
                stream.receive()
            return stream.response.json()
        finally:
            stream.close()

    def open(self, request: Request) -> SocketStream:
        """Sends it and returns the answer with its head read; refusals are raised."""
        data = request.encode(self.address, self._headers)
        stream = SocketStream(self, self._connection())
        try:
            stream.send(data)
            while stream.response.status == 0:
                stream.receive()
            if stream.response.status >= 300:
                while not stream.response.complete:
                    stream.receive()
                raise stream.response.error()
        except BaseException:
            stream.close()
            raise
        return stream

    def keep(self, sock: socket.socket) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < KEPT:
                self._idle.append(sock)
                return
        sock.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for sock in idle:
            sock.close()

    def _connection(self) -> socket.socket:
        while True:
            with self._lock:
                sock = self._idle.pop() if self._idle else None
            if sock is None:
                return self._connect()
            if not _readable(sock):
                return sock
            sock.close()

    def _connect(self) -> socket.socket:
        try:
            sock = socket.create_connection((self.address.host, self.address.port),
                                            self._connect_timeout)
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._tls is not None:
                    sock = self._tls.wrap_socket(sock, server_hostname=self.address.host)
                sock.settimeout(self._timeout)
            except BaseException:
                sock.close()
                raise
            return sock
        except OSError as why:
            raise errors.make("UNAVAILABLE",
                              f"no server at {self.address.authority}: {why}") from why


def _readable(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
