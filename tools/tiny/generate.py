"""Continues text with the verifier: batched, with a cache, greedy or sampled.

usage: generate.py --seconds S     continues training prompts and writes rows for the drafter

Sliding layers keep a ring of one window, full layers keep everything.  A step of the whole batch is
one CUDA graph.  Rows written: generated.T.npy (tokens) and generated.T.kinds.npy (1 where the verifier
wrote the token itself).
"""
import argparse
import os
import random
import time

import numpy as np
import torch
import torch.nn.functional as F

import model
import tasks
from settings import BOS, PAD, SEED, STOPS, VERIFIER, log, out_folder, work_folder
from tokenizer import Text


class Generator:
    def __init__(self, params, batch, max_len, device, dt=model.BF16, c=VERIFIER, compiled=False):
        self.net, self.c, self.dt, self.device, self.batch, self.max_len = model.Net(params, c), c, dt, device, batch, max_len
        self.window = c["sliding_window"]
        self.k, self.v = [], []
        for kind in c["layer_types"]:
            full = kind == "full_attention"
            heads = c["num_global_key_value_heads" if full else "num_key_value_heads"]
            shape = (batch, heads, max_len if full else self.window, c["global_head_dim" if full else "head_dim"])
            self.k.append(torch.zeros(shape, device=device, dtype=dt))
            self.v.append(torch.zeros(shape, device=device, dtype=dt))
        self.tok = torch.zeros(batch, dtype=torch.long, device=device)
        self.pos = torch.zeros(batch, dtype=torch.long, device=device)
        self.heat = torch.zeros(batch, 1, device=device)
        self.rows = torch.arange(batch, device=device)
        self.graph = None
        wrap = (lambda f: torch.compile(f, dynamic=False)) if compiled else (lambda f: f)
        self.project, self.finish, self.head = wrap(model.project), wrap(model.finish), wrap(model.head)

    def choose(self, logits):
        noise = -torch.log(-torch.log(torch.rand_like(logits).clamp_(1e-9, 1 - 1e-7)))
        return torch.where(self.heat > 0, logits / self.heat.clamp(min=1e-3) + noise, logits).argmax(-1)

    @torch.no_grad()
    def prefill(self, prompts):
        """Fills the caches with the prompts' rows and picks the first token of each."""
        lengths = torch.tensor([len(p) for p in prompts], device=self.device)
        longest = int(lengths.max())
        part = max(1, min(131072 // longest, 600000000 // longest ** 2))
        logits = []
        for at in range(0, len(prompts), part):
            some = prompts[at:at + part]
            ids = torch.full((len(some), longest), PAD, device=self.device)
            for i, p in enumerate(some):
                ids[i, :len(p)] = torch.as_tensor(p, device=self.device)
            logits.append(self.prefill_part(ids, lengths[at:at + part], at))
        self.pos[:len(prompts)] = lengths
        self.tok[:len(prompts)] = self.choose_rows(torch.cat(logits))

    def choose_rows(self, logits):
        heat, self.heat = self.heat, self.heat[:logits.shape[0]]
        chosen = self.choose(logits)
        self.heat = heat
        return chosen

    def prefill_part(self, ids, lengths, first):
        b, n = ids.shape
        positions = torch.arange(n, device=self.device)
        tables = {k: tuple(t.repeat(b, 1) for t in model.rope_table(positions, k, self.c)) for k in set(self.c["layer_types"])}
        back = positions[:, None] - positions[None]
        near = (back >= 0) & (back < self.window)
        slot = torch.arange(self.window, device=self.device)
        last = (lengths - 1)[:, None]
        ring = (last - (last - slot) % self.window).clamp(min=0)
        x = self.net.embedded(ids.flatten(), self.dt)
        for l, (kind, w) in enumerate(zip(self.c["layer_types"], self.net.layers)):
            q, k, v, _, _ = model.project(x, w, *tables[kind])
            q, k, v = (t.view(b, n, *t.shape[1:]).transpose(1, 2) for t in (q, k, v))
            if kind == "full_attention":
                o = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
                self.k[l][first:first + b, :, :n], self.v[l][first:first + b, :, :n] = k, v
            else:
                o = F.scaled_dot_product_attention(q, k, v, attn_mask=near, scale=1.0)
                take = ring[:, None, :, None].expand(-1, k.shape[1], -1, k.shape[3])
                self.k[l][first:first + b], self.v[l][first:first + b] = k.gather(2, take), v.gather(2, take)
            x, _ = model.finish(x, o.transpose(1, 2).reshape(b * n, -1), w, self.c["top_k_experts"])
        return self.net.logits(x.view(b, n, -1)[torch.arange(b, device=self.device), lengths - 1])

    def step(self):
        x = self.net.embedded(self.tok, self.dt)
        tables = {k: model.rope_table(self.pos, k, self.c) for k in set(self.c["layer_types"])}
        seen = {"full_attention": torch.arange(self.max_len, device=self.device) <= self.pos[:, None],
                "sliding_attention": torch.arange(self.window, device=self.device) <= self.pos[:, None]}
        slot = {"full_attention": self.pos, "sliding_attention": self.pos % self.window}
        for l, (kind, w) in enumerate(zip(self.c["layer_types"], self.net.layers)):
            q, k, v, _, _ = self.project(x, w, *tables[kind])
            self.k[l][self.rows, :, slot[kind]], self.v[l][self.rows, :, slot[kind]] = k, v
            o = F.scaled_dot_product_attention(q[:, :, None], self.k[l], self.v[l], attn_mask=seen[kind][:, None, None],
                                               scale=1.0)
            x, _ = self.finish(x, o.flatten(1), w, self.c["top_k_experts"])
        self.tok.copy_(self.choose(self.head(x, self.net.norm, self.net.embed)))
        self.pos.add_(1).clamp_(max=self.max_len - 1)

    def capture(self):
        if self.device != "cuda" or self.graph is not None:
            return
        kept = self.tok.clone(), self.pos.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), torch.no_grad():
            self.step()
        torch.cuda.current_stream().wait_stream(side)
        self.tok.copy_(kept[0]), self.pos.copy_(kept[1])
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph), torch.no_grad():
            self.step()
        self.tok.copy_(kept[0]), self.pos.copy_(kept[1])

    @torch.no_grad()
    def run(self, prompts, new, heat=None):
        """Lists of new tokens, each cut after its first stop token."""
        self.capture()
        self.heat.zero_()
        if heat is not None:
            self.heat[:len(prompts), 0] = torch.as_tensor(heat, device=self.device, dtype=torch.float32)
        self.tok.zero_(), self.pos.zero_()
        self.prefill(prompts)
        found = [self.tok.clone()]
        for _ in range(new - 1):
            self.graph.replay() if self.graph else self.step()
            found.append(self.tok.clone())
        out = []
        for row in torch.stack(found, 1)[:len(prompts)].tolist():
            end = next((i + 1 for i, t in enumerate(row) if t in STOPS), len(row))
            out.append(row[:end])
        return out


