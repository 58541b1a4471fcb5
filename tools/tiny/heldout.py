"""Writes the held-out cases that the engine measures again: prompts, and windows of code with their loss.

usage: heldout.py --held held.npz --prompts prompts.json [--to tests/data/tiny]

prompts.jsonl: one {"kind", "ids", "new"} a line (needle prompts are not in it: a seed makes them).
code-loss.safetensors: `tokens` [16, 1024] int32, windows of held-out files, each begun with <bos>; `nats` [16]
float64, transformers' cross-entropy in float32 summed over the 1,023 predicted tokens; `bytes` [16] int32.
"""
import argparse
import json
import os

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from evaluate import NEW
from settings import BOS, EOS, log, read_json
from tokenizer import Text

WINDOWS, WIDTH = 16, 1024


def windows(stream):
    out, at = [], 0
    while len(out) < WINDOWS:
        ids = stream[at:at + WIDTH].astype(np.int64)
        at += WIDTH
        if not np.isin(ids[1:], (BOS, EOS)).any():
            ids[0] = BOS
            out.append(torch.from_numpy(ids))
    return out


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("--held", required=True)
    flags.add_argument("--prompts", required=True)
    flags.add_argument("--verifier", default="models/tiny/verifier")
    flags.add_argument("--to", default="tests/data/tiny")
    args = flags.parse_args()
    os.makedirs(args.to, exist_ok=True)
    with open(os.path.join(args.to, "prompts.jsonl"), "w") as f:
        for kind, some in read_json(args.prompts).items():
            if not kind.startswith("needle") and kind not in ("pairs", "sums"):
                for ids, _ in some:
                    f.write(json.dumps({"kind": kind, "ids": ids, "new": NEW[kind]}, separators=(",", ":")) + "\n")
    from transformers import Gemma4ForCausalLM
    hf = Gemma4ForCausalLM.from_pretrained(args.verifier, dtype=torch.float32).eval()
    text, rows = Text(os.path.join(args.verifier, "tokenizer.json")), windows(np.load(args.held)["held"])
    nats, sizes = [], []
    for ids in rows:
        with torch.no_grad():
            logits = hf(ids[None], use_cache=False).logits[0, :-1].float()
        nats.append(F.cross_entropy(logits, ids[1:], reduction="none").double().sum())
        sizes.append(len(text.text(ids[1:].tolist()).encode()))
    nats = torch.stack(nats)
    save_file({"tokens": torch.stack(rows).int(), "nats": nats, "bytes": torch.tensor(sizes).int()},
              os.path.join(args.to, "code-loss.safetensors"))
    log("nats per token %.5f, bits per byte %.5f" % (nats.sum() / (WINDOWS * (WIDTH - 1)),
                                                      nats.sum() / sum(sizes) / np.log(2)))


if __name__ == "__main__":
    main()
