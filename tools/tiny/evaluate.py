"""Measures the finished pair on held-out text; writes report.json.

usage: evaluate.py [--samples 50] [--verifier FOLDER] [--drafter FOLDER]

Tokens per round: the first new token comes from the prompt's own pass; every round after it gives what
was accepted and one more, cut at the stop token.  All of it in float32 over the bf16 weights.
"""
import argparse
import math
import os
import random

import numpy as np
import torch
import torch.nn.functional as F

import drafter
import model
import needle
import tasks
from generate import Generator
from settings import (BLOCK, BOS, CHANNEL_CLOSE, CHANNEL_OPEN, EOS, SEED, STOPS, TURN_CLOSE, TURN_OPEN, log,
                      out_folder, read_json, work_folder, write_json)
from tokenizer import Text

RUNGS = {"needle": (54, 66), "needle3k": (138, 162), "needle6k": (285, 315)}
NEW = {"code": 128, "codepkg": 128, "needle": 32, "needle3k": 32, "needle6k": 32, "json": 320, "edit": 400, "tools": 96,
       "chat": 160, "pairs": 64, "sums": 32}


def chat_ids(text, user):
    """A user turn and the opening of the model's, as the chat template writes them for the large models."""
    return ([BOS, TURN_OPEN] + text.ids("user\n" + user) + [TURN_CLOSE] + text.ids("\n") + [TURN_OPEN]
            + text.ids("model\n") + [CHANNEL_OPEN] + text.ids("thought\n") + [CHANNEL_CLOSE])


def held_prompts(n):
    """{kind: [(prompt ids, wanted text or None)]}, none of which was trained on."""
    work = work_folder()
    text = Text(os.path.join(work, "tokenizer.json"))
    rng, out = random.Random(SEED + 9), {}
    for kind, file in (("code", "held.npy"), ("codepkg", "heldpkg.npy")):
        stream = np.load(os.path.join(work, file))
        out[kind] = []
        while len(out[kind]) < n:
            at = rng.randrange(len(stream) - 800)
            ids = stream[at:at + 400].tolist()
            if not any(t in (BOS, EOS) for t in ids[1:]):
                out[kind].append(([BOS] + ids[1:], None))
    for kind, lines in RUNGS.items():
        out[kind] = [(chat_ids(text, needle.render(*s)), s[1]) for s in needle.samples(42, n, *lines)]
    files = read_json(os.path.join(work, "held.json"))["texts"]["held_files"]
    source = tasks.Source("%s:held" % SEED, files, held=True)
    for kind in ("json", "edit", "tools", "chat", "pairs", "sums"):
        out[kind] = []
        while len(out[kind]) < n:
            doc = source.make(kind, 600)
            ids, marks = tasks.encode(doc, text)
            first = max(i for i, m in enumerate(marks) if m == tasks.PROMPT) + 1
            if first < len(ids) and len(ids) < 1000:
                out[kind].append((ids[:first], text.text([t for t in ids[first:] if t not in STOPS])))
    return out


def continued(params, prompts, device, dt, n, kinds=None):
    """{kind: [(ids, first new, limit)]} by greedy decoding; a block more than the limit where nothing stopped it."""
    out = {}
    for kind, some in prompts.items():
        if kinds and kind not in kinds:
            continue
        longest = max(len(p) for p, _ in some)
        made = Generator(params, n, longest + NEW[kind] + BLOCK, device, dt).run([p for p, _ in some], NEW[kind] + BLOCK)
        out[kind] = [(p + m, len(p), NEW[kind]) for (p, _), m in zip(some, made)]
    return out


@torch.no_grad()
def tokens_per_round(params, draft_params, held, dt=model.BF16):
    device = params["model.norm.weight"].device
    net, draft = model.Net(params), drafter.Drafter(draft_params)
    out = {}
    for kind, some in held.items():
        gained = []
        for ids, first, limit in some:
            if len(ids) - first > 1:
                gained += drafter.rounds(drafter.accepted(net, draft, torch.tensor(ids, device=device), first, dt), limit)
        out[kind] = round(sum(gained) / max(1, len(gained)), 3)
    return out


def answer_of(text, row):
    ids, first, limit = row
    return text.text([t for t in ids[first:first + limit] if t not in STOPS])


@torch.no_grad()
def code_loss(predict, stream, text, n, width=1024):
    """Nats per token and bits per byte over n windows, by a function from ids to logits."""
    total, count, size = 0.0, 0, 0
    for i in range(n):
        ids = torch.from_numpy(stream[i * width:(i + 1) * width].astype(np.int64))
        ids[0] = BOS
        logits = predict(ids)[:-1]
        labels = ids[1:].to(logits.device)
        keep = (labels != BOS) & (labels != EOS)
        ce = F.cross_entropy(logits.float(), labels, reduction="none")[keep]
        total, count = total + ce.double().sum().item(), count + int(keep.sum())
        size += len(text.text([t for t in ids[1:].tolist() if t not in (BOS, EOS)]).encode())
    return {"nats_per_token": round(total / count, 5), "bits_per_byte": round(total / size / math.log(2), 5),
            "tokens": count, "bytes": size}


