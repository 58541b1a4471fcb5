"""test_wire.py - HTTP and events as bytes: the same answer wherever it is cut, and what is refused."""

import unittest

import support  # noqa: F401 - finds the package

from kakeya import errors
from kakeya._calls import Reading, create, generate, of_session
from kakeya._events import EventReader
from kakeya._http import Address, Request, Response

CHUNKED = (b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
           b"5\r\nhello\r\n1;name=x\r\n \r\nb\r\nbeautiful w\r\n4\r\norld\r\n0\r\nTrailer: 1\r\n\r\n")
PLAIN = b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\nRetry-After: 3\r\n\r\nhello"
UNTIL_END = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello"


def read(data, cut):
    """What comes of an answer in pieces of so many bytes."""
    response, body = Response(), b""
    for i in range(0, len(data), cut):
        response.feed(data[i:i + cut])
        body += response.take()
    return response, body


class Answers(unittest.TestCase):
    def test_cut_anywhere(self):
        for cut in range(1, len(CHUNKED) + 1):
            response, body = read(CHUNKED, cut)
            self.assertEqual((response.status, body), (200, b"hello beautiful world"), cut)
            self.assertTrue(response.complete and response.reusable, cut)
            response, body = read(PLAIN, cut)
            self.assertEqual((response.status, body), (404, b"hello"))
            self.assertTrue(response.complete and response.reusable)

    def test_until_the_end(self):
        response, body = read(UNTIL_END, 7)
        self.assertFalse(response.complete)
        response.feed(b"")
        self.assertEqual((body, response.complete, response.reusable), (b"hello", True, False))

    def test_continue_comes_first(self):
        response, body = read(b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN, 4)
        self.assertEqual((response.status, body), (404, b"hello"))

    def test_what_is_left_over_ends_the_connection(self):
        response, _ = read(PLAIN + b"HTTP", len(PLAIN) + 4)
        self.assertTrue(response.complete)
        self.assertFalse(response.reusable)

    def test_cut_short(self):
        for whole in CHUNKED, PLAIN:
            for n in range(1, len(whole)):
                response, _ = read(whole[:n], n)
                with self.assertRaises(errors.UnavailableError, msg=n):
                    response.feed(b"")

    def test_refused(self):
        for bad in (b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 x OK\r\n\r\n",
                    b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
                    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
                    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhello",
                    b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70000):
            with self.assertRaises(errors.InternalError, msg=bad[:60]):
                Response().feed(bad)

    def test_errors(self):
        answer = Response()
        body = (b'{"error": {"message": "no", "type": "server_error", "code": "invariant_violation", '
                b'"param": "session_id"}}')
        answer.feed(b"HTTP/1.1 500 X\r\nRetry-After: 2\r\nContent-Length: %d\r\n\r\n%s" %
                    (len(body), body))
        error = answer.error()
        self.assertIsInstance(error, errors.InvariantViolationError)
        self.assertEqual((error.rpc_code, error.status, error.code, error.param, error.retry_after),
                         ("FAILED_PRECONDITION", 500, "invariant_violation", "session_id", 2.0))
        for status, kind in ((400, errors.InvalidArgumentError), (401, errors.UnauthenticatedError),
                             (403, errors.PermissionDeniedError), (404, errors.SessionNotFoundError),
                             (405, errors.UnimplementedError), (409, errors.SessionBusyError),
                             (429, errors.ResourceExhaustedError), (499, errors.RpcCancelledError),
                             (501, errors.UnimplementedError), (502, errors.InternalError),
                             (503, errors.UnavailableError), (504, errors.DeadlineExceededError)):
            self.assertIs(type(errors.from_answer(status, None)), kind, status)
        in_stream = {"error": {"message": "m", "type": "timeout_error", "code": "timeout"}}
        self.assertIs(type(errors.from_answer(None, in_stream)), errors.DeadlineExceededError)


class Events(unittest.TestCase):
    STREAM = b'data: {"a": 1}\n\n: ping\n\nevent: x\ndata: two\ndata:lines\n\nid: 7\n\ndata: [DONE]\n\n'

    def test_cut_anywhere(self):
        for stream in self.STREAM, self.STREAM.replace(b"\n", b"\r\n"), self.STREAM.replace(b"\n", b"\r"):
            for cut in range(1, len(stream) + 1):
                reader, found = EventReader(), []
                for i in range(0, len(stream), cut):
                    found += reader.feed(stream[i:i + cut])
                found += reader.feed(b"\n")  # a carriage return alone waits for what may follow it
                self.assertEqual(found, [b'{"a": 1}', b"two\nlines", b"[DONE]"], (cut, stream[:20]))

    def test_generations(self):
        with self.assertRaises(errors.InternalError):
            Reading().feed(b"data: {\n\n")
        with self.assertRaises(errors.ResourceExhaustedError):
            Reading().feed(b'data: {"error": {"type": "rate_limit_error", "message": "m"}}\n\n')
        with self.assertRaises(errors.UnavailableError):
            Reading().ended()


class Requests(unittest.TestCase):
    def test_addresses(self):
        for text, want in (("localhost:8080", ("localhost", 8080, False, "")),
                           ("https://a.example/kakeya/", ("a.example", 443, True, "/kakeya")),
                           ("http://[::1]:9", ("::1", 9, False, ""))):
            got = Address.parse(text)
            self.assertEqual((got.host, got.port, got.tls, got.prefix), want)
        self.assertEqual(Address.parse("[::1]:9").authority, "[::1]:9")
        for text in "", "ftp://x", "x:port", "http://u:p@x", "x:99999", "http://x?y=1":
            with self.assertRaises(errors.InvalidArgumentError, msg=text):
                Address.parse(text)

    def test_bytes(self):
        data = Request("POST", "/x", {"a": "\u00e9"}).encode(Address.parse("h:1/p"), {"K": "v"})
        self.assertEqual(data, b"POST /p/x HTTP/1.1\r\nHost: h:1\r\nK: v\r\nContent-Type: application/json"
                         b'\r\nContent-Length: 14\r\n\r\n{"a":"\\u00e9"}')
        self.assertEqual(Request("GET", "/x").encode(Address.parse("h:1"), {}),
                         b"GET /x HTTP/1.1\r\nHost: h:1\r\n\r\n")

    def test_arguments(self):
        for wrong in [-1], ["a"], [True], [1.5]:
            with self.assertRaises(errors.InvalidArgumentError, msg=wrong):
                create(wrong, "", {})
        self.assertEqual(generate("s", 5, {"seed": 2**64 - 1, "logit_bias": {7: 1.0}}).body,
                         {"max_tokens": 5, "seed": -1, "logit_bias": {"7": 1.0}, "stream": True})
        for wrong in -1, 2**64:
            with self.assertRaises(errors.InvalidArgumentError):
                generate("s", 5, {"seed": wrong})
        self.assertEqual(of_session("a/../b?", "fork"), "/v1/sessions/a%2F..%2Fb%3F/fork")


if __name__ == "__main__":
    unittest.main()
