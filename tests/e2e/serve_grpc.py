"""serve_grpc.py KAKEYA FOLDER PROTO - sessions over gRPC, with stubs generated from the public .proto.
The shipped model answers; what it says is not judged, only that it is what the program itself says."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import \
    ProtoReflectionDescriptorDatabase
from grpc_tools import protoc

from serving import LIMIT, Server, run_tests

KAKEYA, FOLDER, PROTO = sys.argv[1:4]


def generate_stubs(source, name):
    """The two modules that protoc makes of a .proto."""
    out = os.path.join(FOLDER, "stubs")
    os.makedirs(out, exist_ok=True)
    code = protoc.main(["protoc", f"-I{source}", f"--python_out={out}", f"--grpc_python_out={out}",
                        name])
    assert code == 0, name
    if out not in sys.path:
        sys.path.insert(0, out)
    module = name.removesuffix(".proto").replace("/", ".")
    return (__import__(module + "_pb2", fromlist=["x"]),
            __import__(module + "_pb2_grpc", fromlist=["x"]))


pb, rpc = generate_stubs(PROTO, "kakeya/v1/runtime.proto")
TEXT = "def main():"
NAME = "kakeya.v1.RuntimeService"


def start(*args):
    return Server(KAKEYA, "--grpc-port", "0", *args)


class Client:
    """A channel and the calls, each with a deadline, so that nothing waits for ever."""

    def __init__(self, server, credentials=None, key=None):
        address = f"localhost:{server.grpc_port}"
        options = [("grpc.enable_retries", 0)]
        self.channel = grpc.secure_channel(address, credentials, options) if credentials else \
            grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options)
        self.stub = rpc.RuntimeServiceStub(self.channel)
        self.more = {"timeout": LIMIT}
        if key:
            self.more["metadata"] = [("authorization", "Bearer " + key)]

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.channel.close()

    def create(self, **what):
        return self.stub.CreateSession(pb.CreateSessionRequest(**what), **self.more).session_id

    def append(self, session, tokens):
        return self.stub.AppendTokens(pb.AppendTokensRequest(session_id=session, token_ids=tokens),
                                      **self.more).history_length

    def say(self, session, text):
        return self.stub.AppendText(pb.AppendTextRequest(session_id=session, text=text), **self.more)

    def stream(self, session, n, **what):
        return self.stub.Generate(pb.GenerateRequest(session_id=session, max_tokens=n, **what),
                                  **self.more)

    def generate(self, session, n, **what):
        """Tokens, text and the last frame; the order of the frames is checked."""
        frames = list(self.stream(session, n, **what))
        kinds = [f.WhichOneof("payload") for f in frames]
        assert kinds[-1] == "done" and kinds.count("done") == 1, kinds
        assert kinds.count("truncated") <= (kinds[0] == "truncated"), kinds
        tokens = [f.token_id for f in frames if f.WhichOneof("payload") == "token_id"]
        assert frames[-1].done.generated_token_count == len(tokens)
        return tokens, "".join(f.text for f in frames), frames[-1].done

    def info(self, session):
        return self.stub.GetSessionInfo(pb.GetSessionInfoRequest(session_id=session), **self.more)

    def fork(self, session, **at):
        return self.stub.ForkSession(pb.ForkSessionRequest(session_id=session, **at), **self.more)

    def history(self, session):
        return list(self.stub.GetHistory(pb.GetHistoryRequest(session_id=session),
                                         **self.more).token_ids)

    def list(self):
        return self.stub.ListSessions(pb.ListSessionsRequest(), **self.more).sessions

    def close(self, session):
        return self.stub.CloseSession(pb.CloseSessionRequest(session_id=session),
                                      **self.more).final_history_length

    def started(self, text=TEXT, **what):
        """A session that has read a text."""
        session = self.create(**what)
        self.say(session, text)
        return session


@contextlib.contextmanager
def served(*args):
    with start(*args) as s, Client(s) as c:
        yield s, c


@contextlib.contextmanager
def refused(code, *words):
    """What is inside fails with this code, and a message that has these words."""
    try:
        yield
    except grpc.RpcError as e:
        assert e.code() == code, (e.code(), e.details())
        for word in words:
            assert word in e.details(), (word, e.details())
        return
    raise AssertionError(f"not refused with {code}")


def run(*args):
    """What `kakeya run` says to the same."""
    done = subprocess.run([KAKEYA, "run", "-t", "1", "--json", "-p", TEXT, *args], check=True,
                          capture_output=True, text=True, timeout=LIMIT)
    return json.loads(done.stdout)


Code = grpc.StatusCode


# ---- what is answered -----------------------------------------------------------------------


def test_as_the_program_says():
    """Tokens, text and logits are those of `kakeya run`, and of HTTP."""
    with served() as (s, c):
        for more, flags in (
                ({}, ["--temp", "0"]),
                (dict(temperature=0.9, seed=7, top_k=40, top_p=0.9),
                 ["--temp", "0.9", "-s", "7", "--top-k", "40", "--top-p", "0.9"])):
            want = run("-n", "64", *flags)
            session = c.started()
            tokens, text, done = c.generate(session, 64, with_text=True, **more)
            assert tokens == want["tokens"] and text == want["text"], (tokens, want)
            assert done.logits_hash == int(want["logits_hash"], 16)
            assert done.stop_reason == pb.STOP_REASON_MAX_TOKENS and done.rounds < 64
            assert done.drafted_tokens >= done.accepted_tokens > 0, "drafting is not on"
            assert done.history_length == c.info(session).history_length
            other = s.post("/v1/completions", dict(
                prompt=TEXT, max_tokens=64, temperature=more.get("temperature", 0),
                seed=more.get("seed", 0), top_k=more.get("top_k", 0), top_p=more.get("top_p", 1)))
            assert other["choices"][0]["text"] == text
            ids = s.post("/tokenize", {"content": TEXT, "add_special": True})["tokens"]
            assert c.history(session) == ids + tokens
            # The same tokens appended in pieces, by number.
            again = c.create(options=pb.SessionOptions(drafting=pb.DRAFTING_NONE))
            assert [c.append(again, ids[:1]), c.append(again, ids[1:]), c.append(again, [])] == \
                [1, len(ids), len(ids)]
            plain, none, plain_done = c.generate(again, 64, **more)
            assert plain == tokens and none == "" and plain_done.drafted_tokens == 0
            assert plain_done.logits_hash == done.logits_hash


def test_sessions():
    with served() as (_, c):
        a = c.started(client_label="a label, " + "ü" * 60)
        first = c.generate(a, 20)[0]
        n = c.info(a).history_length
        assert n == len(c.history(a)) and c.info(a).turns == 1
        # A fork goes on as its origin does, and neither disturbs the other.
        b = c.fork(a)
        assert b.history_length == n and b.session_id != a
        early = c.fork(a, history_length=n - 20).session_id
        turn = c.fork(a, turn=1)
        assert turn.history_length == n
        assert c.generate(early, 20)[0] == first
        more = [c.generate(x, 20)[0] for x in (a, b.session_id)]
        assert more[0] == more[1] == c.generate(turn.session_id, 20)[0]
        assert c.history(a) == c.history(b.session_id)
        info = c.info(a)
        assert info.kv_live_bytes > 0 and 0 <= info.idle_seconds < 60 and not info.busy
        assert info.cache_invariant_inv1_violations == info.cache_invariant_inv2_violations == \
            info.cache_invariant_inv3_violations == 0
        assert info.client_label.startswith("a label, ü") and len(info.client_label.encode()) <= 63
        listed = {x.session_id: x for x in c.list()}
        assert set(listed) == {a, b.session_id, early, turn.session_id}
        assert listed[a].history_length == info.history_length
        for session in listed:
            assert c.close(session) > 0
        assert not c.list()
        for call in c.info, c.close, c.history, c.fork, lambda x: c.append(x, [1]), \
                lambda x: c.say(x, "a"), lambda x: c.generate(x, 1):
            with refused(Code.NOT_FOUND):
                call(a)


def test_options():
    """Every session has a cache of its own: policy, format, context and who drafts."""
    with served() as (_, c):
        text = "\n".join(f"x{i} = {i}" for i in range(200))
        wide = c.started(text)
        narrow = c.started(text, options=pb.SessionOptions(
            kv_format=pb.KV_FORMAT_Q8, full_layers=pb.CACHE_POLICY_WINDOW,
            sliding_layers=pb.CACHE_POLICY_WINDOW, sink=0, window=64, chunk=32, context=2048,
            drafting=pb.DRAFTING_NGRAM))
        got = c.info(narrow).options
        assert (got.kv_format, got.full_layers, got.sink, got.window, got.chunk, got.context,
                got.drafting) == (pb.KV_FORMAT_Q8, pb.CACHE_POLICY_WINDOW, 0, 64, 32, 2048,
                                  pb.DRAFTING_NGRAM)
        assert c.info(narrow).kv_live_bytes < c.info(wide).kv_live_bytes / 2
        assert c.info(wide).options.full_layers == pb.CACHE_POLICY_ALL
        # What a window no longer shows is told before the first token, and only there.
        n = c.info(narrow).history_length
        frames = list(c.stream(narrow, 4))
        assert frames[0].truncated.dropped_token_count == n // 32 * 32 - 64
        assert [f.WhichOneof("payload") for f in frames[1:]] == ["token_id"] * 4 + ["done"]
        assert list(c.stream(wide, 4))[0].WhichOneof("payload") == "token_id"
        small = c.create(options=pb.SessionOptions(context=16))
        c.append(small, [5] * 10)
        tokens, _, done = c.generate(small, 100, ignore_eos=True)
        assert done.stop_reason == pb.STOP_REASON_CONTEXT_FULL and len(tokens) <= 7
        with refused(Code.INVALID_ARGUMENT):
            c.append(small, [5] * 100)


def test_text():
    with served() as (s, c):
        tokens, text, _ = c.generate(c.started(), 64, with_text=True)
        stop = text[len(text) // 2:][:5]
        cut, said, done = c.generate(c.started(), 64, with_text=True, stop=["nowhere", stop])
        assert said == text[:text.index(stop)] and done.stop_reason == pb.STOP_REASON_STOP_TEXT
        assert cut == tokens[:len(cut)]
        _, held, _ = c.generate(c.started(), 3, with_text=True,
                                stop=[c.generate(c.started(), 3, with_text=True)[1] + "!"])
        assert text.startswith(held) and held  # a stop text that began and did not come
        # A token ends it that the client names.
        eos = c.started(eos_token_ids=[tokens[5]])
        ended, _, done = c.generate(eos, 64)
        assert ended == tokens[:tokens.index(tokens[5]) + 1]
        assert done.stop_reason == pb.STOP_REASON_EOS
        assert len(c.generate(c.fork(eos).session_id, 64, ignore_eos=True)[0]) == 64
        # A conversation as HTTP's.
        messages = [{"role": "user", "content": "Write a function that adds two numbers. ü"}]
        chat = c.create()
        c.stub.AppendText(pb.AppendTextRequest(session_id=chat, chat_json=json.dumps(
            {"messages": messages, "add_generation_prompt": True})), **c.more)
        other = s.chat(messages=messages, max_tokens=32, temperature=0)
        assert len(c.history(chat)) == other["usage"]["prompt_tokens"]
        # Any characters in and out, none split.
        text = "Grüße, 你好 \U0001f600\n"
        session = c.started(text * 4)
        hot = list(c.stream(session, 48, temperature=3.0, seed=1, with_text=True, ignore_eos=True))
        "".join(f.text for f in hot).encode("utf-8")


def test_stops_after_a_restart():
    """Ids that end a session are those its client named, also where the vocabulary has no such."""
    state = os.path.join(FOLDER, "state")
    with served("--state", state) as (_, c):
        tokens = c.generate(c.started(), 24)[0]
        session = c.started(eos_token_ids=[2**31 - 2, tokens[5]])
        with refused(Code.INVALID_ARGUMENT, "no token"):
            c.create(eos_token_ids=[2**31 - 1])
    with served("--state", state) as (_, c):
        ended, _, done = c.generate(session, 24)
        assert ended == tokens[:tokens.index(tokens[5]) + 1], (ended, tokens)
        assert done.stop_reason == pb.STOP_REASON_EOS


def test_old_clients():
    """A client that knows the first version of the protocol alone."""
    source = os.path.join(FOLDER, "old")
    os.makedirs(source, exist_ok=True)
    with open(os.path.join(source, "first.proto"), "w", encoding="utf-8") as f:
        f.write(FIRST_VERSION)
    # The same package and names: described in a pool of their own.
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    described = os.path.join(FOLDER, "first.bin")
    assert protoc.main(["protoc", f"-I{source}", f"--descriptor_set_out={described}",
                        "first.proto"]) == 0
    with open(described, "rb") as f:
        files = descriptor_pb2.FileDescriptorSet.FromString(f.read())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(files.file[0])
    old = {name: message_factory.GetMessageClass(
        pool.FindMessageTypeByName("kakeya.v1." + name)) for name in
        [m.name for m in files.file[0].message_type]}

    def call(c, name, what, stream=False):
        kind = c.channel.unary_stream if stream else c.channel.unary_unary
        f = kind(f"/{NAME}/{name}", request_serializer=lambda m: m.SerializeToString(),
                 response_deserializer=old[name + "Response"].FromString)
        return f(old[name + "Request"](**what), timeout=LIMIT)

    with served() as (s, c):
        ids = s.post("/tokenize", {"content": TEXT, "add_special": True})["tokens"]
        want = run("-n", "24", "--temp", "0")["tokens"]
        session = call(c, "CreateSession", dict(client_label="old", eos_token_ids=[1])).session_id
        assert len(session) == len("sess-") + 32 and session.startswith("sess-")
        assert call(c, "AppendTokens", dict(session_id=session,
                                            token_ids=ids)).history_length == len(ids)
        frames = list(call(c, "Generate", dict(session_id=session, max_tokens=24), stream=True))
        assert [f.token_id for f in frames[:-1]] == want
        assert frames[-1].done.generated_token_count == 24
        assert frames[-1].done.stop_reason == 1 and frames[-1].done.total_duration_seconds > 0
        info = call(c, "GetSessionInfo", dict(session_id=session))
        assert info.history_length == len(ids) + 24 and info.kv_live_bytes > 0
        assert info.cache_invariant_inv1_violations == 0 == info.cache_invariant_inv2_violations
        closed = call(c, "CloseSession", dict(session_id=session))
        assert closed.final_history_length == len(ids) + 24
        with refused(Code.NOT_FOUND):
            call(c, "CloseSession", dict(session_id=session))


def test_errors():
    with served("--max-body", "1", "--max-sessions", "3", "-c", "256") as (_, c):
        session = c.create()
        inf = float("inf")
        for code, words, call in (
                (Code.INVALID_ARGUMENT, ["session_id"], lambda: c.info("")),
                (Code.NOT_FOUND, [], lambda: c.info("sess-" + "0" * 32)),
                (Code.NOT_FOUND, [], lambda: c.info(session + "\0")),
                (Code.NOT_FOUND, [], lambda: c.info("x" * 5000)),
                (Code.INVALID_ARGUMENT, [], lambda: c.generate(session, 1)),  # nothing to continue
                (Code.INVALID_ARGUMENT, ["max_tokens"], lambda: c.generate(session, 0)),
                (Code.INVALID_ARGUMENT, ["max_tokens"], lambda: c.generate(session, 2**32 - 1)),
                (Code.INVALID_ARGUMENT, ["temperature"],
                 lambda: c.generate(session, 1, temperature=-1)),
                (Code.INVALID_ARGUMENT, ["temperature"],
                 lambda: c.generate(session, 1, temperature=inf)),
                (Code.INVALID_ARGUMENT, ["top_p"], lambda: c.generate(session, 1, top_p=1.5)),
                (Code.INVALID_ARGUMENT, ["min_p"],
                 lambda: c.generate(session, 1, min_p=float("nan"))),
                (Code.INVALID_ARGUMENT, ["top_k"], lambda: c.generate(session, 1, top_k=2**31)),
                (Code.INVALID_ARGUMENT, ["stop"], lambda: c.generate(session, 1, stop=[""])),
                (Code.INVALID_ARGUMENT, ["stop"], lambda: c.generate(session, 1, stop=["x"] * 17)),
                (Code.INVALID_ARGUMENT, ["token"], lambda: c.append(session, [2**31])),
                (Code.INVALID_ARGUMENT, [], lambda: c.append(session, [10**6])),
                (Code.INVALID_ARGUMENT, [], lambda: c.append(session, [1] * 300)),  # the context
                (Code.INVALID_ARGUMENT, ["text"],
                 lambda: c.stub.AppendText(pb.AppendTextRequest(session_id=session))),
                (Code.INVALID_ARGUMENT, [],
                 lambda: c.stub.AppendText(pb.AppendTextRequest(session_id=session,
                                                                chat_json="{"))),
                (Code.INVALID_ARGUMENT, [], lambda: c.fork(session, history_length=7)),
                (Code.INVALID_ARGUMENT, [], lambda: c.fork(session, history_length=2**40)),
                (Code.INVALID_ARGUMENT, [], lambda: c.fork(session, turn=3)),
                (Code.INVALID_ARGUMENT, ["chunk"],
                 lambda: c.create(options=pb.SessionOptions(chunk=0))),
                (Code.INVALID_ARGUMENT, ["kv_format"],
                 lambda: c.create(options=pb.SessionOptions(kv_format=77))),
                (Code.INVALID_ARGUMENT, [],
                 lambda: c.create(options=pb.SessionOptions(context=2**31))),
                (Code.INVALID_ARGUMENT, ["eos_token_ids"],
                 lambda: c.create(eos_token_ids=range(17))),
                (Code.RESOURCE_EXHAUSTED, [], lambda: c.append(session, [300] * 10**6)),  # 2 MB
                (Code.UNIMPLEMENTED, [],
                 lambda: c.channel.unary_unary(f"/{NAME}/Nothing")(b"", timeout=LIMIT)),
                (Code.UNIMPLEMENTED, [],  # no message of this protocol: so the library has it
                 lambda: c.channel.unary_unary(f"/{NAME}/AppendTokens")(b"\x0a\xff", timeout=LIMIT)),
        ):
            with refused(code, *words):
                call()
        assert c.info(session).history_length == 0 and len(c.list()) == 1
        for _ in range(2):
            c.create()
        with refused(Code.RESOURCE_EXHAUSTED):
            c.create()


# ---- time, cancellation, load ----------------------------------------------------------------


def until(what, seconds=LIMIT):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.01)


def test_cancel_and_deadline():
    with served("-c", "16384") as (_, c):
        session = c.started()
        stream = c.stream(session, 16000, ignore_eos=True)
        for _ in range(20):
            next(stream)
        with refused(Code.ABORTED):  # one call at a time
            c.append(session, [1])
        assert c.info(session).busy
        stream.cancel()
        until(lambda: not c.info(session).busy)
        n = c.info(session).history_length
        assert 20 < n < 12000 and len(c.history(session)) == n
        assert len(c.generate(session, 8, ignore_eos=True)[0]) == 8  # it goes on
        # The client's own deadline, in a generation and while a prompt is read.
        began = time.monotonic()
        with refused(Code.DEADLINE_EXCEEDED):
            list(c.stub.Generate(pb.GenerateRequest(session_id=session, max_tokens=8000,
                                                    ignore_eos=True), timeout=0.3))
        prompt = c.create()
        with refused(Code.DEADLINE_EXCEEDED):
            c.stub.AppendTokens(pb.AppendTokensRequest(session_id=prompt, token_ids=[7] * 16000),
                                timeout=0.2)
        assert time.monotonic() - began < LIMIT / 2
        until(lambda: not any(c.info(x.session_id).busy for x in c.list()))
        assert c.info(prompt).history_length == 0  # it was given up, not read to its end
        # A session that is closed ends what runs in it.
        other = c.started()
        stream = c.stream(other, 16000, ignore_eos=True)
        next(stream)
        c.close(other)
        with refused(Code.CANCELLED):
            list(stream)
    with served("-c", "16384", "--timeout", "1") as (_, c):  # the server's limit
        with refused(Code.DEADLINE_EXCEEDED, "time"):
            c.generate(c.started(), 16000, ignore_eos=True)


def test_sixteen_streams():
    """Sixteen streams at a time say what each says alone, and share forward passes."""
    prompts = [f"def function_{i}(a, b):\n    " for i in range(16)]

    def ask(c, i, out):
        session = c.started(prompts[i])
        tokens, text, done = c.generate(session, 64, with_text=True, ignore_eos=True,
                                        temperature=0.8 if i % 2 else 0, seed=3)
        out[i] = (tokens, text, done.logits_hash)

    alone, together = [None] * 16, [None] * 16
    with served("--parallel", "16") as (s, c):
        for i in range(16):
            ask(c, i, alone)
        before = s.metrics()
        assert before["decode_passes_shared_total"] == 0
        threads = [threading.Thread(target=ask, args=(c, i, together)) for i in range(16)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        m = s.metrics()
    assert together == alone
    assert m["decode_passes_shared_total"] > 10 and m["decode_pass_sessions_most"] >= 4, m


def test_full_queue():
    with served("--parallel", "1", "--queue", "1", "-c", "16384") as (_, c):
        sessions = [c.started() for _ in range(4)]
        held = c.stream(sessions[0], 16000, ignore_eos=True)
        next(held)
        waits = c.stream(sessions[1], 1)
        said = []
        thread = threading.Thread(target=lambda: said.extend(f.WhichOneof("payload")
                                                             for f in waits))
        thread.start()

        def full():
            probe = c.stream(sessions[2], 1)
            try:
                probe.initial_metadata()
                code = probe.code() if probe.done() else None
            except grpc.RpcError as e:
                code = e.code()
            probe.cancel()
            return code == Code.RESOURCE_EXHAUSTED

        until(full)
        assert len(c.list()) == 4  # quick calls are answered meanwhile
        held.cancel()
        thread.join(LIMIT)
        assert said == ["token_id", "done"], said


def test_one_after_another():
    """Who calls again as soon as there is an answer finds the thread free that gave it."""
    with start("--parallel", "1", "--queue", "0") as s, Client(s) as c:
        session = c.started()
        for _ in range(100):
            c.append(session, [5])
            assert c.generate(session, 1)[0]


def test_slow_client():
    """A client that does not read is given up; the thread is free for others long before."""
    with start("-c", "16384", "--parallel", "1", "--stream-buffer", "64", "--spec", "none") as s:
        small = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024),
                 ("grpc.http2.max_frame_size", 16384)]
        with Client(s) as c, grpc.insecure_channel(f"127.0.0.1:{s.grpc_port}", small) as slow:
            session, other = c.started(), c.started()
            stream = rpc.RuntimeServiceStub(slow).Generate(
                pb.GenerateRequest(session_id=session, max_tokens=16000, ignore_eos=True,
                                   with_text=True), timeout=LIMIT)
            next(stream)
            assert len(c.generate(other, 1)[0]) == 1
            assert not c.info(session).busy and c.info(session).history_length < 16000
            with refused(Code.CANCELLED):
                for _ in stream:
                    pass


# ---- keys, TLS, health, reflection, the end --------------------------------------------------


def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def header(name, value):
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


class Holder:
    """A connection on which many messages begin and none ends; HTTP/2 as it lies on the wire."""

    DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, UPDATE = 0, 1, 3, 4, 6, 7, 8

    def __init__(self, port, streams, size):
        self.size, self.connection, self.initial, self.buffer = size, 65535, 65535, b""
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=LIMIT)
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(self.SETTINGS, 0, 0))
        head = b"".join(header(*h) for h in (
            (b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"x"),
            (b":path", b"/kakeya.v1.RuntimeService/AppendText"), (b"te", b"trailers"),
            (b"content-type", b"application/grpc")))
        self.window, self.sent = {}, {}
        for stream in range(1, 2 * streams, 2):
            self.socket.sendall(frame(self.HEADERS, 4, stream, head))
            self.window[stream], self.sent[stream] = self.initial, 0

    def heard(self, kind, flags, stream, payload):
        if kind == self.UPDATE and stream == 0:
            self.connection += int.from_bytes(payload, "big")
        elif kind == self.UPDATE and stream in self.window:
            self.window[stream] += int.from_bytes(payload, "big")
        elif kind == self.SETTINGS and not flags & 1:
            for at in range(0, len(payload), 6):
                value = int.from_bytes(payload[at + 2:at + 6], "big")
                if payload[at:at + 2] == b"\0\4":
                    self.window = {k: w + value - self.initial for k, w in self.window.items()}
                    self.initial = value
            self.socket.sendall(frame(self.SETTINGS, 1, 0))
        elif kind == self.PING and not flags & 1:
            self.socket.sendall(frame(self.PING, 1, 0, payload))
        elif kind in (self.RESET, self.HEADERS):
            self.window.pop(stream, None)

    def listen(self):
        self.socket.settimeout(0.01)
        with contextlib.suppress(TimeoutError):
            piece = self.socket.recv(1 << 16)
            if not piece:
                raise ConnectionError
            self.buffer += piece
        self.socket.settimeout(LIMIT)
        while len(self.buffer) >= 9 + (n := int.from_bytes(self.buffer[:3], "big")):
            f, self.buffer = self.buffer[:9 + n], self.buffer[9 + n:]
            self.heard(f[3], f[4], int.from_bytes(f[5:9], "big"), f[9:])

    def push(self):
        """All that the windows let through; whether there was anything."""
        any_sent = False
        for stream in list(self.window):
            n = min(16000, self.window[stream], self.connection, self.size - self.sent[stream])
            if n < 6:
                continue
            begin = b"" if self.sent[stream] else b"\0" + (self.size + 9).to_bytes(4, "big")
            self.socket.sendall(frame(self.DATA, 0, stream, begin + bytes(n - len(begin))))
            self.window[stream] -= n
            self.connection -= n
            self.sent[stream] += n
            any_sent = True
        return any_sent


def test_held_messages():
    """Messages that never end are not held without a limit, and keep nobody from being served."""
    with start("--max-body", "1") as s:
        holders = [Holder(s.grpc_port, 60, 900000) for _ in range(12)]
        open_ones, idle = list(holders), 0
        while open_ones and idle < 20:
            any_sent = False
            for one in list(open_ones):
                try:
                    any_sent |= one.push()
                    one.listen()
                except OSError:
                    open_ones.remove(one)
            idle = 0 if any_sent else idle + 1
        taken = sum(sum(one.sent.values()) for one in holders)
        assert taken < 0.8 * 12 * 60 * 900000, taken
        with Client(s) as c:
            assert c.started()
        for one in holders:
            one.socket.close()


def test_keys():
    path = os.path.join(FOLDER, "keys")
    with open(path, "w", encoding="utf-8") as f:
        f.write("# ours\nsecret-1\nsecret-2\n")
    with start("--api-key-file", path) as s:
        for key in None, "secret", "secret-11", "# ours", "x" * 5000:
            with Client(s, key=key) as c:
                with refused(Code.UNAUTHENTICATED, "API key"):
                    c.create()
                with refused(Code.UNAUTHENTICATED):
                    c.generate("sess-x", 1)
        with Client(s, key="secret-2") as c:
            assert c.generate(c.started(), 2)[0]
            health = health_pb2_grpc.HealthStub(c.channel)  # asks for no key, as HTTP's
            assert health.Check(health_pb2.HealthCheckRequest()).status == 1


def test_tls():
    cert, key = os.path.join(FOLDER, "cert.pem"), os.path.join(FOLDER, "key.pem")
    made = subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                           "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
                           "-keyout", key, "-out", cert], capture_output=True, check=False) \
        if os.path.exists("/usr/bin/openssl") else None
    if made is None or made.returncode != 0:
        print("not run: no openssl to make a certificate with")
        return
    with open(cert, "rb") as f:
        trusted = grpc.ssl_channel_credentials(root_certificates=f.read())
    with start("--tls-cert", cert, "--tls-key", key) as s:
        with Client(s, credentials=trusted) as c:
            assert len(c.generate(c.started(), 4)[0]) == 4
        for other in None, grpc.ssl_channel_credentials():  # plain, and who trusts others
            with Client(s, credentials=other) as c:
                with refused(Code.UNAVAILABLE):
                    c.create()
        first, calls = Client(s, credentials=trusted), []
        with first as before:  # its connection keeps the certificate it began with
            session = before.started()
            subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                            "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
                            "-keyout", key, "-out", cert], capture_output=True, check=True)
            with open(cert, "rb") as f:
                renewed = grpc.ssl_channel_credentials(root_certificates=f.read())
            for _ in range(3):  # also beside those before
                s.process.send_signal(signal.SIGHUP)
                s.wait(lambda s, n=len(calls): sum("read again" in l for l in s.lines) > n)
                with Client(s, credentials=renewed) as c:
                    calls.append(c.generate(c.started(), 4)[0])
                with Client(s, credentials=trusted) as c, refused(Code.UNAVAILABLE):
                    c.create()
                assert before.generate(session, 4)[0]
            with open(cert, "w", encoding="utf-8") as f:
                f.write("no certificate\n")
            s.process.send_signal(signal.SIGHUP)
            s.wait(lambda s: any("stays as it was" in l for l in s.lines))
            with Client(s, credentials=renewed) as c:
                assert c.generate(c.started(), 4)[0] == calls[0]
    with open(os.path.join(FOLDER, "other.pem"), "w", encoding="utf-8") as f:
        f.write("no certificate\n")
    bad = subprocess.run([KAKEYA, "serve", "--port", "0", "--grpc-port", "0", "--tls-key", key,
                          "--tls-cert", f.name], capture_output=True, text=True, timeout=LIMIT,
                         check=False)
    assert bad.returncode == 1 and bad.stderr, bad


def test_health_and_reflection():
    with served() as (_, c):
        health = health_pb2_grpc.HealthStub(c.channel)
        for name in "", NAME:
            assert health.Check(health_pb2.HealthCheckRequest(service=name)).status == \
                health_pb2.HealthCheckResponse.SERVING
        with refused(Code.NOT_FOUND):
            health.Check(health_pb2.HealthCheckRequest(service="none"))
        watch = health.Watch(health_pb2.HealthCheckRequest(service=NAME), timeout=LIMIT)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()
        known = ProtoReflectionDescriptorDatabase(c.channel)
        assert {NAME, "grpc.health.v1.Health"} <= set(known.get_services()), known.get_services()
        described = known.FindFileContainingSymbol(NAME)
        assert {m.name for m in described.service[0].method} >= {"Generate", "AppendText"}
        assert {m.name for m in described.message_type} == set(pb.DESCRIPTOR.message_types_by_name)


def test_port_in_use():
    with start() as s:
        other = subprocess.run([KAKEYA, "serve", "--port", "0", "--grpc-port", str(s.grpc_port)],
                               capture_output=True, text=True, timeout=LIMIT, check=False)
        assert other.returncode == 1 and "in use" in other.stderr, other.stderr
        assert str(s.grpc_port) in other.stderr


def test_address_of_its_own():
    """--grpc HOST:PORT, beside --http HOST:PORT."""
    with Server(KAKEYA, "--http", "127.0.0.1:0", "--grpc", "127.0.0.2:0") as s:
        assert s.get("/health") == {"status": "ok"}
        assert any(f"gRPC on 127.0.0.2:{s.grpc_port}" in line for line in s.lines), s.lines
        with grpc.insecure_channel(f"127.0.0.2:{s.grpc_port}") as channel:
            made = rpc.RuntimeServiceStub(channel).CreateSession(pb.CreateSessionRequest(),
                                                                 timeout=LIMIT)
        assert made.session_id.startswith("sess-")


def test_drain():
    with served("-c", "16384") as (s, c):
        stream = c.stream(c.started(), 2000, ignore_eos=True)
        health = health_pb2_grpc.HealthStub(c.channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service=NAME), timeout=LIMIT)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        next(stream)
        s.terminate()
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        with Client(s) as late, refused(Code.UNAVAILABLE, "shutting down"):
            late.create()
        frames = list(stream)
        assert frames[-1].done.generated_token_count == 2000
        s.process.wait(LIMIT)  # who watches the health holds nothing up
    with served("-c", "16384", "--drain-timeout", "0") as (s, c):  # no time: it is cancelled
        stream = c.stream(c.started(), 16000, ignore_eos=True)
        next(stream)
        s.terminate()
        began = time.monotonic()
        with refused(Code.UNAVAILABLE):
            list(stream)
        assert time.monotonic() - began < LIMIT / 2


FIRST_VERSION = """
syntax = "proto3";
package kakeya.v1;
message CreateSessionRequest { string client_label = 1; repeated uint32 eos_token_ids = 2; }
message CreateSessionResponse { string session_id = 1; }
message AppendTokensRequest { string session_id = 1; repeated uint32 token_ids = 2; }
message AppendTokensResponse { uint64 history_length = 1; }
message GenerateRequest {
  string session_id = 1; uint32 max_tokens = 2; optional uint64 seed = 3;
  optional float temperature = 4; optional float top_p = 5; optional uint32 top_k = 6;
}
message GenerateResponse {
  oneof payload { uint32 token_id = 1; GenerateDone done = 2; HistoryTruncated truncated = 3; }
}
enum StopReason {
  STOP_REASON_UNSPECIFIED = 0; STOP_REASON_MAX_TOKENS = 1; STOP_REASON_EOS = 2;
  STOP_REASON_CANCELLED = 3; STOP_REASON_TRUNCATED = 4;
}
message GenerateDone {
  StopReason stop_reason = 1; uint32 generated_token_count = 2;
  double prefill_duration_seconds = 3; double total_duration_seconds = 4;
}
message HistoryTruncated { uint64 dropped_token_count = 1; }
message CloseSessionRequest { string session_id = 1; }
message CloseSessionResponse { uint64 final_history_length = 1; }
message GetSessionInfoRequest { string session_id = 1; }
message GetSessionInfoResponse {
  uint64 history_length = 1; uint64 kv_live_bytes = 2; uint64 cache_invariant_inv1_violations = 3;
  uint64 cache_invariant_inv2_violations = 4; double idle_seconds = 5;
}
"""

run_tests([f for name, f in list(globals().items()) if name.startswith("test_")])
