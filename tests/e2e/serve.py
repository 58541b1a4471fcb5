"""serve.py KAKEYA FOLDER - what `kakeya serve` answers, and how it treats clients that leave, lag or
send nonsense.  The shipped model answers; what it says is not judged, only that it is the same."""

import contextlib
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
import time

from serving import LIMIT, Server, content, run_tests

KAKEYA, FOLDER = sys.argv[1:3]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "Write a function that adds two numbers."}]
LONG = dict(prompt="def add(", ignore_eos=True, temperature=0)  # goes on until the context is full


def start(*args):
    return Server(KAKEYA, *args)


# ---- what is answered -----------------------------------------------------------------------


def test_small_endpoints():
    with start("-a", "small", "-v") as s:
        assert s.get("/health") == s.get("/healthz") == {"status": "ok"}
        models = s.get("/v1/models")
        assert models["object"] == "list" and [m["id"] for m in models["data"]] == ["small"]
        assert s.get("/v1/models/small")["object"] == "model"
        assert s.ask("GET", "/v1/models/other")[0] == 404
        assert s.get("/props")["spec"] == {"proposer": "auto", "drafter": True}
        text = "Grüße, 你好 <|turn> \U0001f600"
        ids = s.post("/tokenize", {"content": text, "parse_special": False})["tokens"]
        assert s.post("/detokenize", {"tokens": ids})["content"] == text
        with_bos = s.post("/tokenize", {"content": "a", "add_special": True})["tokens"]
        assert with_bos[1:] == s.post("/tokenize", {"content": "a"})["tokens"]
        s.refused("/tokenize", {"content": 3}, 400)
        assert s.get("/version")["version"] and s.get("/version")["build"]
        prompt = s.post("/apply-template", {"messages": USER})["prompt"]
        assert USER[0]["content"] in prompt and "<|turn>model\n" in prompt, prompt
        ids = s.post("/tokenize", {"content": prompt})["tokens"]
        told = s.chat(messages=USER, max_tokens=1)["usage"]["prompt_tokens"]
        assert len(ids) == told, (ids, told)
        assert s.refused("/apply-template", {"messages": []}, 400)[0]["param"] == "messages"
        s.refused("/detokenize", {"tokens": [1, 99999999]}, 400)
        s.refused("/detokenize", {"tokens": 1}, 400)
        assert s.ask("GET", "/nothing")[0] == 404
        assert s.ask("GET", CHAT)[0] == 405
        for path in "/v1/responses", "/v1/messages", "/v1/messages/count_tokens":
            assert s.refused(path, {}, 501)[0]["type"] == "not_supported_error"
        status, headers, body = s.ask("GET", "/metrics")
        assert status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert b'kakeya_memory_bytes{category="weights.verifier"}' in body
        secret = "nobody may read this"
        s.chat(messages=[{"role": "user", "content": secret}], max_tokens=4)
        assert not any(secret in line for line in s.lines), s.lines


