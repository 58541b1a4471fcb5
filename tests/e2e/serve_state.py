"""serve_state.py KAKEYA FOLDER - the state folder: sessions and conversations leave memory, come
back, and survive restarts and kill -9; damaged files are set aside and never served."""

import glob
import os
import sqlite3
import stat
import subprocess
import sys

from serving import LIMIT, Server, run_tests

KAKEYA, FOLDER = sys.argv[1:3]
PROJECTION = os.path.join(os.path.dirname(__file__), "..", "..", "models", "tiny", "projection")
ALL, CHAT = "/v1/sessions", "/v1/chat/completions"
GREEDY = dict(temperature=0, max_tokens=24, ignore_eos=True)
WORDS = "A boat goes over the sea, and the sea goes under the boat. "
TOOLS = [{"type": "function", "function": {
    "name": "add", "description": "adds numbers. " * 20,
    "parameters": {"type": "object", "properties": {"a": {"type": "number"}}}}}]


def folder(name):
    return os.path.join(FOLDER, name)


def start(name, *args):
    return Server(KAKEYA, "-c", "8192", "--state", folder(name), *args)


def files(name, end):
    return sorted(glob.glob(os.path.join(folder(name), "*" + end)))


def create(s, **body):
    return s.post(ALL, body)["id"]


def append(s, session, **body):
    return s.post(f"{ALL}/{session}/append", body)


def generate(s, session, **body):
    return s.post(f"{ALL}/{session}/generate", {**GREEDY, **body})


def info(s, session):
    return s.get(f"{ALL}/{session}")


def tokens(s, session):
    return s.get(f"{ALL}/{session}/tokens")["tokens"]


def reference(texts):
    """What a server that never lost anything makes of these texts, turn by turn."""
    with Server(KAKEYA, "-c", "8192") as s:
        a = create(s)
        said = []
        for text in texts:
            append(s, a, text=text)
            said.append(generate(s, a)["tokens"])
        return tokens(s, a), said


# ---- sessions -------------------------------------------------------------------------------


def test_restart():
    texts = [WORDS * 50, "And then? ", "Why? "]
    whole, said = reference(texts)
    with start("restart") as s:
        a = create(s, label="mine", spec="auto")
        append(s, a, text=texts[0])
        assert generate(s, a)["tokens"] == said[0]
    assert len(files("restart", ".kv")) == 1  # it went there when the server ended
    for i in 1, 2:
        with start("restart") as s:
            there = info(s, a)
            assert there["label"] == "mine" and not there["resident"] and there["stored"], there
            length = there["history_length"]
            got = append(s, a, text=texts[i])
            assert got["cached_tokens"] == length, got  # nothing was evaluated again
            assert got["evaluated_tokens"] == got["added_tokens"], got
            assert generate(s, a)["tokens"] == said[i]
    with start("restart") as s:
        assert tokens(s, a) == whole
        assert info(s, a)["turns"] == 3
        fork = s.post(f"{ALL}/{a}/fork", {"turn": 1})
        append(s, fork["id"], text=texts[1])
        assert generate(s, fork["id"])["tokens"] == said[1]
        assert s.ask("DELETE", f"{ALL}/{a}")[0] == 200
    assert [os.path.basename(f) for f in files("restart", ".journal")] == \
        [fork["id"] + ".journal"]
    with start("restart") as s:
        assert info(s, fork["id"])["turns"] == 2 and s.ask("GET", f"{ALL}/{a}")[0] == 404


def test_idle_and_memory():
    with start("idle", "--idle-time", "4") as s:
        a = create(s)
        append(s, a, text=WORDS * 20)
        first = generate(s, a)
        assert not files("idle", ".kv")  # not after a turn: when it is idle
        s.until(lambda m: m["held_session_resident"] == 0)
        assert files("idle", ".kv") and info(s, a)["kv"]["bytes"] == 0
        again = generate(s, a)
        assert again["cached_tokens"] == first["history_length"], again
        assert s.metrics()["state_loaded_total"] >= 1
    with start("memory", "--kv-memory", "3") as s:
        ids = [create(s) for _ in range(6)]
        lengths = {}
        for i in ids:
            append(s, i, text=WORDS * 30)
            lengths[i] = generate(s, i)["history_length"]
        m = s.until(lambda m: m["held_session_resident"] < 6)
        assert m["state_saved_total"] >= 1 and m["held_session_count"] == 6
        for i in ids:
            assert generate(s, i)["cached_tokens"] == lengths[i]


