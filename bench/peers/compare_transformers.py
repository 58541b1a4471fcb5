#!/usr/bin/env python3
"""Times kakeya and transformers on one GPU with random 26B-A4B weights in bf16, and writes a report.

usage: compare_transformers.py --kakeya build-gpu/kakeya [--report FILE.json] [--bench FILE.json]
                               [--exact FILE.json] [--layers 30] [--ctx 1238,3238] [--rows 1,4,8,16]

Weights are random on both sides, each made by its own program in memory: the shapes are the same, the
values are not.  Both stay on the GPU together; transformers takes its first turns before kakeya's and
the rest after it, so that a drift of the clocks would show in its spread.  A turn of transformers
decodes --predict tokens at each context, prefills --prefill tokens, and makes one forward for each
number of rows; the same are kakeya's (`kakeya bench`), and turns are paired in order.  Medians of turns
with their spread; each side is warmed up first.  transformers runs as it comes: sdpa attention,
grouped_mm experts, no compilation.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "gpu"))


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "n": len(values)}


def with_samples(values):
    return dict(spread(values), samples=values)


class Transformers:
    """Its turns, on a model made on the GPU."""

    def __init__(self, a):
        import torch
        import transformers

        import exact
        self.a, self.torch, self.version = a, torch, transformers.__version__
        a.torch, a.vocab, a.window = a.device, a.ids, 1024
        self.model = exact.make(a, torch.bfloat16)
        self.samples = {"prefill": [], **{("decode", c): [] for c in a.ctx}, **{("rows", n): [] for n in a.rows}}

    def ids(self, n):
        return self.torch.randint(5, self.a.ids, (1, n), device=self.a.device)

    def timed(self, what):
        sync = self.torch.cuda.synchronize if self.a.device == "cuda" else (lambda: None)
        sync()
        t = time.perf_counter()
        what()
        sync()
        return time.perf_counter() - t

    def forward(self, ids, cache=None):
        return self.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)

    def decode(self, cache, n):
        ids = self.ids(1)
        for _ in range(n):
            out = self.forward(ids, cache)
            cache, ids = out.past_key_values, out.logits[:, -1].argmax(-1, keepdim=True)

    def turn(self, count):
        a = self.a
        got = {"prefill": a.prefill / self.timed(lambda: self.forward(self.ids(a.prefill)))}
        for c in a.ctx:
            cache = self.forward(self.ids(c)).past_key_values
            got["decode", c] = a.peer_predict / self.timed(lambda: self.decode(cache, a.peer_predict))
            if c == a.ctx[0]:
                for n in a.rows:
                    got["rows", n] = 1e3 * self.timed(
                        lambda: self.model(self.ids(n), past_key_values=cache, use_cache=True, logits_to_keep=n))
        if count:
            for k, v in got.items():
                self.samples[k].append(v)

    def turns(self, n, warm):
        with self.torch.no_grad():
            for i in range(n + warm):
                self.turn(i >= warm)


def kakeya(a):
    path = a.bench or "/tmp/kakeya-bench.json"
    command = [a.kakeya, "bench", "-q", "--synthetic", f"26b-a4b:bf16:{a.layers}" if a.layers != 30 else "26b-a4b:bf16",
               "--device", a.device, "--ctx", ",".join(map(str, a.ctx)), "-n", str(a.predict), "--prefill",
               str(a.prefill), "--rows", ",".join(map(str, a.rows)), "--repeat", str(a.turns), "--report", path, "--force"]
    r = subprocess.run(command, capture_output=True, text=True, timeout=a.timeout)
    print(r.stdout + r.stderr, flush=True)
    if r.returncode != 0:
        sys.exit(f"kakeya bench: exit status {r.returncode}")
    with open(path) as f:
        return json.load(f)


def exactness(a):
    if not a.exact:
        return None
    with open(a.exact) as f:
        e = json.load(f)
    kept = ("arm", "logits", "ratio", "rows_with_other_experts")
    rows = [dict({k: row[k] for k in kept if k in row}, weights=r["weights"]) for r in e["results"] for row in r["arms"]]
    return {"layers": e["layers"], "tokens": e["tokens"], "positions": e["rows"], "limit": e["limit"],
            "holds": e["holds"], "arms": rows}


def make_report(a, ours, peer):
    plain = ours["arms"]["plain"]
    theirs = peer.samples
    by_ctx = {c["ctx"]: c for c in ours["contexts"]}
    decode, prefill = by_ctx[a.ctx[0]]["decode_tok_s"]["samples"], plain["prefill_tok_s"]["samples"]
    rows = [{"turn": i + 1, "kakeya": {"decode": decode[i], "prefill": prefill[i]},
             "peer": {"decode": theirs["decode", a.ctx[0]][i], "prefill": theirs["prefill"][i]}}
            for i in range(a.turns)]
    ratio = {k: spread([r["kakeya"][k] / r["peer"][k] for r in rows]) for k in ("decode", "prefill")}
    contexts = [{"ctx": c, "decode_tok_s": {"kakeya": with_samples(by_ctx[c]["decode_tok_s"]["samples"]),
                                            "peer": with_samples(theirs["decode", c])},
                 "syncs_per_token": by_ctx[c]["syncs_per_token"]} for c in a.ctx]
    forwards = [dict(p, peer_ms=with_samples(theirs["rows", p["rows"]])) for p in ours["rows"]["whole_model"]]
    settings = {"layers": a.layers, "ctx": a.ctx, "predict": a.predict, "peer_predict": a.peer_predict,
                "prefill": a.prefill, "rows": a.rows, "turns": a.turns, "peer_turns_before": a.before,
                "weights": "random, of each program's own making"}
    return {
        "schema": 4, "kind": "compare", "version": ours["version"], "build": ours["build"],
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "command": "make bench-gpu",
        "machine": ours["machine"], "model": ours["model"], "drafter": None, "projection": None, "settings": settings,
        "peer": {"name": "transformers", "build": peer.version, "torch": peer.torch.__version__,
                 "attention": "sdpa", "experts": "grouped_mm"},
        "bandwidth_gb_s": ours["bandwidth"], "device_memory": ours.get("device_memory"),
        "decode_tok_s": {"kakeya": spread(decode), "peer": spread(theirs["decode", a.ctx[0]])},
        "prefill_tok_s": {"kakeya": spread(prefill), "peer": spread(theirs["prefill"])},
        "decode_ratio": ratio["decode"], "prefill_ratio": ratio["prefill"],
        "contexts": contexts, "forwards": forwards, "exactness": exactness(a), "rows": rows,
    }


def show(report):
    for c in report["contexts"]:
        k, p = c["decode_tok_s"]["kakeya"], c["decode_tok_s"]["peer"]
        print(f"decode at {c['ctx']}: kakeya {k['median']:.1f} tok/s ({k['min']:.1f} to {k['max']:.1f}), transformers "
              f"{p['median']:.1f} ({p['min']:.1f} to {p['max']:.1f})")
    k, p = report["prefill_tok_s"]["kakeya"], report["prefill_tok_s"]["peer"]
    print(f"prefill: kakeya {k['median']:.0f} tok/s, transformers {p['median']:.0f}")
    for f in report["forwards"]:
        print(f"forward of {f['rows']} rows: kakeya {f['ms']:.2f} ms ({f.get('experts', 0):.1f} distinct experts), "
              f"transformers {f['peer_ms']['median']:.1f} ms")


def main():
    numbers = lambda text: [int(n) for n in text.split(",")]  # noqa: E731
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--kakeya", default="build-gpu/kakeya")
    p.add_argument("--device", default="cuda")
    p.add_argument("--report")
    p.add_argument("--bench", help="where kakeya's own report goes")
    p.add_argument("--exact", help="the report of tests/gpu/exact.py")
    p.add_argument("--ctx", type=numbers, default=[1238, 3238])
    p.add_argument("--rows", type=numbers, default=[1, 4, 8, 16])
    for name, value in (("layers", 30), ("predict", 64), ("peer-predict", 16), ("prefill", 3238), ("turns", 5),
                        ("ids", 262144), ("timeout", 240)):
        p.add_argument("--" + name, type=int, default=value)
    a = p.parse_args()
    a.before = (a.turns + 1) // 2
    t = time.time()
    peer = Transformers(a)
    peer.turns(a.before, 1)
    print(f"transformers: {a.before} turns after {time.time() - t:.0f} s", flush=True)
    ours = kakeya(a)
    peer.turns(a.turns - a.before, 1)
    report = make_report(a, ours, peer)
    show(report)
    print(f"in {time.time() - t:.0f} s")
    if a.report:
        with open(a.report, "w") as f:
            json.dump(report, f, indent=1)


if __name__ == "__main__":
    main()
