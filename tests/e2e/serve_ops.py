"""serve_ops.py KAKEYA FOLDER DASHBOARD - what whoever operates a server relies on."""

import contextlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time

from serving import LIMIT, Server, run_tests

KAKEYA, FOLDER, DASHBOARD = sys.argv[1:4]
CHAT = "/v1/chat/completions"
GRPC = "KK_GRPC_MODULE" in os.environ
USER = [{"role": "user", "content": "Write a function that adds two numbers."}]

# Names that dashboards made for other servers look for, beside our own.
NAMES = """prompt_tokens_total generation_tokens_total num_requests_running num_requests_waiting
kv_cache_usage_perc prefix_cache_queries_total prefix_cache_hits_total time_to_first_token_seconds
inter_token_latency_seconds e2e_request_latency_seconds request_success_total
spec_decode_num_drafts_total spec_decode_num_draft_tokens_total
spec_decode_num_accepted_tokens_total spec_decode_num_accepted_tokens_per_pos_total session_count
session_kv_bytes kv_evicted_tokens_total kv_restored_tokens_total""".split()


def write(name, text):
    path = os.path.join(FOLDER, name)
    with open(path + ".new", "w", encoding="utf-8") as f:
        f.write(text)
    os.rename(path + ".new", path)
    return path


class JsonServer(Server):
    """A server whose log is JSON, read here."""

    def records(self):
        return [json.loads(line) for line in self.lines]

    def _read(self):
        for line in self.process.stderr:
            with self.changed:
                self.lines.append(line.rstrip("\n"))
                said = json.loads(line).get("message", "")
                found = re.search(r"listening on https?://.*:(\d+)$", said)
                self.port = int(found.group(1)) if found else self.port
                self.ready = self.ready or said.startswith("ready:")
                self.changed.notify_all()
        with self.changed:
            self.changed.notify_all()


def until(what, seconds=LIMIT):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it does not come about"
        time.sleep(0.02)


# ---- the config file ------------------------------------------------------------------------


def test_config():
    """Options of the file count; those of the command line win."""
    path = write("good.conf", '# for a test\r\nalias = "from the file"\nhttp = 127.0.0.1:9\n'
                              "verbose = yes\nthink = off\nparallel = 3\nctx-size=512\n")
    with Server(KAKEYA, "--config", path) as s:  # --port 0 of the command line wins over http
        assert s.port != 9
        props = s.get("/props")
        assert (props["model_alias"], props["total_slots"], props["n_ctx"]) == \
            ("from the file", 3, 512), props
        until(lambda: any("GET /props: 200" in line for line in s.lines))
    with Server(KAKEYA, f"--config={path}", "-a", "given", "-np", "2") as s:
        props = s.get("/props")
        assert (props["model_alias"], props["total_slots"]) == ("given", 2), props


# ---- the log --------------------------------------------------------------------------------


def request_ids(s):
    """Answers carry an id: the client's where a log can take it, else one that was drawn."""
    ids = []
    for given in "trace-1:a/b+c=", None, "with blanks", "x" * 129, 'quote"', "x" * 128:
        headers = {"X-Request-Id": given} if given else {}
        _, got, _ = s.ask("GET", "/health", None, headers)
        ids.append(got["X-Request-Id"])
        kept = given in ("trace-1:a/b+c=", "x" * 128)
        assert (ids[-1] == given) == kept, (given, ids[-1])
        assert kept or re.fullmatch("req-[0-9a-f]{24}", ids[-1]), ids
    assert len(set(ids)) == len(ids)
    assert s.ask("GET", "/nothing")[1]["X-Request-Id"].startswith("req-")


def test_log():
    secret, marker = "nobody may read this", "trace-of-the-chat"
    with JsonServer(KAKEYA, "--log", "json", "-v") as s:
        request_ids(s)
        body = dict(messages=[{"role": "user", "content": secret}], max_tokens=5)
        status, _, answer = s.ask("POST", CHAT, body, {"X-Request-Id": marker})
        assert status == 200
        usage = json.loads(answer)["usage"]
        made = s.post("/v1/sessions", {})
        s.post(f"/v1/sessions/{made['id']}/append", {"text": "def add("})
        s.post(f"/v1/sessions/{made['id']}/generate", {"max_tokens": 4})
        s.ask("GET", "/nothing")
        until(lambda: sum(r["event"] == "request" for r in s.records()) >= 11)
    for r in s.records():
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", r["time"]), r
        assert r["level"] in ("info", "warning") and r["event"] in ("message", "request"), r
    text = "\n".join(s.lines)
    assert secret not in text and made["id"] not in text
    (chat,) = [r for r in s.records() if r.get("request_id") == marker]
    assert (chat["method"], chat["path"], chat["status"], chat["client"]) == \
        ("POST", CHAT, 200, "127.0.0.1"), chat
    assert chat["seconds"] > 0 and chat["completion_tokens"] == usage["completion_tokens"]
    assert chat["prompt_tokens"] == usage["prompt_tokens"]
    generated = [r for r in s.records() if r.get("completion_tokens") == 4]
    assert len(generated) == 1 and generated[0]["prompt_tokens"] > 0, generated
    assert [r["path"] for r in s.records() if r.get("status") == 404] == ["-", "-"]


