"""_http.py - HTTP/1.1 as bytes: a request is written, an answer is read, and nothing is sent.

The standard library has no client for asyncio, so the reader is here, once, without sockets, and the
two transports (`_sockets.py`, `_streams.py`) feed it.  It reads what the server sends: a status line,
headers, and a body of a known length, in chunks, or until the connection ends.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Mapping
from urllib.parse import urlsplit

from . import errors

MAX_HEAD = 1 << 16  # bytes; an answer with a longer head is not from our server


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is."""

    host: str
    port: int
    tls: bool
    prefix: str  # of every path, as behind a proxy; no slash at its end

    @classmethod
    def parse(cls, text: str) -> Address:
        """HOST:PORT, or an address with http:// or https:// before it."""
        url = urlsplit(text if "://" in text else "http://" + text)
        try:
            port = url.port
        except ValueError:
            port = -1
        wrong = url.scheme not in ("http", "https") or not url.hostname or port == -1
        if wrong or url.query or url.fragment or url.username is not None:
            raise errors.make("INVALID_ARGUMENT", f"{text!r} is no address of a server: "
                              "HOST:PORT, http://HOST:PORT or https://HOST:PORT", param="address")
        tls = url.scheme == "https"
        return cls(url.hostname or "", port if port is not None else (443 if tls else 80), tls,
                   url.path.rstrip("/"))

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Request:
    """A call as HTTP has it; body None: it has none."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None

    def encode(self, address: Address, headers: Mapping[str, str]) -> bytes:
        lines = [f"{self.method} {address.prefix}{self.path} HTTP/1.1", f"Host: {address.authority}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        body = b""
        if self.body is not None:
            body = json.dumps(self.body, separators=(",", ":"), allow_nan=False).encode()
            lines.append("Content-Type: application/json")
        if self.method == "POST":
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def _broken(what: str) -> errors.KakeyaError:
    return errors.make("INTERNAL", f"the answer is not HTTP/1.1: {what}")


@dataclass(slots=True)
class Response:
    """An answer that is read as its bytes come.

    Invariants: (1) `status` is 0 until the whole head is there; (2) `body` holds what came of the
    body and was not taken; (3) once `complete`, nothing more belongs to this answer.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    complete: bool = False
    _raw: bytearray = field(default_factory=bytearray)
    _left: int = -1  # bytes of the body, or of its chunk, that are to come; -1: not known
    _chunked: bool = False
    _in_trailer: bool = False

    def feed(self, data: bytes) -> None:
        """Bytes as they came; none: the connection ended."""
        if not data:
            self._end()
            return
        self._raw += data
        if self.status == 0 and not self._read_head():
            return
        if self._chunked:
            while self._read_chunk():
                pass
        else:
            self._read_plain()

    def take(self) -> bytes:
        """What came of the body since the last call."""
        out = bytes(self.body)
        self.body.clear()
        return out

    def json(self) -> Any:
        """The whole body."""
        try:
            return json.loads(bytes(self.body) or b"null")
        except ValueError:
            if self.status < 300:
                raise _broken("its body is no JSON") from None
            return None

    @property
    def reusable(self) -> bool:
        """Whether another request may follow on the connection."""
        bounded = self._chunked or self._left >= 0
        closes = self.headers.get("connection", "").lower() == "close"
        return self.complete and bounded and not closes and not self._raw

    def error(self) -> errors.KakeyaError:
        """What an answer with a status of 300 or more says."""
        try:
            retry_after: float | None = float(self.headers.get("retry-after", ""))
        except ValueError:
            retry_after = None
        return errors.from_answer(self.status, self.json(), retry_after)

    def _end(self) -> None:
        if self.status != 0 and not self._chunked and self._left < 0:
            self.complete = True
        elif not self.complete:
            raise errors.make("UNAVAILABLE", "the server closed the connection within an answer")

    def _read_head(self) -> bool:
        end = self._raw.find(b"\r\n\r\n")
        if end < 0:
            if len(self._raw) > MAX_HEAD:
                raise _broken(f"its head is longer than {MAX_HEAD} bytes")
            return False
        first, *lines = self._raw[:end].decode("latin-1").split("\r\n")
        del self._raw[: end + 4]
        words = first.split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
            raise _broken(f"its first line is {first[:60]!r}")
        if 100 <= int(words[1]) < 200:  # a "100 Continue" comes before the answer
            return self._read_head()
        for line in lines:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        self._measure_body()
        self.status = int(words[1])
        return True

    def _measure_body(self) -> None:
        self._chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        length = self.headers.get("content-length")
        if length is not None and not self._chunked:
            if not length.isdigit():
                raise _broken(f"its length is {length[:20]!r}")
            self._left = int(length)

    def _read_plain(self) -> None:
        n = len(self._raw) if self._left < 0 else min(self._left, len(self._raw))
        self.body += self._raw[:n]
        del self._raw[:n]
        if self._left >= 0:
            self._left -= n
            self.complete = self._left == 0

    def _read_chunk(self) -> bool:
        """Reads a chunk, or what came of it; false: more bytes are needed, or none."""
        if self.complete:
            return False
        if self._left < 0:
            return self._read_chunk_size()
        n = min(self._left, len(self._raw))
        self.body += self._raw[:n]
        del self._raw[:n]
        self._left -= n
        if self._left > 0 or len(self._raw) < 2:
            return False
        if self._raw[:2] != b"\r\n":
            raise _broken("a chunk is longer than it says")
        del self._raw[:2]
        self._left = -1
        return True

    def _read_chunk_size(self) -> bool:
        end = self._raw.find(b"\r\n")
        if end < 0:
            if len(self._raw) > MAX_HEAD:
                raise _broken("a chunk has no size")
            return False
        line = bytes(self._raw[:end])
        del self._raw[: end + 2]
        if self._in_trailer:
            self.complete = not line
            return bool(line)
        try:
            size = int(line.split(b";")[0], 16)
        except ValueError:
            size = -1
        if size < 0:
            raise _broken(f"a chunk has the size {line[:20]!r}")
        self._in_trailer = size == 0
        self._left = size if size > 0 else -1
        return True