def test_errors():
    """Every wrong value is named."""
    cases = [
        (CHAT, "{", 400, None, "not JSON"),
        (CHAT, "[]", 400, None, "must be an object"),
        (CHAT, {}, 400, "messages", "missing"),
        (CHAT, {"messages": []}, 400, "messages", "empty"),
        (CHAT, {"messages": "hi"}, 400, "messages", "a list"),
        (CHAT, {"messages": [{"role": "user"}]}, 400, "messages[0]", "no 'content'"),
        (CHAT, {"messages": [{"role": "clown", "content": "x"}]}, 400, None, "'clown'"),
        (CHAT, {"messages": USER, "temperature": -1}, 400, "temperature", "-1"),
        (CHAT, {"messages": USER, "temperature": "hot"}, 400, "temperature", "a number"),
        (CHAT, {"messages": USER, "max_tokens": 0}, 400, "max_tokens", "0"),
        (CHAT, {"messages": USER, "n": 1000}, 400, "n", "1000"),
        (CHAT, {"messages": USER, "stop": [""]}, 400, "stop", "empty"),
        (CHAT, {"messages": USER, "stop": ["x"] * 17}, 400, "stop", "16"),
        (CHAT, {"messages": USER, "top_logprobs": 2}, 400, "top_logprobs", "goes with"),
        (CHAT, {"messages": USER, "logprobs": True, "top_logprobs": 21}, 400, "top_logprobs", "21"),
        (CHAT, {"messages": USER, "logit_bias": {"x": 1}}, 400, "logit_bias", "'x'"),
        (CHAT, {"messages": USER, "logit_bias": {"5000": 1}}, 400, "logit_bias", "5000"),
        (CHAT, {"messages": USER, "logit_bias": {"5": 101}}, 400, "logit_bias", "-100 to 100"),
        (CHAT, {"messages": USER, "stream_options": {}}, 400, "stream_options", "goes with"),
        (CHAT, {"messages": USER, "tools": [{}]}, 400, "tools", "tools[0]"),
        (CHAT, {"messages": USER, "tool_choice": "required"}, 501, "tool_choice", "not supported"),
        (CHAT, {"messages": USER, "response_format": {"type": "json_object"}}, 501,
         "response_format", "json_object"),
        (CHAT, {"messages": USER, "reasoning_effort": "much"}, 400, "reasoning_effort", "high"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, None,
         "image_url"),
        (TEXT, {}, 400, "prompt", "missing"),
        (TEXT, {"prompt": []}, 400, "prompt", "a list"),
        (TEXT, {"prompt": [5, -1]}, 400, "prompt", "-1"),
        (TEXT, {"prompt": ["a"] * 20}, 400, "n", "20"),
        (TEXT, {"prompt": "a", "suffix": "b"}, 501, "suffix", "not supported"),
        (TEXT, {"prompt": "a", "best_of": 3}, 501, "best_of", "not supported"),
        (TEXT, {"prompt": "a", "echo": True, "logprobs": 1}, 501, "logprobs", "of the prompt"),
    ]
    with start() as s:
        for path, body, status, param, part in cases:
            error, _ = s.refused(path, body, status)
            assert error["param"] == param and part in error["message"], (body, error)
        error, _ = s.refused(TEXT, {"prompt": "word " * 9000}, 400)
        assert error["type"] == "exceed_context_size_error" and error["n_ctx"] == 4096, error
        error, _ = s.refused(CHAT, {"messages": [{"role": "user", "content": "ab" * 9000}]}, 400)
        assert error["n_prompt_tokens"] > 4096, error
        # Members that nobody knows, and nulls, are passed over.
        s.chat(messages=USER, max_tokens=1, store=True, stop=None, seed=None, user="me")


def test_stream_is_the_same():
    with start() as s:
        body = dict(messages=USER, temperature=0, max_tokens=80)
        whole = s.chat(**body)
        events = s.stream(CHAT, dict(body, stream_options={"include_usage": True}))
        assert whole["object"] == "chat.completion"
        assert {e["object"] for e in events} == {"chat.completion.chunk"}
        assert len({(e["id"], e["created"], e["model"], e["system_fingerprint"])
                    for e in events}) == 1
        assert content(events) == whole["choices"][0]["message"]["content"]
        assert events[0]["choices"][0]["delta"]["role"] == "assistant"
        assert [e["choices"][0]["finish_reason"] for e in events[:-1]] == \
            [None] * (len(events) - 2) + [whole["choices"][0]["finish_reason"]]
        assert all(e["usage"] is None for e in events[:-1])
        assert events[-1]["choices"] == []
        usage = events[-1]["usage"]
        assert usage["completion_tokens"] == whole["usage"]["completion_tokens"]
        assert usage["prompt_tokens_details"]["cached_tokens"] >= usage["prompt_tokens"] - 64
        assert "usage" not in s.stream(CHAT, body)[0]


def test_drafting_is_told():
    """What drafting did is in a response, and in the last chunk of a stream that has the usage."""
    with start() as s:
        body = dict(messages=USER, temperature=0, max_tokens=200, ignore_eos=True)
        whole = s.chat(**body)
        last = s.stream(CHAT, dict(body, stream_options={"include_usage": True}))[-1]
        for answer in whole, last:
            usage = answer["usage"]["completion_tokens_details"]
            told = answer["metrics"]["speculative_decoding"]
            steps, by = told["num_spec_steps"], told["acceptance_histogram"]
            accepted, rejected = (usage[k + "_prediction_tokens"] for k in ("accepted", "rejected"))
            assert accepted > 0 and told["num_accepted_tokens"] == accepted
            assert told["num_draft_tokens"] == accepted + rejected
            assert sum(by) == steps and sum(i * n for i, n in enumerate(by)) == accepted, told
            assert abs(told["mean_acceptance_length"] - 1 - accepted / steps) < 1e-6
            assert abs(told["draft_acceptance_rate"] - accepted / (accepted + rejected)) < 1e-6
            assert answer["timings"]["predicted_n"] == 200


