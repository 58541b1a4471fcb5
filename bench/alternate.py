#!/usr/bin/env python3
"""Two builds of kakeya against each other: the same command with either, in turns.

    bench/alternate.py --old PATH --new PATH [--pairs 20] [--gauge decode_tok_s] -- ARGS...

ARGS are those of `kakeya run`, without --json.  Each pair runs both builds once, the first of them
changing from pair to pair, so that a machine that changes its speed meets both.  Prints the median
of the pairs' ratios (new over old), their quartiles, and whether tokens and logits hashes were the
same in every run; ends with 1 when they were not, or when the median is under --least.
"""
import argparse
import json
import statistics
import subprocess
import sys


def run(program, args):
    out = subprocess.run([program, "run", "--json", "-q", *args], check=True,
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return json.loads(out.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--old", required=True, help="the build to compare with")
    parser.add_argument("--new", required=True, help="the build that is compared")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--gauge", default="decode_tok_s", help="of timings; larger is better")
    parser.add_argument("--least", type=float, default=0.0, help="fail under this median")
    parser.add_argument("args", nargs="+", help="of kakeya run, after --")
    o = parser.parse_args()
    ratios, same = [], True
    for i in range(o.pairs):
        order = ("old", "new") if i % 2 == 0 else ("new", "old")
        got = {which: run(getattr(o, which), o.args) for which in order}
        same &= all(got["old"][k] == got["new"][k] for k in ("tokens", "logits_hash"))
        ratios.append(got["new"]["timings"][o.gauge] / got["old"]["timings"][o.gauge])
        print(f"{i + 1:3d} of {o.pairs}: {ratios[-1]:.3f}", file=sys.stderr)
    quarter = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    median = statistics.median(ratios)
    print(f"{o.gauge}, new over old: median {median:.3f} ({quarter[0]:.3f} to {quarter[2]:.3f}, "
          f"{o.pairs} pairs); tokens and hashes {'the same' if same else 'DIFFER'}: "
          f"{' '.join(o.args)}")
    return 0 if same and median >= o.least else 1


if __name__ == "__main__":
    sys.exit(main())
