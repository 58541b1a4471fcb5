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
        # A stream that cannot begin is refused with a status, too.
        assert s.refused(f"{ALL}/{a}/generate", dict(GREEDY, max_tokens=5, stream=True), 409)
        assert s.get(f"{ALL}/{a}")["busy"]
        sock.close()
        s.until(lambda m: m['request_success_total{finished_reason="cancelled"}'] == 1)
        kept = s.get(f"{ALL}/{a}")["history_length"]
        assert generate(s, a)["cached_tokens"] == kept
        results = []
        long = threading.Thread(
            target=lambda: results.append(generate(s, a, max_tokens=3000)["stop_reason"]))
        long.start()
        s.until(lambda m: s.get(f"{ALL}/{a}")["busy"])  # a call that runs may not have it yet
        assert delete(s, a)[0] == 200
        long.join()
        assert results == ["cancelled"], results


def test_read_while_all_work():
    """Sessions can be looked at, and /metrics, while every worker has a request."""
    with start("-c", "16384", "--parallel", "1", "--queue", "0", "--spec", "none") as s:
        a, b = create(s), create(s)
        append(s, a, text="def add(a, b):")
        append(s, b, text="def add(a, b):")
        sock = s.send(f"{ALL}/{a}/generate", dict(GREEDY, max_tokens=15000, stream=True))
        assert sock.recv(10)
        for _ in range(3):
            assert len(s.get(ALL)["data"]) == 2 and s.get(f"{ALL}/{a}")["busy"]
            assert s.get(f"{ALL}/{b}/tokens")["tokens"] and s.get(f"{ALL}/{b}/messages")["messages"]
            assert s.metrics()["num_requests_running"] == 1
        s.refused(f"{ALL}/{b}/fork", {}, 429)
        sock.close()


def test_leaving_is_not_lagging():
    with start("-c", "16384", "--spec", "none") as s:
        for _ in range(20):
            a = create(s)
            append(s, a, text="def add(a, b):")
            s.leave(f"{ALL}/{a}/generate", dict(GREEDY, max_tokens=8000, stream=True), b'"token":')
        assert s.finished() == {"cancelled": 20}, s.finished()


def test_drafting_is_told():
    """What a stream says of drafts adds up to what the engine counted, and changes no token."""
    with start("-c", "4096") as s:
        text = "import argparse\n\n\ndef main():\n    parser = argparse.ArgumentParser()\n"
        total = 0
        for spec in ("none", "ngram", "dflash", "auto"):
            a, b = (create(s, spec=spec, seed=5) for _ in range(2))
            for session in (a, b):
                append(s, session, text=text)
            how = dict(max_tokens=200, ignore_eos=True, temperature=0)
            plain = s.stream(f"{ALL}/{a}/generate", how)
            *told, last = s.stream(f"{ALL}/{b}/generate", dict(how, drafts=True))
            done = last["done"]
            assert all(set(e) == {"text", "token"} for e in plain[:-1]), plain[:2]
            assert [e["token"] for e in told] == [e["token"] for e in plain[:-1]]
            assert [e["text"] for e in told] == [e["text"] for e in plain[:-1]]
            accepted = sum(e.get("drafted", False) for e in told)
            rejected = [r for e in told for r in e.get("rejected", [])]
            rounds = [e["round"] for e in told]
            assert accepted == done["accepted_tokens"], (accepted, done)
            assert accepted + len(rejected) == done["drafted_tokens"], (len(rejected), done)
            assert rounds == sorted(rounds) and max(rounds) == done["rounds"], rounds
            total += accepted
            assert spec != "none" or done["drafted_tokens"] == 0, done
            for e in told:  # a token is not one that it stands in place of
                assert not e.get("rejected") or e["rejected"][0]["token"] != e["token"], e
                assert not (e.get("rejected") and e.get("drafted")), e
            for r in rejected[:20]:
                assert s.post("/detokenize", {"tokens": [r["token"]]})["content"] == r["text"]
        assert total > 20, total


