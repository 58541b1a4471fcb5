#!/usr/bin/env python3
"""Times kakeya and llama.cpp on one GGUF file, turn and turn about, and writes one report.

usage: compare.py --llama-bench PATH --model FILE.gguf [--kakeya build/kakeya] [--threads 2]
                  [--predict 32] [--prefill 512] [--repeat 5] [--report FILE.json]

Plain Python.  Each turn starts a fresh process of either engine, so that both pay for cold
caches alike; the file should be in the page cache before (a first turn of each is thrown away).
kakeya measures the machine's read bandwidth in every one of its turns.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time


def kakeya(a):
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "report.json")
        subprocess.run([a.kakeya, "bench", "-q", "-m", a.model, "-t", str(a.threads), "-n", str(a.predict),
                        "--prefill", str(a.prefill), "--rows", "none", "--repeat", "3", "--report", path],
                       check=True, stdout=subprocess.DEVNULL)
        with open(path) as f:
            return json.load(f)


def llama(a):
    out = subprocess.run([a.llama_bench, "-m", a.model, "-t", str(a.threads), "-n", str(a.predict),
                          "-p", str(a.prefill), "-r", "3", "-o", "json"],
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
    for name, value in (("threads", 2), ("predict", 32), ("prefill", 512), ("repeat", 5)):
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--report")
    a = p.parse_args()
    ours, theirs = [], []
    for turn in range(a.repeat + 1):
        k, l = kakeya(a), llama(a)
        if turn == 0:
            continue  # warm-up
        ours.append(k)
        theirs.append(l)
        print(f"turn {turn}: kakeya {k['decode_tok_s']['median']:.2f} decode, {k['prefill_tok_s']['median']:.1f} prefill; "
              f"llama.cpp {l['decode']:.2f}, {l['prefill']:.1f}; bandwidth {k['bandwidth'] / 1e9:.1f} GB/s", flush=True)
    report = {
        "kind": "compare", "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": " ".join(["compare.py", "--threads", str(a.threads), "--predict", str(a.predict),
                             "--prefill", str(a.prefill), "--repeat", str(a.repeat)]),
        "model": os.path.basename(a.model), "machine": ours[0].get("machine"), "commit": ours[0].get("commit"),
        "llama_cpp": theirs[0]["build"], "threads": a.threads,
        "bandwidth": spread([k["bandwidth"] for k in ours]),
        "share_of_bandwidth": spread([k["decode_share"] for k in ours]),
        "decode_tok_s": {"kakeya": spread([k["decode_tok_s"]["median"] for k in ours]),
                         "llama_cpp": spread([l["decode"] for l in theirs])},
        "prefill_tok_s": {"kakeya": spread([k["prefill_tok_s"]["median"] for k in ours]),
                          "llama_cpp": spread([l["prefill"] for l in theirs])},
        "decode_ratio": spread([k["decode_tok_s"]["median"] / l["decode"] for k, l in zip(ours, theirs)]),
        "prefill_ratio": spread([k["prefill_tok_s"]["median"] / l["prefill"] for k, l in zip(ours, theirs)]),
    }
    print(f"decode {report['decode_ratio']['median']:.2f}x, prefill {report['prefill_ratio']['median']:.2f}x llama.cpp; "
          f"{100 * report['share_of_bandwidth']['median']:.0f} % of the bandwidth")
    if a.report:
        with open(a.report, "w") as f:
            json.dump(report, f, indent=1)


if __name__ == "__main__":
    main()