def test_kill():
    """A few kills while turns run: finished turns are there, and the history goes on from them."""
    a, known = None, []
    for kills in range(4):
        with start("kill", "--idle-time", "1" if kills == 1 else "300") as s:
            if a is None:
                a = create(s)
                append(s, a, text=WORDS * 30)
                known = tokens(s, a)
            there = tokens(s, a)
            assert there[:len(known)] == known, (len(there), len(known))
            made = generate(s, a)
            if kills > 0:  # what is newer than the K/V file is evaluated again, and that is said
                assert made["cached_tokens"] + made["evaluated_tokens"] == len(there), made
                assert made["cached_tokens"] > 0 if kills == 2 else made["evaluated_tokens"] > 0
            known = tokens(s, a)
            assert known == there + made["tokens"]
            if kills == 1:
                s.until(lambda m: m["state_saved_total"] == 1)
            running = s.send(f"{ALL}/{a}/generate", dict(GREEDY, max_tokens=3000, stream=True))
            assert running.recv(64)
            s.kill()
            running.close()
    with start("kill") as s:
        assert tokens(s, a) == known  # the turn in flight is what was lost
        with Server(KAKEYA, "-c", "8192") as other:
            b = create(other)
            append(other, b, tokens=known)
            assert generate(other, b)["logits_hash"] == generate(s, a)["logits_hash"]


def flip(path, at):
    with open(path, "r+b") as f:
        f.seek(at, 2 if at < 0 else 0)
        byte = f.read(1)[0]
        f.seek(at, 2 if at < 0 else 0)
        f.write(bytes([byte ^ 0x40]))


def test_damage():
    """K/V, the end of a journal, its head, the index: each is said, set aside, and not served."""
    with start("damage") as s:
        ids = [create(s) for _ in range(4)]
        for i in ids:
            append(s, i, text=WORDS * 10)
            generate(s, i)
        before = {i: tokens(s, i) for i in ids}
        same = generate(s, ids[3])["tokens"]
        before[ids[3]] += same
    kv, tail, head, fine = ids
    flip(os.path.join(folder("damage"), kv + ".kv"), 20000)
    flip(os.path.join(folder("damage"), tail + ".journal"), -20)
    flip(os.path.join(folder("damage"), head + ".journal"), 40)
    with open(os.path.join(folder("damage"), "index.sqlite"), "r+b") as f:
        f.seek(0)
        f.write(b"\xff" * 3000)
    with start("damage") as s:
        assert sum("set aside" in line for line in s.lines) == 3, s.lines
        assert len(s.get(ALL)["data"]) == 3
        assert s.ask("GET", f"{ALL}/{head}")[0] == 404
        # The last turn of one is lost, and it goes on from the turn before it.
        cut = tokens(s, tail)
        assert cut == before[tail][:-24] and len(cut) > 0
        assert generate(s, tail)["tokens"] == before[tail][-24:]
        # The K/V of another: it is evaluated again from its journal.
        again = generate(s, kv)
        assert again["cached_tokens"] == 0 and again["evaluated_tokens"] == len(before[kv]), again
        assert again["tokens"] == same
        assert s.metrics()["state_damaged_total"] == 4
        assert tokens(s, fine) == before[fine]
    assert len(files("damage", ".damaged")) == 4, files("damage", ".damaged")