def test_log_content():
    """Asked for, what was said is in the log."""
    with JsonServer(KAKEYA, "--log", "json", "-v", "--log-content") as s:
        body = dict(messages=[{"role": "user", "content": "say it"}], max_tokens=5, temperature=0)
        whole = s.chat(**body)["choices"][0]["message"]["content"]
        s.stream(CHAT, body)
        until(lambda: sum(r["event"] == "request" for r in s.records()) >= 2)
        first, second = [r for r in s.records() if r["event"] == "request"]
        assert json.loads(first["request"])["messages"][0]["content"] == "say it"
        assert json.loads(first["response"])["choices"][0]["message"]["content"] == whole
        assert "data: [DONE]" in second["response"]


# ---- keys and certificates ------------------------------------------------------------------


def with_key(s, key):
    return s.ask("GET", "/v1/models", None, {"Authorization": f"Bearer {key}"})[0]


def hang_up(s, words):
    """SIGHUP, and the line that comes of it."""
    s.process.send_signal(signal.SIGHUP)
    until(lambda: any(words in line for line in s.lines))


def test_reload_keys():
    path = write("keys", "sk-one\n")
    with Server(KAKEYA, "--api-key-file", path) as s:
        assert (with_key(s, "sk-one"), with_key(s, "sk-two")) == (200, 401)
        write("keys", "sk-two\nsk-three\n")
        assert with_key(s, "sk-one") == 200  # nobody asked yet
        hang_up(s, "read again: keys")
        assert (with_key(s, "sk-one"), with_key(s, "sk-two"), with_key(s, "sk-three")) == \
            (401, 200, 200)
        write("keys", "# all gone\n")
        hang_up(s, "the keys stay as they were")
        assert (with_key(s, "sk-two"), with_key(s, "")) == (200, 401)
        _, _, text = s.ask("GET", "/metrics", None, {"Authorization": "Bearer sk-two"})
        assert b'kakeya_reloads_total{result="done"} 1\n' in text
        assert b'kakeya_reloads_total{result="failed"} 1\n' in text


def certificate(name):
    cert, key = (os.path.join(FOLDER, f"{name}.{part}") for part in ("cert", "key"))
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", cert,
                    "-days", "2", "-subj", f"/CN={name}"], check=True, capture_output=True)
    return cert, key


def test_reload_certificate():
    """New connections get the new certificate; one that is open goes on with the old."""
    try:
        first, second = certificate("one"), certificate("two")
    except FileNotFoundError:
        print("openssl is not there: certificates are not tried")
        return
    here = [os.path.join(FOLDER, name) for name in ("live.cert", "live.key")]
    context = ssl._create_unverified_context()

    def put(pair):
        for source, target in zip(pair, here):
            with open(source, encoding="ascii") as f:
                write(os.path.basename(target), f.read())

    def connect():
        return context.wrap_socket(socket.create_connection(("127.0.0.1", s.port), LIMIT))

    def health(c):
        c.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b""
        while b"ok" not in answer:  # the head and the body may come one after the other
            part = c.recv(4096)
            assert part, answer
            answer += part
        return answer.split(b"\r\n")[0]

    def shown(c):
        return ssl.DER_cert_to_PEM_cert(c.getpeercert(True)).strip()

    put(first)
    with Server(KAKEYA, "--tls-cert", here[0], "--tls-key", here[1]) as s:
        old = connect()
        before = shown(old)
        assert health(old) == b"HTTP/1.1 200 OK"
        put(second)
        hang_up(s, "certificate")
        with connect() as fresh:
            assert shown(fresh) != before and health(fresh) == b"HTTP/1.1 200 OK"
            with open(second[0], encoding="ascii") as f:
                assert shown(fresh) == f.read().strip()
        assert health(old) == b"HTTP/1.1 200 OK"
        old.close()
        time.sleep(1.5)  # the sweep takes the old one away
        write("live.cert", "no certificate\n")
        hang_up(s, "the certificate stays as it was")
        with connect() as again:
            assert shown(again) != before and health(again) == b"HTTP/1.1 200 OK"


