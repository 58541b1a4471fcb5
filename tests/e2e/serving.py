"""serving.py - starts `kakeya serve` for a test and talks to it with nothing but the standard
library."""

import http.client
import json
import re
import signal
import socket
import subprocess
import threading
import time

LIMIT = 120  # seconds that anything may take


class Server:
    """A running server; its lines on stderr are kept."""

    def __init__(self, kakeya, *args):
        self.process = subprocess.Popen(
            [kakeya, "serve", "--port", "0", "-t", "1", *args],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.lines, self.port, self.ready, self.ending = [], 0, False, False
        self.grpc_port = 0
        self.killed = False
        self.changed = threading.Condition()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stderr:
            with self.changed:
                self.lines.append(line.rstrip("\n"))
                found = re.search(r"listening on https?://.*:(\d+)$", self.lines[-1])
                self.port = int(found.group(1)) if found else self.port
                found = re.search(r"gRPC on .*:(\d+)", self.lines[-1])
                self.grpc_port = int(found.group(1)) if found else self.grpc_port
                self.ready = self.ready or "serve: ready:" in line
                self.changed.notify_all()
        with self.changed:
            self.changed.notify_all()

    def wait(self, what):
        end = time.monotonic() + LIMIT
        with self.changed:
            while not what(self):
                if self.process.poll() is not None or time.monotonic() > end:
                    self.process.kill()
                    raise AssertionError(f"the server is not there: {self.lines}")
                self.changed.wait(0.2)
        return self

    def __enter__(self):
        return self.wait(lambda s: s.ready)

    def __exit__(self, *exc):
        if not self.ending:
            self.terminate()
        try:
            code = self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError("the server does not end") from None
        self.reader.join(10)
        if exc[0] is None:
            assert code == (-signal.SIGKILL if self.killed else 0), f"exit {code}: {self.lines}"

    def terminate(self):
        """Asks it to end; a second time would end it at once."""
        self.ending = True
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def kill(self):
        """kill -9: nothing is asked of it any more."""
        self.killed = self.ending = True
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(LIMIT)

    # ---- requests

    def ask(self, method, path, body=None, headers=None):
        """Status, headers and body of one exchange."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        try:
            if isinstance(body, dict):
                body = json.dumps(body)
            c.request(method, path, body, headers or {},
                      encode_chunked="Transfer-Encoding" in (headers or {}))
            r = c.getresponse()
            return r.status, dict(r.getheaders()), r.read()
        finally:
            c.close()

    def get(self, path):
        status, _, body = self.ask("GET", path)
        assert status == 200, (path, status, body, self.lines[-5:])
        return json.loads(body)

    def post(self, path, body):
        status, _, answer = self.ask("POST", path, body)
        assert status == 200, (path, status, answer, self.lines[-5:])
        return json.loads(answer)

    def refused(self, path, body, status):
        """The error of a request that is refused with this status."""
        got, headers, answer = self.ask("POST", path, body)
        assert got == status, (path, body, got, answer)
        error = json.loads(answer)["error"]
        assert set(error) >= {"message", "type", "code", "param"}, error
        return error, headers

    def chat(self, **body):
        return self.post("/v1/chat/completions", body)

    def stream(self, path, body):
        """The events of a stream; comments are left out."""
        status, headers, answer = self.ask("POST", path, dict(body, stream=True))
        assert status == 200, answer
        assert headers["Content-Type"] == "text/event-stream", headers
        answer.decode("utf-8")  # no character is cut anywhere
        events = [e[6:] for e in answer.split(b"\n\n") if e.startswith(b"data: ")]
        assert events[-1] == b"[DONE]", events[-1:]
        return [json.loads(e) for e in events[:-1]]

    def metrics(self):
        _, _, body = self.ask("GET", "/metrics")
        found = re.findall(r"^(kakeya_\S+) (\S+)$", body.decode(), re.M)
        return {name[len("kakeya_"):]: float(value) for name, value in found}

    def finished(self):
        """How generations ended, once none runs."""
        m = self.until(lambda m: m["num_requests_running"] + m["num_requests_waiting"] == 0)
        name = 'request_success_total{finished_reason="'
        return {k[len(name):-2]: v for k, v in m.items() if k.startswith(name) and v > 0}

    def until(self, what, seconds=LIMIT):
        """Waits until the metrics are so; returns them."""
        end = time.monotonic() + seconds
        while True:
            m = self.metrics()
            if what(m):
                return m
            assert time.monotonic() < end, m
            time.sleep(0.02)

    def connect(self, receive=0):
        s = socket.socket()
        if receive:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        s.settimeout(LIMIT)
        s.connect(("127.0.0.1", self.port))
        return s

    def leave(self, path, body, after):
        """Reads a stream until these bytes have come, and leaves."""
        one, got = self.send(path, body), b""
        while after not in got:
            piece = one.recv(1 << 16)
            assert piece, got
            got += piece
        one.close()

    def send(self, path, body, receive=0):
        """Sends a request and reads nothing; the socket."""
        data = json.dumps(body).encode()
        s = self.connect(receive)
        s.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" %
                  (path.encode(), len(data), data))
        return s


def content(events):
    return "".join(c["delta"].get("content") or "" for e in events for c in e["choices"])


def run_tests(tests, *args):
    """Runs them in order; exits 1 after telling of those that failed."""
    failed = 0
    for test in tests:
        start = time.monotonic()
        try:
            test(*args)
            print(f"ok {test.__name__} ({time.monotonic() - start:.1f} s)", flush=True)
        except Exception as e:  # noqa: BLE001 - told, and counted
            failed += 1
            import traceback
            traceback.print_exc()
            print(f"FAILED {test.__name__}: {e}", flush=True)
    raise SystemExit(failed > 0)