def test_full_disk():
    """A turn that cannot be stored is refused, and is not in the history."""
    with start("full") as s:
        a = create(s)
        append(s, a, text="def add(a, b):")
        had = tokens(s, a)
        path = os.path.join(folder("full"), a + ".journal")
        os.rename(path, path + ".away")
        error, _ = s.refused(f"{ALL}/{a}/append", {"text": "x"}, 503)
        assert error["code"] == "storage_failed", error
        error, _ = s.refused(f"{ALL}/{a}/generate", GREEDY, 503)
        os.rename(path + ".away", path)
        assert tokens(s, a) == had
        assert generate(s, a)["cached_tokens"] == len(had)
        assert s.metrics()["state_failures_total"] == 2


def test_full_disk_of_conversations():
    """An answer that could be given is given; that it is stored nowhere is said and counted."""
    with start("unstored") as s:
        talk(s, 1)
        os.rename(folder("unstored"), folder("unstored.away"))
        talk(s, 2)
        os.rename(folder("unstored.away"), folder("unstored"))
        assert s.metrics()["state_failures_total"] >= 1
        assert any("conv-" in line and "is not stored: cannot create" in line for line in s.lines)
        talk(s, 3)
        assert s.metrics()["state_conversations"] == 2
        os.rename(folder("unstored"), folder("unstored.away"))
    assert any("the K/V of 2 of 2 sessions in memory was not saved" in line for line in s.lines)


def talk(s, i):
    body = dict(messages=[{"role": "user", "content": f"{i} " + WORDS * 20}], temperature=0,
                max_tokens=4)
    return s.post(CHAT, body)


def test_locked_index():
    """An index that cannot be written leaves sessions writable, and ends what makes place."""
    with start("locked", "--sessions", "1") as s:
        a = create(s)
        append(s, a, text=WORDS)
        for i in range(6):
            talk(s, i)
    with start("locked", "--sessions", "1", "--state-limit", "1", "--idle-time", "1") as s:
        append(s, a, text=WORDS)
        index = sqlite3.connect(os.path.join(folder("locked"), "index.sqlite"), timeout=LIMIT,
                                isolation_level=None)
        index.execute("BEGIN IMMEDIATE")
        # Over the limit, and nothing can be deleted: that ends all the same.
        s.until(lambda m: m["held_session_resident"] == 0, LIMIT)
        append(s, a, text=WORDS)  # it is in the journal
        error, _ = s.refused(f"{ALL}/{a}/generate", GREEDY, 503)
        assert "locked" in error["message"], error
        talk(s, 6)
        m = s.metrics()
        assert m["state_failures_total"] >= 1 and m["state_deleted_total"] == 0, m
        index.execute("ROLLBACK")
        index.close()
        generate(s, a)
        append(s, a, text=WORDS)
        s.until(lambda m: m["state_deleted_total"] >= 1, LIMIT)
        had = tokens(s, a)
    with start("locked") as s:
        assert tokens(s, a) == had and info(s, a)["turns"] == 1


def test_leftovers():
    """What a server that was killed left half-written goes; what may be wanted stays."""
    with start("left") as s:
        a = create(s)
        append(s, a, text=WORDS)
    name = os.path.join(folder("left"), "sess-" + 32 * "%d")
    gone = [files("left", ".kv")[0] + ".kakeya-tmp", name % ((0,) * 32) + ".kv"]
    kept = [name % ((1,) * 32) + end for end in (".kv", ".journal.damaged")] + \
        [os.path.join(folder("left"), "notes")]
    for path in gone + kept:
        with open(path, "wb") as f:
            f.write(b"something")
    with start("left") as s:
        assert [os.path.exists(path) for path in gone + kept] == [False] * 2 + [True] * 3
        assert s.metrics()["state_sessions"] == 1
        assert generate(s, a)["evaluated_tokens"] == 0
        for path in glob.glob(os.path.join(folder("left"), "index.sqlite*")):
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o600, path


def test_no_files():
    """What has a journal's name and is none hangs nothing, and is said."""
    path = os.path.join(folder("odd"), "sess-" + 32 * "%d")
    os.mkdir(folder("odd"))
    os.mkfifo(path % ((0,) * 32) + ".journal")
    os.mkdir(path % ((1,) * 32) + ".journal")
    os.symlink("nowhere", path % ((2,) * 32) + ".journal")
    with start("odd") as s:
        assert s.metrics()["state_sessions"] == 0
        said = "\n".join(line for line in s.lines if "state: " in line)
        assert said.count("is not a regular file") == 2 and "cannot open" in said, s.lines
        append(s, create(s), text=WORDS)