def test_exchanges_beside_old_connections():
    """Certificates are exchanged again while connections with each of those before are open."""
    try:
        pairs = [certificate(name) for name in ("a", "b", "c", "d")]
    except FileNotFoundError:
        print("openssl is not there: certificates are not tried")
        return
    here = [os.path.join(FOLDER, name) for name in ("again.cert", "again.key")]
    context = ssl._create_unverified_context()

    def put(pair):
        for source, target in zip(pair, here):
            with open(source, encoding="ascii") as f:
                write(os.path.basename(target), f.read())

    def shown(c):
        return ssl.DER_cert_to_PEM_cert(c.getpeercert(True)).strip()

    def answers(c):
        c.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        return c.recv(4096).startswith(b"HTTP/1.1 200")

    put(pairs[0])
    with Server(KAKEYA, "--tls-cert", here[0], "--tls-key", here[1]) as s:
        held = []
        for i, pair in enumerate(pairs):
            if i > 0:
                put(pair)
                s.process.send_signal(signal.SIGHUP)
                until(lambda n=i: sum("certificate" in line for line in s.lines) == n)
                assert "read again" in s.lines[-1], s.lines
            held.append(context.wrap_socket(socket.create_connection(("127.0.0.1", s.port),
                                                                     LIMIT)))
            assert answers(held[-1])
            with open(pair[0], encoding="ascii") as f:
                assert shown(held[-1]) == f.read().strip()
        assert len({shown(c) for c in held}) == 4
        time.sleep(1.5)  # a sweep takes none of them away
        for c in held:
            c.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"HTTP/1.1 200" in c.recv(4096) + c.recv(4096)
            c.close()


# ---- the service manager --------------------------------------------------------------------


def manager(name):
    """A socket as systemd's."""
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    s.bind("\0" + name[1:] if name[0] == "@" else name)
    s.settimeout(LIMIT)
    return s


def told(s, first, seen):
    """Reads datagrams until one begins with these words; others are only remembered."""
    while True:
        said = s.recv(4096).decode().split("\n")
        seen.append(said[0])
        if said[0] == first:
            return said


def test_notify():
    """READY, RELOADING and READY again, WATCHDOG, STOPPING, in that order."""
    for name in os.path.join(FOLDER, "notify"), f"@kakeya-test-{os.getpid()}":
        with manager(name) as m:
            os.environ.update(NOTIFY_SOCKET=name, WATCHDOG_USEC="400000")
            try:
                server = Server(KAKEYA)
            finally:
                del os.environ["NOTIFY_SOCKET"], os.environ["WATCHDOG_USEC"]
            with server as s:
                seen = []
                told(m, "READY=1", seen)
                assert s.get("/health") == {"status": "ok"}
                for _ in range(3):
                    told(m, "WATCHDOG=1", seen)
                s.process.send_signal(signal.SIGHUP)
                said = told(m, "RELOADING=1", seen)
                assert said[1].startswith("MONOTONIC_USEC="), said
                assert abs(int(said[1][15:]) / 1e6 - time.monotonic()) < LIMIT
                told(m, "READY=1", seen)
                s.terminate()
                told(m, "STOPPING=1", seen)
            assert [x for x in seen if x != "WATCHDOG=1"] == \
                ["READY=1", "RELOADING=1", "READY=1", "STOPPING=1"], seen


def test_ended_while_it_loads():
    """Whoever asks a server to end that still loads does not wait until it has loaded."""
    for ask in signal.SIGTERM, signal.SIGINT:
        s = Server(KAKEYA, "--synthetic", "26b-a4b:q4_0:1")
        s.wait(lambda s: s.port)
        s.ending = True
        s.process.send_signal(ask)
        s.__exit__(None)
        assert not s.ready and len(s.lines) == 1, s.lines


