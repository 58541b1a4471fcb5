"""Draws the loss curves and the recall picture of the card.

usage: plots.py --verifier verifier-curve.json --drafter drafter-curve.json --report report.json --to models/tiny
"""
import argparse
import os

import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt

from settings import read_json


def smooth(values, n=15):
    return [sum(values[max(0, i - n):i + 1]) / len(values[max(0, i - n):i + 1]) for i in range(len(values))]


def loss_picture(verifier, drafter, path):
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2))
    curve = verifier["curve"]
    tokens = [r["step"] * verifier["tokens"] / verifier["steps"] / 1e6 for r in curve]
    left.plot(tokens, smooth([r["code"] for r in curve]), label="code, training")
    for key, name in (("held", "code, held-out files"), ("heldpkg", "code, held-out packages")):
        rows = [(t, r[key]) for t, r in zip(tokens, curve) if key in r]
        left.plot(*zip(*rows), "o-", ms=3, label=name)
    left.plot(tokens, smooth([r["answer"] for r in curve]), label="answers")
    left.plot(tokens, smooth([r["recall"] for r in curve]), label="recall answers")
    left.set(xlabel="million tokens", ylabel="nats per token", ylim=(0, 3), title="verifier")
    left.legend(fontsize=7, loc=(0.38, 0.08))
    curve = [r for r in drafter["curve"] if r["step"] > 100]
    right.plot([r["step"] for r in curve], smooth([r["loss"] for r in curve]), label="loss")
    rows = [(r["step"], r["tokens_per_round"]) for r in curve if "tokens_per_round" in r]
    for kind in rows[0][1]:
        right.plot([s for s, _ in rows], [t[kind] for _, t in rows], "o-", ms=3, label="tokens per round, " + kind)
    right.set(xlabel="step", ylim=(0, 12), title="drafter (held-out, 20 samples)")
    right.legend(fontsize=7, ncol=2, loc="upper left")
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def depth_picture(report, path):
    figure, axis = plt.subplots(figsize=(5, 2))
    names = list(report["depth"])
    cells = [[right / count for right, count in report["depth"][n]["recall_by_fifth"]] for n in names]
    axis.imshow(cells, vmin=0, vmax=1, cmap="RdYlGn", aspect="auto")
    axis.set_xticks(range(5), ["first fifth", "second", "third", "fourth", "last"], fontsize=7)
    axis.set_yticks(range(len(names)), ["%d tokens" % report["depth"][n]["prompt_tokens"] for n in names], fontsize=7)
    for y, row in enumerate(cells):
        for x, value in enumerate(row):
            axis.text(x, y, "%.2f" % value, ha="center", va="center", fontsize=8)
    axis.set_title("needle recall by place in the document (100 samples a row)", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=90)


if __name__ == "__main__":
    flags = argparse.ArgumentParser()
    for name in ("verifier", "drafter", "report", "to"):
        flags.add_argument("--" + name, required=True)
    args = flags.parse_args()
    loss_picture(read_json(args.verifier), read_json(args.drafter), os.path.join(args.to, "loss.png"))
    depth_picture(read_json(args.report), os.path.join(args.to, "depth.png"))