def test_choices():
    with start() as s:
        answer = s.post(TEXT, dict(prompt="def add(", max_tokens=24, seed=7, n=3))
        texts = [c["text"] for c in answer["choices"]]
        assert [c["index"] for c in answer["choices"]] == [0, 1, 2] and len(set(texts)) > 1
        again = s.post(TEXT, dict(prompt="def add(", max_tokens=24, seed=7, n=3))
        assert texts == [c["text"] for c in again["choices"]]
        ids = s.post("/tokenize", {"content": "def add(", "add_special": True})["tokens"]
        several = s.post(TEXT, dict(prompt=["def add(", "class Tree"], temperature=0,
                                    max_tokens=9))
        assert len(several["choices"]) == 2
        by_ids = s.post(TEXT, dict(prompt=ids, temperature=0, max_tokens=9, echo=True))
        assert by_ids["choices"][0]["text"] == "def add(" + several["choices"][0]["text"]
        events = s.stream(TEXT, dict(prompt="def add(", max_tokens=24, seed=7, n=3))
        for i, text in enumerate(texts):
            got = "".join(c["text"] for e in events for c in e["choices"] if c["index"] == i)
            assert got == text, (got, text)


def test_choices_together():
    """The choices of a request share passes, and each is what its seed gives alone."""
    with start() as s:
        body = dict(prompt="def add(", max_tokens=100, ignore_eos=True)
        answer = s.post(TEXT, dict(body, seed=7, n=4))
        m = s.metrics()
        assert m["decode_passes_shared_total"] > 5, m["decode_passes_shared_total"]
        assert m["decode_pass_sessions_most"] >= 2
        assert answer["usage"]["completion_tokens"] == 400
        for i, choice in enumerate(answer["choices"]):
            alone = s.post(TEXT, dict(body, seed=7 + i))
            assert choice["index"] == i and choice["text"] == alone["choices"][0]["text"], i
        s.leave(TEXT, dict(LONG, stream=True, n=4), b'"index":3')
        assert s.finished() == {"length": 8, "cancelled": 4}, s.finished()


def test_stops_bias_logprobs():
    with start() as s:
        body = dict(prompt="def add(", temperature=0, max_tokens=40)
        text = s.post(TEXT, body)["choices"][0]["text"]
        stop = text[7:12]  # wherever tokens begin and end
        cut = s.post(TEXT, dict(body, stop=["nowhere to be found", stop]))["choices"][0]
        assert cut["text"] == text[:text.index(stop)] and cut["finish_reason"] == "stop", cut
        cut = s.stream(TEXT, dict(body, stop=stop))
        assert "".join(c["text"] for e in cut for c in e["choices"]) == text[:text.index(stop)]
        short = s.post(TEXT, dict(body, max_tokens=3))
        assert short["choices"][0]["finish_reason"] == "length"
        assert short["usage"]["completion_tokens"] == 3

        first = s.post(TEXT, dict(body, max_tokens=1, logprobs=3))["choices"][0]["logprobs"]
        assert len(first["tokens"]) == 1 and len(first["top_logprobs"][0]) == 3
        best = s.post("/tokenize", {"content": first["tokens"][0]})["tokens"][0]
        other = s.post(TEXT, dict(body, max_tokens=1, logprobs=1, logit_bias={str(best): -100}))
        assert other["choices"][0]["logprobs"]["tokens"] != first["tokens"]

        body = dict(messages=USER, temperature=0, max_tokens=12, logprobs=True, top_logprobs=2)
        choice = s.chat(**body)["choices"][0]
        tokens = choice["logprobs"]["content"]
        assert b"".join(bytes(t["bytes"]) for t in tokens).decode().startswith(
            choice["message"]["content"])
        assert all(t["logprob"] <= 0 and len(t["top_logprobs"]) == 2 for t in tokens)
        assert all(t["logprob"] == t["top_logprobs"][0]["logprob"] for t in tokens)  # greedy
        streamed = [t for e in s.stream(CHAT, body) for c in e["choices"] if c["logprobs"]
                    for t in c["logprobs"]["content"]]
        assert [t["token"] for t in streamed] == [t["token"] for t in tokens]


# ---- a conversation that goes on ------------------------------------------------------------


TOOLS = [{"type": "function", "function": {
    "name": "add", "description": "adds numbers. " * 20,
    "parameters": {"type": "object", "properties": {"a": {"type": "number"}}}}}]