def against_transformers(folder, net, stream, text, device, n):
    """The same loss and the same logits from transformers' own class."""
    from transformers import Gemma4ForCausalLM
    hf = Gemma4ForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    ids = torch.from_numpy(stream[:2048].astype(np.int64)).to(device)
    ids[0] = BOS
    ids = torch.where((ids == BOS) & (torch.arange(2048, device=device) > 0), EOS, ids)
    with torch.no_grad():
        theirs, ours = hf(ids[None], use_cache=False).logits[0].float(), net.logits(net.forward(ids, torch.float32)[0])
    gap = (theirs - ours).abs().max().item()
    single = lambda x: torch.where((x == BOS) & (torch.arange(x.shape[0]) > 0), EOS, x).to(device)
    loss = code_loss(lambda x: hf(single(x)[None], use_cache=False).logits[0], stream, text, n)
    mine = code_loss(lambda x: net.logits(net.forward(single(x), torch.float32)[0]), stream, text, n)
    return {"largest_logit_gap": gap, "largest_logit": theirs.abs().max().item(), "theirs": loss, "ours": mine}


def depth_picture(params, text, device, n=100):
    """Recall by where in the document the needle lies, in fifths."""
    out = {}
    for name, lines in RUNGS.items():
        drawn = needle.samples(4242, n, *lines)
        prompts = [chat_ids(text, needle.render(*s)) for s in drawn]
        new = Generator(params, n, max(map(len, prompts)) + 40, device, torch.bfloat16).run(prompts, 32)
        cells = [[0, 0] for _ in range(5)]
        for (count, code, at), got in zip(drawn, new):
            cell = cells[min(4, 5 * at // count)]
            cell[0] += code in text.text(got)
            cell[1] += 1
        out[name] = {"prompt_tokens": round(sum(map(len, prompts)) / n), "recall_by_fifth": cells}
    return out


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("--samples", type=int, default=50)
    flags.add_argument("--windows", type=int, default=64)
    flags.add_argument("--verifier", default="models/tiny/verifier")
    flags.add_argument("--drafter", default="models/tiny/drafter")
    args = flags.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = False
    work = work_folder()
    text = Text(os.path.join(work, "tokenizer.json"))
    params = model.load(os.path.join(args.verifier, "model.safetensors"), device)
    net = model.Net(params)
    import transformers
    report = {"torch": torch.__version__, "transformers": transformers.__version__, "samples": args.samples,
              "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
              "verifier_parameters": sum(v.numel() for v in params.values())}
    held, pkg = np.load(os.path.join(work, "held.npy")), np.load(os.path.join(work, "heldpkg.npy"))
    report["transformers_check"] = against_transformers(args.verifier, net, held, text, device, min(16, args.windows))
    log("against transformers:", report["transformers_check"])
    plain = lambda ids: net.logits(net.forward(ids.to(device), torch.float32)[0])
    report["held_files"] = code_loss(plain, held, text, args.windows)
    report["held_packages"] = code_loss(plain, pkg, text, args.windows)
    log("code:", report["held_files"], report["held_packages"])
    prompts = held_prompts(args.samples)
    rows = continued(params, prompts, device, torch.float32, args.samples)
    log("continued")
    report["recall"] = {k: {"recall": sum(w in answer_of(text, r) for (_, w), r in zip(prompts[k], rows[k])) / args.samples,
                            "prompt_tokens": round(sum(len(p) for p, _ in prompts[k]) / args.samples)} for k in RUNGS}
    report["exact_answers"] = {k: sum(w == answer_of(text, r) for (_, w), r in zip(prompts[k], rows[k])) / args.samples
                               for k in ("json", "edit", "tools", "chat", "pairs", "sums")}
    report["ends_with_turn"] = sum(r[0][-1] == TURN_CLOSE and len(r[0]) - r[1] <= r[2] for r in rows["chat"]) / args.samples
    log({k: report[k] for k in ("recall", "exact_answers", "ends_with_turn")})
    report["depth"] = depth_picture(params, text, device)
    log("depth:", report["depth"])
    write_json(os.path.join(out_folder(), "report.json"), report)
    if os.path.exists(os.path.join(args.drafter, "model.safetensors")):
        draft_params = model.load(os.path.join(args.drafter, "model.safetensors"), device)
        report["drafter_parameters"] = sum(v.numel() for v in draft_params.values())
        report["tokens_per_round"] = tokens_per_round(params, draft_params, rows, torch.float32)
        log("tokens per round:", report["tokens_per_round"])
    samples = [{"kind": k, "prompt_end": text.text(r[0][max(0, r[1] - 160):r[1]]), "answer": text.text(r[0][r[1]:r[1] + r[2]])}
               for k, n in (("code", 6), ("codepkg", 2), ("needle3k", 1), ("json", 2), ("edit", 2), ("tools", 2), ("chat", 4),
                            ("pairs", 1), ("sums", 2)) for r in rows[k][:n]]
    report["sample_outputs"] = samples
    write_json(os.path.join(out_folder(), "report.json"), report)


if __name__ == "__main__":
    main()