def test_lost_kv():
    """K/V that is gone is evaluated again, and saved again."""
    with start("lost") as s:
        a = create(s)
        append(s, a, text=WORDS * 10)
    os.unlink(files("lost", ".kv")[0])
    with start("lost") as s:
        there = info(s, a)["history_length"]
        assert append(s, a, tokens=[])["evaluated_tokens"] == there
    assert len(files("lost", ".kv")) == 1
    with start("lost") as s:
        assert append(s, a, tokens=[])["cached_tokens"] == there


def test_other_start():
    """A session that this start of the server cannot go on with is not called damaged."""
    with start("other", "-mp", PROJECTION) as s:
        a = create(s, kv_full="restored")
        append(s, a, text=WORDS * 10)
        had = tokens(s, a)
    with start("other") as s:
        error, _ = s.refused(f"{ALL}/{a}/generate", GREEDY, 400)
        assert "projection" in error["message"] and error["code"] != "data_loss", error
        assert tokens(s, a) == had
    with start("other", "-mp", PROJECTION) as s:
        assert generate(s, a)["cached_tokens"] == len(had)


def test_no_turn():
    """A generation that has no place for a token is no turn, in memory as on disk."""
    with start("none") as s:
        a = create(s, context=16)
        append(s, a, tokens=[5] * 16)
        s.refused(f"{ALL}/{a}/generate", GREEDY, 400)
        assert info(s, a)["turns"] == 0
    with start("none") as s:
        assert info(s, a)["turns"] == 0 and len(tokens(s, a)) == 16


def test_one_server():
    with start("one"):
        other = subprocess.run([KAKEYA, "serve", "--port", "0", "--state", folder("one")],
                               capture_output=True, text=True, timeout=60)
        assert other.returncode == 1 and "another server uses" in other.stderr, other.stderr


def test_folder_before_the_model():
    """A folder that cannot be had is found before a model is read, which may take minutes."""
    os.mkdir(folder("no_model"))
    with start("one"):
        for state, words in ((folder("one"), "another server uses"),
                             (os.path.join(FOLDER, "absent", "state"), "cannot make the folder"),
                             ("x" * 4000, "at most")):
            other = subprocess.run([KAKEYA, "serve", "--port", "0", "-m", folder("no_model"),
                                    "--state", state], capture_output=True, text=True,
                                   timeout=LIMIT, check=False)
            assert other.returncode == 1 and words in other.stderr, (state, other.stderr)


# ---- conversations --------------------------------------------------------------------------


def turns(name, restart, **more):
    """Five turns; the server ends between them, or is killed.  Each is evaluated from about where
    the turn before it had its generation prompt."""
    messages = [{"role": "system", "content": "You are terse. " * 12}]
    before, cached = 0, []
    for turn in range(5):
        messages.append({"role": "user", "content": f"Question {turn}: " + "why and how? " * 60})
        with start(name) as s:
            answer = s.post(CHAT, dict(messages=messages, temperature=0, max_tokens=48, **more))
            cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
            if restart == "kill":
                s.kill()
        if restart == "end":
            assert cached[-1] >= before - 64, (name, turn, cached, before)
        said = answer["choices"][0]["message"]
        messages.append({"role": "assistant", "content": said["content"] or "",
                         **({"tool_calls": said["tool_calls"]} if "tool_calls" in said else {})})
        for call in said.get("tool_calls", []):
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "{}"})
        before = answer["usage"]["prompt_tokens"]
    assert before > 2 * 512, before  # past two wraps of the window
    return messages, cached, answer["choices"][0]["message"]


