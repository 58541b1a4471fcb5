"""serve_sessions.py KAKEYA FOLDER - sessions that clients hold by an id, over HTTP."""

import json
import re
import sys
import threading

from serving import Server, run_tests

KAKEYA, FOLDER = sys.argv[1:3]
ALL = "/v1/sessions"
GREEDY = dict(temperature=0, max_tokens=24, ignore_eos=True)


def start(*args):
    return Server(KAKEYA, *args)


def create(s, **body):
    made = s.post(ALL, body)
    assert re.fullmatch(r"sess-[0-9a-f]{32}", made["id"]), made
    return made["id"]


def append(s, session, **body):
    return s.post(f"{ALL}/{session}/append", body)


def generate(s, session, **body):
    return s.post(f"{ALL}/{session}/generate", {**GREEDY, **body})


def delete(s, session):
    status, _, body = s.ask("DELETE", f"{ALL}/{session}")
    return status, json.loads(body)


def ids_of(s, text):
    return s.post("/tokenize", {"content": text})["tokens"]


LONG = "A boat goes over the sea, and the sea goes under the boat. " * 60


# ---- as JSON --------------------------------------------------------------------------------


def test_calls():
    with start("-c", "4096") as s:
        a = create(s, label="first", kv_format="q8", spec="ngram", temperature=0.5, seed=3)
        info = s.get(f"{ALL}/{a}")
        assert info["label"] == "first" and info["kv"]["format"] == "q8", info
        assert info["spec"] == "ngram" and info["sampling"]["seed"] == 3, info
        got = append(s, a, text="def add(a, b):")
        assert got["added_tokens"] == got["history_length"] == got["evaluated_tokens"], got
        made = generate(s, a)
        assert made["generated_tokens"] == 24 == len(made["tokens"]), made
        assert made["stop_reason"] == "max_tokens" and made["text"], made
        assert made["cached_tokens"] == got["history_length"] and made["evaluated_tokens"] == 0
        tokens = s.get(f"{ALL}/{a}/tokens")["tokens"]
        assert len(tokens) == made["history_length"] and tokens[-24:] == made["tokens"]
        fork = s.post(f"{ALL}/{a}/fork", {"at": got["history_length"]})
        assert fork["forked_from"] == a
        again = generate(s, fork["id"])
        assert again["tokens"] == made["tokens"] and again["logits_hash"] == made["logits_hash"]
        turn = s.post(f"{ALL}/{a}/fork", {"turn": 1})
        assert turn["history_length"] == made["history_length"]
        listed = [i["id"] for i in s.get(ALL)["data"]]
        assert listed == [turn["id"], fork["id"], a], listed
        assert delete(s, a)[1] == {"id": a, "deleted": True,
                                   "history_length": made["history_length"]}
        assert delete(s, a)[0] == 404
        m = s.metrics()
        assert m["held_session_count"] == 2 and m["held_session_kv_bytes"] > 0, m
        assert m['invariant_violations_total{invariant="INV-1"}'] == 0


def test_stream():
    with start() as s:
        a, b = create(s), create(s)
        for x in a, b:
            append(s, x, text="def add(a, b):")
        whole = generate(s, a)
        events = s.stream(f"{ALL}/{b}/generate", GREEDY)
        assert [e["token"] for e in events if "token" in e] == whole["tokens"]
        assert "".join(e.get("text", "") for e in events) == whole["text"]
        assert events[-1]["done"]["stop_reason"] == "max_tokens"
        cut = whole["text"][5:9]
        c = create(s)
        append(s, c, text="def add(a, b):")
        stopped = generate(s, c, stop=cut)
        assert stopped["stop_reason"] == "stop_text"
        assert stopped["text"] == whole["text"][:whole["text"].index(cut)]