# ---- rows for the drafter ------------------------------------------------------------------------------

def pack(docs, width):
    """(ids, first own token) pairs into rows; longest first, each into the first row with room."""
    rows, kinds, free = [], [], []
    for ids, first in sorted(docs, key=lambda d: -len(d[0])):
        ids, kind = ids[:width], ([0] * first + [1] * (len(ids) - first))[:width]
        at = next((i for i in range(max(0, len(rows) - 40), len(rows)) if free[i] >= len(ids)), None)
        if at is None:
            rows.append([]), kinds.append([]), free.append(width)
            at = len(rows) - 1
        rows[at] += ids
        kinds[at] += kind
        free[at] -= len(ids)
    a, b = np.full((len(rows), width), PAD, np.int16), np.zeros((len(rows), width), np.uint8)
    for i, (r, k) in enumerate(zip(rows, kinds)):
        a[i, :len(r)], b[i, :len(k)] = r, k
    return a, b


def task_prompts(source, text, n, kinds, budget, longest):
    out = []
    while len(out) < n:
        ids, marks = tasks.encode(source.make(source.rng.choice(kinds), budget), text)
        first = max(i for i, m in enumerate(marks) if m == tasks.PROMPT) + 1
        if first < len(ids) and first <= longest:
            out.append(ids[:first])
    return out


