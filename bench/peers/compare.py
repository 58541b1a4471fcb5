#!/usr/bin/env python3
"""Times kakeya and llama.cpp on one GGUF file, turn and turn about, and writes one report.

usage: compare.py --llama-bench PATH --model FILE.gguf [--kakeya build/kakeya] [--threads 2]
                  [--predict 32] [--prefill 512] [--repeat 5] [--inner 3] [--report FILE.json]

Plain Python.  Each turn starts a fresh process of either engine behind a page cache that has
forgotten the file, and both read it anew before timing (kakeya's warm-up reaches every expert);
the first turn of each is thrown away.  So each fills the page cache in its own way: what one
engine, or a copy of the file, left there in small pages the other would have to live with.
--inner is how often each repeats within a turn.
kakeya measures the machine's read bandwidth in every one of its turns.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time


def forget(path):
    """Drops the file from the page cache."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def kakeya(a):
    forget(a.model)
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "report.json")
        subprocess.run([a.kakeya, "bench", "-q", "--huge-pages", "-m", a.model, "-t", str(a.threads), "-n", str(a.predict),
                        "--prefill", str(a.prefill), "--rows", "none", "--repeat", str(a.inner), "--report", path],
                       check=True, stdout=subprocess.DEVNULL)
        with open(path) as f:
            r = json.load(f)
    plain = r["arms"]["plain"]
    decode, bandwidth = plain["decode_tok_s"]["median"], max(r["bandwidth"].values())
    # A file does not say that its weights are random; the caller does.
    r["model"]["synthetic"] = r["model"]["synthetic"] or a.random_weights
    return {"decode": decode, "prefill": plain["prefill_tok_s"]["median"],
            "share": decode * r["model"]["token_bytes"] / 1e9 / bandwidth, "bandwidth": bandwidth,
            "machine": r["machine"], "model": r["model"], "version": r["version"],
            "build": r["build"]}


def llama(a):
    forget(a.model)
    out = subprocess.run([a.llama_bench, "-m", a.model, "-t", str(a.threads), "-n", str(a.predict),
                          "-p", str(a.prefill), "-r", str(a.inner), "-o", "json"],
                         check=True, capture_output=True, text=True).stdout
    rows = json.loads(out)
    return {"decode": next(r["avg_ts"] for r in rows if r["n_gen"]),
            "prefill": next(r["avg_ts"] for r in rows if r["n_prompt"]),
            "build": rows[0].get("build_commit"), "cpu": rows[0].get("cpu_info")}


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "n": len(values)}


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--llama-bench", required=True)
    p.add_argument("--model", required=True)
    p.add_argument("--kakeya", default="build/kakeya")
    for name, value in (("threads", 2), ("predict", 32), ("prefill", 512), ("repeat", 5), ("inner", 3)):
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--random-weights", action="store_true", help="the file's weights are random: say so in the report")
    p.add_argument("--report")
    a = p.parse_args()
    ours, theirs = [], []
    for turn in range(a.repeat + 1):
        k, l = kakeya(a), llama(a)
        if turn == 0:
            continue  # warm-up
        ours.append(k)
        theirs.append(l)
        print(f"turn {turn}: kakeya {k['decode']:.2f} decode, {k['prefill']:.1f} prefill; "
              f"llama.cpp {l['decode']:.2f}, {l['prefill']:.1f}; bandwidth {k['bandwidth']:.1f} GB/s", flush=True)
    rows = [{"turn": i + 1, "kakeya": {"decode": k["decode"], "prefill": k["prefill"]},
             "peer": {"decode": l["decode"], "prefill": l["prefill"]},
             "bandwidth_gb_s": k["bandwidth"], "share_of_bandwidth": k["share"]}
            for i, (k, l) in enumerate(zip(ours, theirs))]
    settings = {"threads": a.threads, "predict": a.predict, "prefill": a.prefill, "repeat": a.repeat, "inner": a.inner}
    report = {
        "schema": 4, "kind": "compare", "version": ours[0]["version"], "build": ours[0]["build"],
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": " ".join(["compare.py"] + [f"--{name} {value}" for name, value in settings.items()]),
        "machine": ours[0]["machine"], "model": ours[0]["model"], "drafter": None, "projection": None,
        "settings": settings, "peer": {"name": "llama.cpp", "build": theirs[0]["build"]},
        "bandwidth_gb_s": spread([k["bandwidth"] for k in ours]),
        "share_of_bandwidth": spread([k["share"] for k in ours]),
        "decode_tok_s": {"kakeya": spread([k["decode"] for k in ours]),
                         "peer": spread([l["decode"] for l in theirs])},
        "prefill_tok_s": {"kakeya": spread([k["prefill"] for k in ours]),
                          "peer": spread([l["prefill"] for l in theirs])},
        "decode_ratio": spread([k["decode"] / l["decode"] for k, l in zip(ours, theirs)]),
        "prefill_ratio": spread([k["prefill"] / l["prefill"] for k, l in zip(ours, theirs)]),
        "rows": rows,
    }
    print(f"decode {report['decode_ratio']['median']:.2f}x, prefill {report['prefill_ratio']['median']:.2f}x llama.cpp; "
          f"{100 * report['share_of_bandwidth']['median']:.0f} % of the bandwidth")
    if a.report:
        with open(a.report, "w") as f:
            json.dump(report, f, indent=1)


if __name__ == "__main__":
    main()