def five_turns(s, **more):
    """Each turn is evaluated from about where the turn before it had its generation prompt."""
    messages = [{"role": "system", "content": "You are terse. " * 12}]
    before = 0
    for turn in range(5):
        messages.append({"role": "user", "content": f"Question {turn}: " + "why and how? " * 60})
        answer = s.chat(messages=messages, temperature=0, max_tokens=48, **more)
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached >= before - 64, (turn, cached, before)
        assert turn == 0 or cached > 0
        # What a client appends, less the thoughts, which the format leaves out.
        said = answer["choices"][0]["message"]
        messages.append({"role": "assistant", "content": said["content"] or "",
                         **({"tool_calls": said["tool_calls"]} if "tool_calls" in said else {})})
        for call in said.get("tool_calls", []):
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "{}"})
        before = answer["usage"]["prompt_tokens"]
    assert before > 2 * 512, before  # past two wraps of the window
    return messages


def test_five_turns():
    with start("-c", "8192") as s:
        five_turns(s, reasoning_effort="none")
        five_turns(s, reasoning_effort="high")
        five_turns(s, tools=TOOLS)
        messages = five_turns(s, tools=TOOLS, reasoning_effort="high")
        # A kept prefix changes nothing: another server, which has none, says the same.
        body = dict(messages=messages[:-1], temperature=0, max_tokens=40, tools=TOOLS)
        here = s.chat(**body)
        with start("-c", "8192", "--spec", "none") as other:
            there = other.chat(**body)
        assert here["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        assert there["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert here["choices"][0]["message"] == there["choices"][0]["message"]


def test_shared_system_prompt():
    system = {"role": "system", "content": "You know everything about boats. " * 40}
    with start("-c", "8192") as s:
        for i, text in enumerate(["Which is the longest?", "Is wood better?", "And steel?"]):
            usage = s.chat(messages=[system, {"role": "user", "content": text}], max_tokens=4,
                           temperature=0)["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            assert i == 0 or cached >= usage["prompt_tokens"] - 80, usage


def test_sessions_limit():
    with start("--sessions", "2") as s:
        for i in range(5):
            s.post(TEXT, dict(prompt=f"number {i} is a prompt of its own, as others are: {i * i}",
                              max_tokens=2))
        m = s.metrics()
        assert m["session_count"] <= 2 and m["prefix_cache_dropped_total"] >= 3, m
    with start("--kv-memory", "1") as s:
        for i in range(3):
            s.post(TEXT, dict(prompt=f"{i} " * 600, max_tokens=2))
        assert s.metrics()["prefix_cache_dropped_total"] >= 2


# ---- several at a time ----------------------------------------------------------------------


def test_eight_streams():
    """Eight streams at a time say what each says alone, and share forward passes."""
    prompts = [f"def function_{i}(a, b):\n    " for i in range(8)]
    body = dict(max_tokens=96, temperature=0.8, seed=3, ignore_eos=True)

    def ask(s, prompt, out, i):
        events = s.stream(TEXT, dict(body, prompt=prompt))
        out[i] = "".join(c["text"] for e in events for c in e["choices"])

    for more in [], ["--spec", "none"]:
        alone, together = [None] * 8, [None] * 8
        with start(*more) as s:
            for i, p in enumerate(prompts):
                ask(s, p, alone, i)
            assert s.metrics()["decode_passes_shared_total"] == 0
        with start(*more) as s:
            threads = [threading.Thread(target=ask, args=(s, p, together, i))
                       for i, p in enumerate(prompts)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            m = s.metrics()
        assert together == alone
        assert m["decode_passes_shared_total"] > 10, m
        assert m["decode_pass_sessions_most"] >= 4, m


def test_full_queue():
    with start("--parallel", "1", "--queue", "1", "-c", "16384") as s:
        held = [s.send(TEXT, LONG)]
        s.until(lambda m: m["num_requests_running"] == 1)
        held.append(s.send(TEXT, LONG))
        s.until(lambda m: m["num_requests_waiting"] == 1)
        error, headers = s.refused(TEXT, LONG, 429)
        assert error["type"] == "rate_limit_error" and int(headers["Retry-After"]) >= 1
        # One that waits and leaves makes place at once.
        held.pop().close()
        held.append(s.send(TEXT, dict(LONG, max_tokens=1)))
        s.until(lambda m: m["num_requests_waiting"] == 1)
        held[0].close()
        assert held[1].recv(12) == b"HTTP/1.1 200"
        for one in held:
            one.close()


def test_slots():
    """What each worker is at, in the words of llama.cpp's server, for who has a key."""
    with open(os.path.join(FOLDER, "slot-keys"), "w", encoding="ascii") as f:
        f.write("sesame\n")
    with start("--parallel", "2", "--api-key-file", f.name) as s:
        assert s.ask("GET", "/slots")[0] == 401
    with start("--parallel", "2", "-c", "16384", "--spec", "none") as s:
        slots = s.get("/slots")
        assert [(o["id"], o["is_processing"], o["n_ctx"]) for o in slots] == \
            [(0, False, 16384), (1, False, 16384)] and "id_task" not in slots[0], slots
        prompt = dict(prompt=[5] * 100, temperature=0)
        s.post(TEXT, dict(prompt, max_tokens=3, ignore_eos=True))
        first = s.get("/slots")[0]
        assert first["id_task"] == 1 and first["n_prompt_tokens"] == 100, first
        assert first["n_prompt_tokens_cache"] == 0 and first["n_prompt_tokens_processed"] == 100
        assert first["next_token"] == [{"has_next_token": False, "n_remain": 0, "n_decoded": 3}]
        s.post(TEXT, dict(prompt, max_tokens=3, ignore_eos=True))
        first = s.get("/slots")[0]
        assert first["n_prompt_tokens_cache"] >= 64, first
        assert first["n_prompt_tokens_cache"] + first["n_prompt_tokens_processed"] == 100, first
        held = [s.send(TEXT, dict(LONG, max_tokens=9000, prompt=text)) for text in "ab"]
        s.until(lambda m: m["num_requests_running"] == 2)
        slots = s.get("/slots")
        while not all(o["next_token"][0]["n_decoded"] for o in slots):
            slots = s.get("/slots")
        for o in slots:
            assert o["is_processing"] and o["next_token"][0]["has_next_token"], o
            assert sum(o["next_token"][0][k] for k in ("n_decoded", "n_remain")) == 9000, o
        assert s.ask("GET", "/slots?fail_on_no_slot=1")[0] == 503
        for one in held:
            one.close()
        s.until(lambda m: m["num_requests_running"] == 0)
        assert s.ask("GET", "/slots?fail_on_no_slot=1")[0] == 200


def test_one_after_another():
    """Who asks again as soon as there is an answer finds the worker free that gave it."""
    with start("--parallel", "1", "--queue", "0") as s:
        for i in range(100):
            if i % 2:
                s.post("/tokenize", {"content": "a"})
            else:
                s.stream(TEXT, dict(prompt="a", max_tokens=1))


# ---- clients that leave, lag, trickle -------------------------------------------------------


def test_vanishing_clients():
    with start("-c", "16384") as s:
        for stream in False, True:
            before = s.metrics()
            one = s.send(TEXT, dict(LONG, stream=stream))
            s.until(lambda m: m["num_requests_running"] == 1)
            time.sleep(0.2)
            one.close()
            m = s.until(lambda m: m["num_requests_running"] == 0)
            name = 'request_success_total{finished_reason="cancelled"}'
            assert m[name] - before[name] == 1, m
            assert m["generation_tokens_total"] - before["generation_tokens_total"] < 8000


def test_leaving_is_not_lagging():
    """Whoever closes a stream that it has read is counted as one that left, whatever notices it."""
    with start("-c", "16384", "--spec", "none") as s:
        for _ in range(20):
            s.leave(TEXT, dict(LONG, stream=True), b'"text":')
        assert s.finished() == {"cancelled": 20}, s.finished()


def test_slow_client():
    """A client that does not read is given up; the worker is free for others meanwhile."""
    with start("-c", "16384", "--parallel", "1", "--stream-buffer", "64", "--spec", "none") as s:
        slow = s.send(TEXT, dict(LONG, stream=True, logprobs=20), receive=4096)
        m = s.until(lambda m: m['request_success_total{finished_reason="slow_client"}'] == 1, LIMIT)
        assert m["generation_tokens_total"] < 16000
        s.post(TEXT, dict(prompt="a", max_tokens=1))
        told = b""
        with contextlib.suppress(ConnectionError):
            while piece := slow.recv(1 << 16):
                told = told[-100:] + piece
        assert not told.endswith(b"0\r\n\r\n"), told[-100:]  # no end that a whole stream has
        slow.close()


def test_trickles():
    with start("--idle-timeout", "1") as s:
        head, body, idle = s.connect(), s.connect(), s.connect()
        body.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
        head.sendall(b"GET /health HTTP/1.1\r\n")
        start_time, open_ones = time.monotonic(), {head: b"X-A: b\r\n", body: b"x", idle: b""}
        while open_ones:
            assert time.monotonic() - start_time < LIMIT, "a trickle holds its connection"
            for one in list(open_ones):
                try:
                    one.setblocking(True)
                    one.sendall(open_ones[one])
                    one.setblocking(False)
                    if one.recv(100) == b"":
                        del open_ones[one]
                except BlockingIOError:
                    pass
                except OSError:
                    del open_ones[one]
            time.sleep(0.2)
        assert s.get("/health")


def test_left_before_it_was_accepted():
    """Connections that wait for a place, send a part of a head and leave, take no place."""
    with start("--max-connections", "4") as s:
        many = [s.connect() for _ in range(12)]
        for one in many:
            one.sendall(b"GET /health HT")
        time.sleep(0.2)
        for one in many:
            one.close()
        begin = time.monotonic()
        assert s.get("/health") == {"status": "ok"}
        assert time.monotonic() - begin < 30, "as long as --idle-timeout"


def test_too_large():
    with start("--max-body", "1") as s:
        error, _ = s.refused(TEXT, b"x" * 1500000, 413)
        assert "1500000" in error["message"], error
        status, _, _ = s.ask("POST", TEXT, iter([b"x" * 700000, b"x" * 700000]),
                             {"Transfer-Encoding": "chunked"})
        assert status == 413
        one = s.connect()  # far too much is refused before it is sent
        one.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n")
        assert one.recv(12) == b"HTTP/1.1 413"
        one.close()
        deep = "[" * 50000
        s.refused(TEXT, '{"prompt": ' + deep, 400)
        assert s.get("/health")


def raw(s, request):
    """All that comes back for these bytes until the connection ends."""
    one, got = s.connect(), b""
    one.sendall(request)
    while piece := one.recv(1 << 16):
        got += piece
    one.close()
    return got


def test_heads():
    """What is wrong with a head is told in the envelope of errors, and ends its connection."""
    health = b"GET /health HTTP/1.1\r\nHost: x\r\n"
    cases = [
        (b"GET /v1/models?x=" + 9000 * b"y" + b" HTTP/1.1\r\nHost: x\r\n", 414, "uri_too_long"),
        (b"GET /" + 100000 * b"y" + b" HTTP/1.1\r\nHost: x\r\n", 414, "uri_too_long"),
        (health + b"X-Long: " + 33000 * b"y" + b"\r\n", 431, "head_too_large"),
        (health + b"X-Long: " + 100000 * b"y" + b"\r\n", 431, "head_too_large"),
        (health + b"Cookie: a=" + 33000 * b"y" + b"\r\n", 431, "head_too_large"),
        (health + 100 * b"a: b\r\n", 431, "head_too_large"),
        (b"GET /health HTTP/1.1\r\n", 400, None),
        (health + b"Host: y\r\n", 400, None),
        (b"GET /hea lth HTTP/1.1\r\nHost: x\r\n", 400, None),
        (health + b"Content-Length : 5\r\n", 400, None),
        (health + b"Content-Length: 2\r\nContent-Length: 3\r\n", 400, None),
        (health + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n", 400, None),
        (health + b"Transfer-Encoding: gzip\r\n", 501, "not_supported"),
    ]
    with start() as s:
        for head, status, code in cases:
            body = b"0\r\n\r\n" if b"chunked" in head else b"{}"
            got = raw(s, head + b"\r\n" + (body if b"ength" in head or b"ncoding" in head else b""))
            first, _, answer = got.partition(b"\r\n\r\n")
            assert first.startswith(b"HTTP/1.1 %d " % status), (head[:80], got)
            error = json.loads(answer)["error"]
            assert error["code"] == code and error["message"], (head[:80], error)
        assert raw(s, health + 97 * b"a: b\r\n" + b"Connection: close\r\n\r\n")[9:12] == b"200"
        for head in health + 300000 * b"y", b"GET /health HTTP/1.1\r\nnothing\r\n\r\n":
            assert raw(s, head)[9:12] in (b"431", b"400")  # libmicrohttpd's own, with a page
        assert s.get("/health")


def test_two_lengths():
    """A body that a proxy may end elsewhere is refused, and what follows it is not answered."""
    with start() as s:
        both = (b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /health HTTP/1.1\r\n"
                b"Host: x\r\nConnection: close\r\n\r\n")
        got = raw(s, both)
        assert got.count(b"HTTP/1.1 ") == 1 and got.startswith(b"HTTP/1.1 400"), got
        assert b'"ok"' not in got and b"not both" in got, got
        # HTTP/1.1 says whom it asks.
        assert raw(s, b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")[:12] == b"HTTP/1.1 400"
        assert raw(s, b"GET /health HTTP/1.0\r\n\r\n")[:12] == b"HTTP/1.1 200"


def test_many_bodies():
    """All bodies together are bounded: requests beyond that are refused, and only while it lasts."""
    with start("--max-body", "1") as s:
        many = [s.connect() for _ in range(40)]
        for one in many:
            one.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n" +
                        b"x" * 899999)
        for one in many:
            one.sendall(b"x")
        codes = [one.recv(12)[9:] for one in many]
        assert set(codes) == {b"400", b"503"} and codes.count(b"503") > 4, codes
        for one in many:
            one.close()
        assert s.post("/tokenize", {"content": "a" * 900000})


def test_many_values():
    """A tree of millions of values would take a hundred times the memory of its body."""
    with start() as s:
        for body in ('{"messages": [%s[]]}' % ("[]," * 5400000), '{"z": [%s{}]}' % ("{}," * 80000),
                     '{"prompt": [%s5]}' % ("5," * 600000)):
            error, _ = s.refused(TEXT, body, 413)
            assert "values" in error["message"], error
        with open(f"/proc/{s.process.pid}/status", encoding="ascii") as f:
            most = int(re.search(r"VmHWM:\s+(\d+) kB", f.read()).group(1))
        assert most < 400000, most
        # What stands in a text is no value, and a long context may come as ids.
        s.chat(messages=[{"role": "user", "content": "a"}], user='[{,\\"' * 100000, max_tokens=1)
        error, _ = s.refused(TEXT, {"prompt": [5] * 260000}, 400)
        assert error["type"] == "exceed_context_size_error", error


def test_timeout():
    with start("--timeout", "1", "-c", "16384") as s:
        error, _ = s.refused(TEXT, LONG, 504)
        assert error["type"] == "timeout_error", error
        one = s.send(TEXT, dict(LONG, stream=True))
        text = b""
        while piece := one.recv(65536):
            text += piece
            if b'"timeout_error"' in text:
                break
        assert b'"timeout_error"' in text and b"[DONE]" not in text
        one.close()


# ---- keys, origins, TLS ---------------------------------------------------------------------


def test_keys():
    path = os.path.join(FOLDER, "keys")
    with open(path, "w", encoding="utf-8") as f:
        f.write("# keys\nsk-one\n  sk-two-which-is-longer  \n")
    with start("--api-key-file", path) as s:
        assert s.get("/health")
        for header, status in [(None, 401), ("Bearer sk-wrong", 401), ("Bearer ", 401),
                               ("Bearer sk-on", 401), ("Bearer sk-one1", 401), ("sk-one", 401),
                               ("Bearer " + "x" * 300, 401), ("Bearer sk-one", 200),
                               ("bearer sk-two-which-is-longer", 200)]:
            headers = {"Authorization": header} if header else {}
            for path in "/v1/models", "/metrics":
                got, answered, body = s.ask("GET", path, headers=headers)
                assert got == status, (header, got)
                if got == 401:
                    assert json.loads(body)["error"]["type"] == "authentication_error"
                    assert answered["WWW-Authenticate"] == "Bearer"


def test_origins():
    with start() as s:
        assert s.ask("GET", "/v1/models", headers={"Origin": "http://evil.example"})[0] == 403
        assert s.ask("OPTIONS", CHAT, headers={"Origin": "http://evil.example"})[0] == 403
        # The server's own page; and one of a name that was made to point here.
        for host, status in ((f"127.0.0.1:{s.port}", 200), (f"localhost:{s.port}", 200),
                             (f"evil.example:{s.port}", 403), (f"[::1]:{s.port}", 200)):
            own = {"Origin": f"http://{host}", "Host": host}
            assert s.ask("GET", "/v1/models", headers=own)[0] == status, host
            # A browser sends no Origin with a GET of a page's own origin.
            del own["Origin"]
            assert s.ask("GET", "/v1/sessions", headers=own)[0] == status, host
        own = {"Origin": f"http://127.0.0.1:{s.port + 1}", "Host": f"127.0.0.1:{s.port}"}
        assert s.ask("GET", "/v1/models", headers=own)[0] == 403
    with start("--cors-origin", "http://app.example") as s:
        status, headers, _ = s.ask("OPTIONS", CHAT, headers={"Origin": "http://app.example"})
        assert status == 204 and headers["Access-Control-Allow-Origin"] == "http://app.example"
        assert s.ask("GET", "/v1/models", headers={"Origin": "http://app.example"})[0] == 200
        assert s.ask("GET", "/v1/models", headers={"Origin": "http://evil.example"})[0] == 403


def test_tls():
    cert, key = os.path.join(FOLDER, "cert.pem"), os.path.join(FOLDER, "key.pem")
    made = subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                           "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
                           "-keyout", key, "-out", cert], capture_output=True, check=False) \
        if os.path.exists("/usr/bin/openssl") else None
    if made is None or made.returncode != 0:
        print("not run: no openssl to make a certificate with")
        return
    with start("-c", "16384", "--tls-cert", cert, "--tls-key", key) as s:
        context = ssl.create_default_context(cafile=cert)
        raw = socket.create_connection(("127.0.0.1", s.port), 30)
        with context.wrap_socket(raw, server_hostname="localhost") as one:
            one.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert one.recv(12).startswith(b"HTTP/1.1 200")
            data = json.dumps(dict(LONG, stream=True)).encode()
            one.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" %
                        (TEXT.encode(), len(data), data))
            while b"data: " not in one.recv(4096):
                pass
        # It has left in the middle of its stream, and that is noticed.
        ended = b""
        while not re.search(rb'finished_reason="(cancelled|slow_client)"} 1\n', ended):
            assert not re.search(rb'finished_reason="length"} 1\n', ended)
            raw = socket.create_connection(("127.0.0.1", s.port), 30)
            with context.wrap_socket(raw, server_hostname="localhost") as one:
                one.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                ended = b""
                while piece := one.recv(65536):
                    ended += piece


# ---- start and end --------------------------------------------------------------------------


def test_port_in_use():
    with start() as s:
        other = subprocess.run([KAKEYA, "serve", "--port", str(s.port)], capture_output=True,
                               text=True, timeout=60, check=False)
        assert other.returncode == 1 and "in use" in other.stderr, other.stderr
        assert str(s.port) in other.stderr


def test_drain():
    with start("-c", "16384", "--drain-timeout", "300") as s:
        answers = []
        body = dict(LONG, max_tokens=3000, stream=True)
        asked = threading.Thread(target=lambda: answers.append(s.stream(TEXT, body)))
        idle = s.connect()
        idle.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle.recv(12) == b"HTTP/1.1 200"
        asked.start()
        s.until(lambda m: m["num_requests_running"] == 1)
        s.terminate()
        while "finishing" not in " ".join(s.lines):
            time.sleep(0.01)
        try:  # nobody listens any more
            s.ask("GET", "/health")
            raise AssertionError("a server that drains takes connections")
        except OSError:
            pass
        asked.join()
        tokens = sum(len(e["choices"]) for e in answers[0])
        assert answers[0][-1]["choices"][0]["finish_reason"] == "length" and tokens > 500, tokens
    with start("-c", "16384", "--drain-timeout", "300") as s:  # a body that comes meanwhile
        running, late = s.send(TEXT, dict(LONG, max_tokens=3000)), s.connect()
        s.until(lambda m: m["num_requests_running"] == 1)
        body = json.dumps(dict(prompt="a", max_tokens=1)).encode()
        late.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" %
                     (TEXT.encode(), len(body), body[:5]))
        for _ in range(3):  # its head is read before these
            s.get("/health")
        s.terminate()
        while "finishing" not in " ".join(s.lines):
            time.sleep(0.01)
        late.sendall(body[5:])
        answer = late.recv(4096)
        assert answer.startswith(b"HTTP/1.1 503") and b"Retry-After" in answer, answer
        assert running.recv(12) == b"HTTP/1.1 200"
        for one in running, late:
            one.close()
    with start("-c", "16384", "--drain-timeout", "0") as s:  # no time: it ends with an error
        one = s.send(TEXT, LONG)
        s.until(lambda m: m["num_requests_running"] == 1)
        s.terminate()
        assert one.recv(12) == b"HTTP/1.1 503"
        one.close()


run_tests([f for name, f in list(globals().items()) if name.startswith("test_")])