def test_messages():
    """Turn by turn by messages, and all of it by the chat format: the same tokens."""
    with start("-c", "4096") as s:
        a = create(s)
        first = [{"role": "system", "content": "Be terse."},
                 {"role": "user", "content": "Name a sea."}]
        append(s, a, messages=first)
        said = generate(s, a, ignore_eos=False)
        append(s, a, messages=[{"role": "user", "content": "Another."}])
        text = s.post("/detokenize", {"tokens": s.get(f"{ALL}/{a}/tokens")["tokens"]})["content"]
        assert text.count("<bos>") == 1, text
        assert re.search(r"<turn\|>\n<\|turn>user\nAnother\.<turn\|>\n<\|turn>model\n", text), text
        assert said["text"].split("<turn|>")[0] in text


def test_history_is_all():
    """One token at a time or all at once, past the window: the same bits."""
    with start("-c", "4096") as s:
        ids = ids_of(s, LONG)[:700]
        made = []
        for step in len(ids), 97, 350:
            a = create(s)
            for i in range(0, len(ids), step):
                append(s, a, tokens=ids[i:i + step])
            made.append(generate(s, a)["logits_hash"])
        assert len(set(made)) == 1, made


def test_refusals():
    with start("--max-sessions", "2") as s:
        a = create(s)
        cases = [
            (ALL, {"kv_format": "q3"}, 400, "kv_format"),
            (ALL, {"kv_full": "native"}, 400, "kv_full"),
            (ALL, {"context": 0}, 400, "context"),
            (ALL, {"spec": 3}, 400, "spec"),
            (ALL, {"label": "x" * 64}, 400, "label"),
            (ALL, {"temperature": -1}, 400, "temperature"),
            (ALL, {"kv_full": "restored"}, 400, None),
            (f"{ALL}/{a}/append", {}, 400, None),
            (f"{ALL}/{a}/append", {"text": "a", "tokens": [1]}, 400, None),
            (f"{ALL}/{a}/append", {"tokens": [5000]}, 400, "tokens"),
            (f"{ALL}/{a}/append", {"text": 3}, 400, "text"),
            (f"{ALL}/{a}/append", {"messages": []}, 400, "messages"),
            (f"{ALL}/{a}/append", {"text": "word " * 9000}, 400, "tokens"),
            (f"{ALL}/{a}/generate", {}, 400, None),
            (f"{ALL}/{a}/generate", {"max_tokens": 0}, 400, "max_tokens"),
            (f"{ALL}/{a}/fork", {"turn": 7}, 400, "turn"),
            (f"{ALL}/{a}/fork", {"turn": 0, "at": 0}, 400, "at"),
            (f"{ALL}/{a}/dance", {}, 404, None),
            (f"{ALL}/sess-none/append", {"text": "a"}, 404, "session_id"),
        ]
        for path, body, status, param in cases:
            error, _ = s.refused(path, body, status)
            assert error["param"] == param, (path, body, error)
        create(s)
        error, headers = s.refused(ALL, {}, 429)
        assert error["code"] == "too_many_sessions" and "Retry-After" in headers
        assert s.ask("PUT", f"{ALL}/{a}")[0] == 405


def test_busy_and_left():
    """A session that generates refuses others; a client that leaves ends it; a delete ends it."""
    with start("-c", "4096") as s:
        a = create(s)
        append(s, a, text="def add(a, b):")
        sock = s.send(f"{ALL}/{a}/generate", dict(GREEDY, max_tokens=4000, stream=True))
        assert sock.recv(10)
        assert s.refused(f"{ALL}/{a}/append", {"text": "x"}, 409)[0]["code"] == "session_busy"
        assert s.get(f"{ALL}/{a}")["busy"]
        sock.close()
        s.until(lambda m: m['request_success_total{finished_reason="cancelled"}'] == 1)
        kept = s.get(f"{ALL}/{a}")["history_length"]
        assert generate(s, a)["cached_tokens"] == kept
        results = []
        long = threading.Thread(
            target=lambda: results.append(generate(s, a, max_tokens=3000)["stop_reason"]))
        long.start()
        s.until(lambda m: m["num_requests_running"] > 0)
        assert delete(s, a)[0] == 200
        long.join()
        assert results == ["cancelled"], results


run_tests([f for name, f in list(globals().items()) if name.startswith("test_")])