def code_prompts(code, rng, n, length):
    """Windows of the training stream; half of them begin where a file begins."""
    begins = np.flatnonzero(code == BOS)
    out = []
    while len(out) < n:
        at = int(rng.choice(begins)) if rng.random() < 0.5 else rng.randrange(len(code) - length)
        ids = code[at:at + length].tolist()
        if len(ids) == length and not any(t in (BOS, *STOPS) for t in ids[1:]):
            out.append([BOS] + ids[1:])
    return out


PLANS = ("code", "code", "tasks", "code", "near", "code", "tasks", "code", "far")


def write_rows(args):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    work, rng = work_folder(), random.Random(SEED + 1)
    path = os.path.join(args.folder or out_folder(), "verifier.safetensors")
    params = {k: v for k, v in model.load(path, device).items()}
    text = Text(os.path.join(work, "tokenizer.json"))
    code = np.load(os.path.join(work, "code.npy"))
    files = [text.text(f.tolist()) for f in np.split(code[:3000000], np.flatnonzero(code[:3000000] == BOS)[1:])[:-1]]
    files = [f.removeprefix("<bos>").removesuffix("<eos>") for f in files if 1500 < len(f) < 120000]
    source = tasks.Source("%s:generate" % SEED, files)
    short = Generator(params, args.batch, 1024, device, compiled=device == "cuda")
    far = Generator(params, max(1, args.batch // 8), 8192, device)
    docs, begin, round_ = {1024: [], 8192: []}, time.time(), 0
    while time.time() - begin < args.seconds or round_ < len(PLANS):
        plan, t = PLANS[round_ % len(PLANS)], time.time()
        round_ += 1
        n = args.batch
        if plan == "code":
            length = rng.choice([128, 256, 384, 512])
            prompts, new, width, who = code_prompts(code, rng, n, length), 1024 - length, 1024, short
            new = min(new, args.new)
        elif plan == "tasks":
            prompts = task_prompts(source, text, n, ["pairs", "sums", "json", "json", "tools", "chat", "chat", "edit", "edit",
                                                     "edit"], 600, 620)
            new, width, who = min(400, args.new), 1024, short
        elif plan == "near":
            prompts, new, width, who = task_prompts(source, text, n, ["needle", "varied"], 900, 980), 36, 1024, short
        else:
            n = far.batch
            longest = rng.choice([2000, 4000, 7000])
            prompts, new, width = task_prompts(source, text, n, ["needle", "varied"], longest, 8000), 36, 8192
            who = far
        heat = [0.0 if rng.random() < 0.65 else 0.7 for _ in prompts]
        made = who.run(prompts, new, heat)
        docs[width] += [(p + m, len(p)) for p, m in zip(prompts, made)]
        log("generated", plan, n, "rows,", sum(map(len, made)), "tokens in %.1f s" % (time.time() - t))
        if time.time() - begin > 1.15 * args.seconds:
            break
    for width, some in docs.items():
        if not some:
            continue
        rows, kinds = pack(some, width)
        np.save(os.path.join(work, "generated.%d.npy" % width), rows)
        np.save(os.path.join(work, "generated.%d.kinds.npy" % width), kinds)
        log("generated rows of", width, rows.shape[0], "own tokens %.2f M" % (kinds.sum() / 1e6))


if __name__ == "__main__":
    flags = argparse.ArgumentParser()
    flags.add_argument("--seconds", type=float, default=100)
    flags.add_argument("--batch", type=int, default=2048)
    flags.add_argument("--new", type=int, default=640)
    flags.add_argument("--folder", help="where verifier.safetensors lies")
    write_rows(flags.parse_args())