def test_five_turns_with_restarts():
    turns("chat", "end", reasoning_effort="none")
    assert len(files("chat", ".journal")) == 1, files("chat", ".journal")  # one conversation
    turns("chat", "end", reasoning_effort="high")
    turns("chat", "end", tools=TOOLS)
    messages, _, last = turns("chat", "end", tools=TOOLS, reasoning_effort="high")
    with Server(KAKEYA, "-c", "8192", "--spec", "none") as other:
        body = dict(messages=messages[:-1], temperature=0, max_tokens=48, tools=TOOLS,
                    reasoning_effort="high")
        there = other.post(CHAT, body)["choices"][0]["message"]
        assert [last["content"], last.get("reasoning_content")] == \
            [there["content"], there.get("reasoning_content")]


def test_kept_in_another_way():
    """Rows of another format or policy than this start's serve no conversation: it is read again."""
    ways = (), ("--kv-format", "q8"), (), ("--kv-full", "window", "--window", "64"), ()
    for way in ways:
        with start("ways", *way) as s:
            first = talk(s, 1)["usage"]["prompt_tokens_details"]["cached_tokens"]
            again = talk(s, 1)["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert first == 0 and again > 200, (way, first, again, s.lines)
    with start("ways") as s:
        assert talk(s, 1)["usage"]["prompt_tokens_details"]["cached_tokens"] > 200


def test_killed_conversation():
    """Without a K/V file nothing is cached, nothing is wrong, and it is still one conversation."""
    _, cached, _ = turns("killed", "kill", reasoning_effort="none")
    assert cached == [0] * 5, cached
    assert len(files("killed", ".journal")) == 1
    with start("killed") as s:
        db = sqlite3.connect(os.path.join(folder("killed"), "index.sqlite"))
        assert db.execute("SELECT count(*) FROM prefixes").fetchone()[0] > 10
        db.close()
        assert s.metrics()["state_conversations"] == 1


def test_conversations_leave_memory():
    """More conversations than are kept: none is dropped, and each goes on."""
    with start("many", "--sessions", "2") as s:
        talks = []
        for i in range(5):
            messages = [{"role": "user", "content": f"Number {i}. " + f"It is {i * i}. " * 90}]
            answer = s.post(CHAT, dict(messages=messages, temperature=0, max_tokens=8))
            messages.append({"role": "assistant",
                             "content": answer["choices"][0]["message"]["content"]})
            messages.append({"role": "user", "content": "And now?"})
            talks.append((messages, answer["usage"]["prompt_tokens"]))
        for messages, before in talks:
            usage = s.post(CHAT, dict(messages=messages, temperature=0, max_tokens=8))["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] >= before - 64, (usage, before)
        m = s.metrics()
        assert m["prefix_cache_dropped_total"] <= 5, m  # only what stood in for a running one
        assert m["state_conversations"] == 5 and m["session_count"] <= 2


def test_shared_pages():
    """Conversations with one system prompt share its pages: the K/V counted by the engine grows by
    much less than each has."""
    system = {"role": "system", "content": "You know everything about boats. " * 120}
    with Server(KAKEYA, "-c", "8192") as s:
        def kv(m):
            return sum(v for k, v in m.items() if k.startswith('memory_bytes{category="kv.full'))
        sizes = []
        for i in range(5):
            s.post(CHAT, dict(messages=[system, {"role": "user", "content": f"Is {i} one?"}],
                              temperature=0, max_tokens=4))
            sizes.append(kv(s.metrics()))
        assert sizes[0] > 0 and sizes[4] < 1.5 * sizes[0], sizes


def test_limit_of_the_folder():
    with start("limit", "--state-limit", "1", "--sessions", "1") as s:
        held = create(s)
        append(s, held, text=WORDS * 10)
        for i in range(6):
            s.post(CHAT, dict(messages=[{"role": "user", "content": f"{i} " + WORDS * 20}],
                              temperature=0, max_tokens=4))
        m = s.metrics()
        assert m["state_deleted_total"] >= 1, m
        assert any("is deleted" in line for line in s.lines)  # and it is said
        assert tokens(s, held)


run_tests([f for name, f in list(globals().items()) if name.startswith("test_")])