def test_slow_save():
    """While a session is saved to a disk that takes its time, the watchdog is fed, and requests
    are answered.  A FIFO in the place of its file is as slow as one likes."""
    name, state = os.path.join(FOLDER, "notify-save"), os.path.join(FOLDER, "slow")
    with manager(name) as m:
        os.environ.update(NOTIFY_SOCKET=name, WATCHDOG_USEC="400000")
        try:
            server = Server(KAKEYA, "--state", state, "--idle-time", "2")
        finally:
            del os.environ["NOTIFY_SOCKET"], os.environ["WATCHDOG_USEC"]
        with server as s:
            a = s.post("/v1/sessions", {})["id"]
            file = os.path.join(state, a + ".kv")
            os.mkfifo(file)
            s.post(f"/v1/sessions/{a}/append", {"text": "def add("})
            time.sleep(4)  # it has been idle, and is being written
            assert s.get(f"/v1/sessions/{a}")["busy"]
            m.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while m.recv(4096):  # what was told until now
                    pass
            m.settimeout(LIMIT)
            seen = []
            for _ in range(5):
                told(m, "WATCHDOG=1", seen)
            assert s.get("/health") and s.get(f"/v1/sessions/{a}")["busy"]
            with open(file, "rb") as f:
                assert f.read()
            until(lambda: not s.get(f"/v1/sessions/{a}")["busy"])
            assert not s.get(f"/v1/sessions/{a}")["resident"]
            os.unlink(file)


# ---- metrics --------------------------------------------------------------------------------


def test_open_doors():
    """A server that others reach and that has no keys says so, of each port."""
    def warnings(*args):
        with Server(KAKEYA, *args) as s:
            return sum("there are no keys" in line for line in s.lines)
    keys = write("door.keys", "secret\n")
    assert warnings() == 0
    assert warnings("--host", "0.0.0.0") == 1
    assert warnings("--host", "0.0.0.0", "--api-key-file", keys) == 0
    assert warnings("--host", "localhost") == 0
    if GRPC:
        assert warnings("--grpc", "0.0.0.0:0") == 1
        assert warnings("--host", "0.0.0.0", "--grpc-port", "0") == 2


def test_metrics():
    """All names are there, in the text's own form; the counters move as they should."""
    cache = ("--kv-sliding", "restored", "--kv-full", "restored")
    with Server(KAKEYA, *cache) as s:
        s.post("/v1/completions", dict(prompt="def add(a, b):\n" * 40, max_tokens=60,
                                       temperature=0))
        made = s.post("/v1/sessions", {})["id"]
        s.post(f"/v1/sessions/{made}/append", {"text": "def add(a, b):\n" * 40})
        middle = s.metrics()
        generated = s.post(f"/v1/sessions/{made}/generate",
                           {"max_tokens": 130, "temperature": 0, "ignore_eos": True})
        m = s.metrics()
        _, _, text = s.ask("GET", "/metrics")
        types = dict(re.findall(r"^# TYPE kakeya_(\S+) (\S+)$", text.decode(), re.M))
        for name in NAMES:
            assert name in types, name
        for name, kind in types.items():
            assert (kind == "counter") == name.endswith("_total"), (name, kind)
        assert m["kv_evicted_tokens_total"] > middle["kv_evicted_tokens_total"] > 100, m
        assert m["kv_restored_tokens_total"] > middle["kv_restored_tokens_total"] > 100
        assert 0 < m["kv_cache_usage_perc"] < 1 and m["session_kv_bytes"] > 0
        per = [m[f'spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}}']
               for i in range(31)]
        assert sum(per) == m["spec_decode_num_accepted_tokens_total"] > 0, per
        assert per == sorted(per, reverse=True), per
        assert generated["accepted_tokens"] > 0, generated
        dashboard(text.decode())


def expressions(panel):
    for inner in panel.get("panels", []):
        yield from expressions(inner)
    for target in panel.get("targets", []):
        yield target["expr"]


def dashboard(text):
    """Whatever the dashboard asks for is something the server says."""
    with open(DASHBOARD, encoding="utf-8") as f:
        board = json.load(f)
    series = set(re.findall(r"^(kakeya_[a-z0-9_]+)", text, re.M))
    labels = set(re.findall(r'[{,]([a-z_]+)="', text))
    asked = [e for panel in board["panels"] for e in expressions(panel)]
    assert len(asked) > 15, asked
    for e in asked:
        names = re.findall(r"kakeya_[a-z0-9_]+", e)
        assert names and set(names) <= series, (e, set(names) - series)
        used = set(re.findall(r"\bby \(([^)]*)\)", e))
        used = {name.strip() for group in used for name in group.split(",")}
        assert used <= labels, (e, used - labels)
    ids = [p["id"] for p in board["panels"]]
    assert len(ids) == len(set(ids))


run_tests([test_config, test_log, test_log_content, test_reload_keys, test_reload_certificate,
           test_exchanges_beside_old_connections, test_notify, test_ended_while_it_loads,
           test_slow_save, test_open_doors, test_metrics])
