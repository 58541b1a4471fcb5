#!/usr/bin/env python3
"""sdk_overhead.py [--kakeya PROGRAM] [--pairs 21] [--tokens 2000] [--rate 1000] [--typescript DIST]

What the SDKs add to reading the same stream without them.  A server with the shipped model generates
the same tokens again and again, from forks of one session; the arms take turns, and the first of
them changes from turn to turn:

    raw     the bytes of the stream are read and thrown away: with http.client, asyncio's streams, fetch
    sync    kakeya.Client, generate_pieces, against http.client
    async   kakeya.AsyncClient, the same, against asyncio's streams: what asyncio itself costs is in both
    node    @kakeya/runtime, generatePieces, against fetch; with --typescript

Two figures for each.  `wall`: the median over the turns of its seconds over those of the raw arm;
the server's speed is in both, so this is noisy on a machine that does other work: repeat it.
`cpu`: processor time of the client, which the rest of the machine hardly changes; what an arm
spends beyond the raw one for a token, in microseconds, and as a share of the time of a token at
--rate tokens a second.  That share is what the client would cost if none of its work overlapped with
the server's.  Ends with 1 when such a share passes --most (default: 0.03).
"""
import argparse
import asyncio
import http.client
import json
import os
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(ROOT, "tests", "e2e"), os.path.join(ROOT, "sdk", "python", "src")]
from serving import Server  # noqa: E402

from kakeya import AsyncClient, Client  # noqa: E402

HOW = dict(temperature=0, ignore_eos=True)


def read_raw(server, session, tokens):
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    body = json.dumps(dict(HOW, max_tokens=tokens, stream=True))
    connection.request("POST", f"/v1/sessions/{session}/generate", body)
    answer, n = connection.getresponse(), 0
    while data := answer.read1(65536):
        n += data.count(b'"token"')
    connection.close()
    return n


async def read_raw_async(server, session, tokens):
    body = json.dumps(dict(HOW, max_tokens=tokens, stream=True)).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"POST /v1/sessions/%s/generate HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                 b"Content-Length: %d\r\n\r\n%s" % (session.encode(), len(body), body))
    n = 0
    while data := await reader.read(65536):
        n += data.count(b'"token"')
    writer.close()
    return n


def read_sync(client, session, tokens):
    return sum(1 for p in client.session(session).generate_pieces(tokens, **HOW) if p.token is not None)


async def read_async(client, session, tokens):
    n = 0
    async for piece in client.session(session).generate_pieces(tokens, **HOW):
        n += piece.token is not None
    return n


class Arms:
    """Measures one arm at a time, each on a fork of its own."""

    def __init__(self, server, tokens):
        self.server, self.tokens = server, tokens
        self.client = Client(f"127.0.0.1:{server.port}")
        self.loop = asyncio.new_event_loop()
        self.async_client = AsyncClient(f"127.0.0.1:{server.port}")
        self.prompt = self.client.create_session(spec="none", context=tokens + 64)
        self.prompt.append_text("def main():")
        self.run = {
            "raw": lambda s: read_raw(server, s, tokens),
            "raw_async": lambda s: self.loop.run_until_complete(read_raw_async(server, s, tokens)),
            "sync": lambda s: read_sync(self.client, s, tokens),
            "async": lambda s: self.loop.run_until_complete(read_async(self.async_client, s, tokens)),
        }

    def measure(self, name):
        with self.prompt.fork() as fork:
            wall, cpu = time.perf_counter(), time.process_time()
            n = self.run[name](fork.session_id)
            took = time.perf_counter() - wall, time.process_time() - cpu
        assert n == self.tokens, (name, n)
        return took

    def close(self):
        self.loop.run_until_complete(self.async_client.close())
        self.loop.close()
        self.client.close()


def turns(measure, names, pairs):
    """(wall, cpu) seconds by arm, a list with an entry for each turn; the first turn is not counted."""
    got = {name: [] for name in names}
    for i in range(pairs + 1):
        for name in names if i % 2 == 0 else names[::-1]:
            took = measure(name)
            if i > 0:
                got[name].append(took)
    return got


def compare(got, raw, name, tokens, rate):
    walls = [a[0] / b[0] for a, b in zip(got[name], got[raw])]
    more = statistics.median(a[1] - b[1] for a, b in zip(got[name], got[raw])) / tokens
    quarters = statistics.quantiles(walls, n=4)
    return dict(arm=name, wall=round(statistics.median(walls), 4),
                wall_quartiles=[round(quarters[0], 4), round(quarters[2], 4)],
                cpu_us_per_token=round(1e6 * more, 2), cpu_share_at_rate=round(more * rate, 4))


def node_turns(server, prompt, tokens, pairs, dist):
    script = os.path.join(ROOT, "bench", "sdk_overhead.mjs")
    out = subprocess.run(["node", script, dist, f"127.0.0.1:{server.port}", prompt, str(tokens),
                          str(pairs)], check=True, capture_output=True, text=True).stdout
    return json.loads(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kakeya", default=os.path.join(ROOT, "build", "kakeya"))
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--rate", type=float, default=1000.0, help="tokens a second")
    parser.add_argument("--most", type=float, default=0.03, help="fail above this share")
    parser.add_argument("--typescript", metavar="DIST", help="folder of the compiled client")
    o = parser.parse_args()
    with Server(o.kakeya, "-c", str(o.tokens + 64), "--max-sessions", "8") as server:
        arms = Arms(server, o.tokens)
        got = turns(arms.measure, ["raw", "sync", "raw_async", "async"], o.pairs)
        found = [compare(got, raw, name, o.tokens, o.rate)
                 for raw, name in (("raw", "sync"), ("raw_async", "async"))]
        if o.typescript:
            node = node_turns(server, arms.prompt.session_id, o.tokens, o.pairs, o.typescript)
            found.append(compare(node, "fetch", "node", o.tokens, o.rate))
        arms.close()
    speed = o.tokens / statistics.median(wall for wall, _ in got["raw"])
    print(json.dumps(dict(tokens=o.tokens, pairs=o.pairs, raw_tok_s=round(speed, 1), rate=o.rate,
                          load=round(os.getloadavg()[0], 2), arms=found), indent=1))
    return int(any(arm["cpu_share_at_rate"] > o.most for arm in found))


if __name__ == "__main__":
    sys.exit(main())