def test_chat_and_messages():
    """An answer comes in parts, ends with its turn, and is read back as the messages it was."""
    tools = [{"type": "function", "function": {"name": "look", "description": "Looks",
                                               "parameters": {"type": "object", "properties": {}}}}]
    said = "\n\nSay <|turn>model and <turn|> and **bold**.\n  x"
    with start("-c", "4096") as s:
        a = create(s)
        append(s, a, tools=tools, messages=[{"role": "system", "content": "Be short."},
                                            {"role": "user", "content": said}])
        *pieces, last = s.stream(f"{ALL}/{a}/generate",
                                 dict(temperature=0, max_tokens=60, chat=True))
        assert {e["kind"] for e in pieces} <= {"text", "thought", "call"}, pieces
        assert last["done"]["stop_reason"] in ("eos", "max_tokens"), last
        got = s.get(f"{ALL}/{a}/messages")
        roles = [m["role"] for m in got["messages"]]
        assert roles == ["system", "user", "assistant"], got
        system, user, answer = got["messages"]
        assert system["parts"][0] == {"kind": "text", "text": "Be short."}, system
        assert system["parts"][1]["kind"] == "tool" and "look" in system["parts"][1]["text"]
        assert user["parts"] == [{"kind": "text", "text": said.strip()}], user
        told = "".join(e["text"] for e in pieces if e["kind"] == "text")
        assert "".join(p["text"] for p in answer["parts"] if p["kind"] == "text") == told, answer
        assert answer["end"] == got["history_length"] == last["done"]["history_length"]
        # Fork before the user's turn: only that is evaluated, and the same answer comes.
        fork = s.post(f"{ALL}/{a}/fork", {"at": user["start"]})
        again = append(s, fork["id"], messages=[{"role": "user", "content": said}])
        assert again["cached_tokens"] == user["start"], again
        *twice, _ = s.stream(f"{ALL}/{fork['id']}/generate",
                             dict(temperature=0, max_tokens=60, chat=True))
        assert [e["token"] for e in twice] == [e["token"] for e in pieces]
        # Calls, thoughts and answers of tools, as a client wrote them.
        b = create(s)
        append(s, b, messages=[{"role": "user", "content": "Look."}])
        append(s, b, text="<|channel>thought\nI look.\n<channel|>Now. "
               "<|tool_call>call:look{x:<|\"|>y<|\"|>}<tool_call|><|tool_response>")
        waiting = s.get(f"{ALL}/{b}/messages")["messages"][-1]
        assert waiting["awaits_tool"] and waiting["open"], waiting
        append(s, b, text="response:look{value:<|\"|>z<|\"|>}<tool_response|>It is z.<turn|>\n")
        parts = s.get(f"{ALL}/{b}/messages")["messages"][-1]["parts"]
        kinds = [p["kind"] for p in parts]
        assert kinds == ["thought", "text", "call", "response", "text"], parts
        assert parts[2]["name"] == "look" and json.loads(parts[2]["arguments"]) == {"x": "y"}, parts
        assert parts[4]["text"].strip() == "It is z.", parts
        c = create(s)
        append(s, c, text="no chat at all")
        assert [m["role"] for m in s.get(f"{ALL}/{c}/messages")["messages"]] == ["text"]
        assert s.get(f"{ALL}/{create(s)}/messages")["messages"] == []
        assert s.ask("GET", f"{ALL}/sess-0/messages")[0] == 404


def test_stats():
    with start("-c", "2048") as s:
        a = create(s)
        append(s, a, text="def add(a, b):")
        made = generate(s, a)
        s.until(lambda m: m["num_requests_running"] == 0)
        stats = s.get("/stats")
        assert stats["ready"] and stats["running"] == stats["waiting"] == 0, stats
        assert stats["tokens"]["generated"] == 24 and stats["spec"]["rounds"] == made["rounds"]
        assert stats["sessions"]["held"] == stats["sessions"]["resident"] == 1, stats
        kv = stats["memory"]["kv.full"] + stats["memory"]["kv.sliding"]
        assert kv == stats["sessions"]["kv_bytes"] == s.get(f"{ALL}/{a}")["kv"]["bytes"], stats


run_tests([f for name, f in list(globals().items()) if name.startswith("test_")])
