"""serve_idle.py KAKEYA FOLDER [SESSIONS [TOKENS]] - what idle sessions of `kakeya serve --state` cost.

Makes that many sessions, waits until they have left memory, and prints: VmRSS of the server, bytes on
disk, the time to the first token of sessions that come back with their files out of the page cache,
and the time from the start of the program until it is ready with all of them."""

import glob
import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "e2e"))
from serving import Server  # noqa: E402

KAKEYA, FOLDER = sys.argv[1:3]
SESSIONS = int(sys.argv[3]) if len(sys.argv) > 3 else 500
TOKENS = int(sys.argv[4]) if len(sys.argv) > 4 else 1000
ALL = "/v1/sessions"


def rss(server):
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS")) / 1e3


def start():
    return Server(KAKEYA, "--state", FOLDER, "--idle-time", "2", "--max-sessions", "100000")


def drop(session):
    """Takes a session's files out of the page cache."""
    for path in glob.glob(os.path.join(FOLDER, session + ".*")):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def first_token(server, session):
    """Seconds from the request to the first byte of its first event."""
    begin = time.monotonic()
    s = server.send(f"{ALL}/{session}/generate", dict(max_tokens=2, stream=True, temperature=0))
    data = b""
    while b'"token"' not in data:
        data += s.recv(4096)
    took = time.monotonic() - begin
    s.close()
    return took


def main():
    with start() as s:
        empty = rss(s)
        word = s.post("/tokenize", {"content": "sea"})["tokens"][0]
        # Each has rows of its own from its last tokens on; on disk each has all of them.
        first = s.post(ALL, {})["id"]
        tokens = [word + (k * k) % 500 for k in range(TOKENS - 8)]
        s.post(f"{ALL}/{first}/append", {"tokens": tokens})
        ids = []
        for i in range(SESSIONS):
            ids.append(s.post(f"{ALL}/{first}/fork", {})["id"])
            s.post(f"{ALL}/{ids[-1]}/append",
                   {"tokens": [word + (i * 7 + k) % 500 for k in range(8)]})
        s.until(lambda m: m["held_session_resident"] == 0, 300)
        idle, m = rss(s), s.metrics()
        for i in ids:
            drop(i)
        took = [first_token(s, i) for i in ids[:: max(1, SESSIONS // 20)]]
    begin = time.monotonic()
    with start() as s:
        ready = time.monotonic() - begin
        there = len(s.get(ALL)["data"])
        again = rss(s)
    print(json.dumps(dict(
        sessions=SESSIONS, tokens=TOKENS, rss_mb_empty=empty, rss_mb_idle=idle,
        disk_mb=round(m["state_bytes"] / 1e6, 1), first_token_ms_median=round(
            1e3 * statistics.median(took), 1), first_token_ms_worst=round(1e3 * max(took), 1),
        ready_s=round(ready, 3), restored=there, rss_mb_after_restart=again), indent=1))


main()
