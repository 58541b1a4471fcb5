"""Trains the drafter on text the verifier wrote, with the verifier's distribution as target.

usage: train_drafter.py --seconds S [--stop S] [--folder F]

Objective: for random anchors, each block offset k >= 1 predicts the token at its place; cross-entropy
with the token and with the verifier's distribution, weighted by exp(-(k-1)/4).  A small extra loss asks
a linear map to rebuild the verifier's K and V from the context features; the map is thrown away.
"""
import argparse
import os
import random
import time

import numpy as np
import torch
import torch.nn.functional as F

import drafter
import evaluate
import model
from optim import Both, Graphs
from settings import BLOCK, BOS, PAD, SEED, TAPS, VERIFIER, log, out_folder, work_folder, write_json

TOKENS = int(os.environ.get("TINY_TOKENS", 32768))
ANCHORS = TOKENS // 16
SOFT = 0.6
GAMMA = 4.0
KV_EVERY, KV_WEIGHT = 4, 0.2
WARM_STEPS = 150


def block_loss(h, hidden, final_norm, embed, labels, weights):
    """h [A, 7, H] drafted rows, hidden [A, 7, H] the verifier's rows that predict the same tokens."""
    student = torch.log_softmax(drafter.head(h, embed), -1).flatten(0, 1)
    with torch.no_grad():
        teacher = torch.softmax(model.head(hidden.flatten(0, 1), final_norm, embed), -1)
    soft = -(teacher * student).sum(-1)
    hard = -student.gather(1, labels.flatten()[:, None])[:, 0]
    w = weights.flatten()
    loss = ((SOFT * soft + (1 - SOFT) * hard) * w).sum() / w.sum().clamp(min=1.0)
    right = (student.argmax(-1) == labels.flatten()).view_as(labels)
    return loss, right.detach()


class Rows:
    """Steps of rows: mostly text the verifier wrote, some of the corpus."""

    def __init__(self, device):
        self.device, work = device, work_folder()
        read = lambda name: torch.from_numpy(np.load(os.path.join(work, name))).to(device)
        self.code = read("code.npy")
        self.own = {w: (read("generated.%d.npy" % w), read("generated.%d.kinds.npy" % w)) for w in (1024, 8192)
                    if os.path.exists(os.path.join(work, "generated.%d.npy" % w))}
        self.tasks = read("rows.1024.npy"), read("kinds.1024.npy")
        self.draw = torch.Generator(device=device).manual_seed(SEED + 2)

    def pick(self, pair, n):
        i = torch.randint(0, pair[0].shape[0], (n,), device=self.device, generator=self.draw)
        return pair[0][i], pair[1][i]

    def batch(self, width):
        n = TOKENS // width
        if width != 1024:
            ids, kinds = self.pick(self.own[width], n)
        else:
            code, tasks = n * 6 // 32, n * 3 // 32
            at = torch.randint(0, self.code.numel() - width, (code, 1), device=self.device, generator=self.draw)
            window = self.code[at + torch.arange(width, device=self.device)]
            own, task = self.pick(self.own[width], n - code - tasks), self.pick(self.tasks, tasks)
            ids = torch.cat((own[0], window, task[0]))
            marks = ((task[1] == 1) | (task[1] == 2)).to(torch.uint8)
            kinds = torch.cat((own[1], torch.ones_like(window, dtype=torch.uint8), marks))
        ids = ids.long()
        ids[:, 0] = BOS
        return ids.flatten(), kinds.flatten()


def choose_anchors(ids, kinds, docs, width, draw):
    """Sorted anchors, the same number for each row, answers before anything else."""
    per_row = ANCHORS * width // TOKENS
    score = torch.rand(ids.shape[0], device=ids.device, generator=draw)
    score = score + 4.0 * kinds - 8.0 * (ids == PAD) - 8.0 * (docs.roll(-1) != docs)
    score = score.view(-1, width)
    score[:, width - BLOCK:] -= 16.0
    picked = score.topk(per_row, 1).indices.sort(1).values
    return (picked + torch.arange(score.shape[0], device=ids.device)[:, None] * width).flatten()


class Trainer:
    def __init__(self, args, device):
        self.args, self.device = args, device
        path = os.path.join(args.folder or out_folder(), "verifier.safetensors")
        self.net = model.Net(model.load(path, device), compiled=device == "cuda")
        self.params = drafter.init(SEED, device)
        self.draft = drafter.Drafter(self.params, compiled=device == "cuda")
        width = sum(p.shape[0] for k, p in self.net.params.items() if k.endswith(("k_proj.weight", "v_proj.weight")))
        self.rebuild = torch.zeros(VERIFIER["hidden_size"], width, device=device, requires_grad=True)
        self.opt = Both(dict(self.params, embed_rebuild=self.rebuild), args.muon, args.adam)
        self.net_masks = model.Masks(TOKENS, device) if device == "cuda" else None
        self.masks = drafter.Masks(TOKENS, ANCHORS, device) if device == "cuda" else None
        self.loss = torch.compile(block_loss, dynamic=False) if device == "cuda" else block_loss
        self.weights = torch.exp(-torch.arange(BLOCK - 1, device=device) / GAMMA)
        self.step, self.spent, self.curve, self.rng = 0, 0.0, [], random.Random(SEED)
        self.ids = torch.zeros(TOKENS, dtype=torch.long, device=device)
        self.kinds = torch.zeros(TOKENS, dtype=torch.uint8, device=device)
        self.anchors = torch.zeros(ANCHORS, dtype=torch.long, device=device)
        self.run = Graphs(self.one, device == "cuda")

    @torch.no_grad()
    def verify(self, ids, width, every_layer):
        masks = None
        if self.net_masks:
            self.net_masks.docs.copy_(model.documents(ids)[0])
            masks = self.net_masks.of(width)
        wanted = range(VERIFIER["num_hidden_layers"]) if every_layer else TAPS
        return self.net.forward(ids, masks=masks, taps=wanted)

    def kv_loss(self, ids, kept, c, positions):
        """How far a linear map of the context features is from the verifier's normalised K and V."""
        some = torch.randint(0, ids.shape[0], (2048,), device=self.device)
        inputs = [self.net.embedded(ids, c.dtype)] + [kept[n] for n in range(len(self.net.layers) - 1)]
        want = []
        with torch.no_grad():
            for x, kind, w in zip(inputs, VERIFIER["layer_types"], self.net.layers):
                table = model.rope_table(positions[some], kind)
                _, _, v, k_raw, _ = model.project(x[some], w, *table)
                want.append(model.rms(k_raw).flatten(1))
                if kind == "sliding_attention":
                    want.append(v.flatten(1).float())
        return F.mse_loss((c[some] @ self.rebuild.to(c.dtype)).float(), torch.cat(want, 1))

    def fill(self, rows, width):
        ids, kinds = rows.batch(width)
        self.ids.copy_(ids), self.kinds.copy_(kinds)
        self.anchors.copy_(choose_anchors(ids, kinds, model.documents(ids)[0], width, rows.draw))

    def one(self, width, with_kv):
        """A whole step over the buffers."""
        self.opt.clear()
        ids, kinds, anchors = self.ids, self.kinds, self.anchors
        docs, positions = model.documents(ids)
        x, _, kept = self.verify(ids, width, with_kv)
        starts = torch.arange(ids.shape[0], device=self.device) - positions
        masks = self.masks.of(docs, starts, anchors) if self.masks else drafter.dense_masks(anchors, docs)
        c = self.draft.features(kept)
        h = self.draft.forward(self.net, ids, positions, c, anchors, masks)[:, 1:]
        at = anchors[:, None] + torch.arange(1, BLOCK, device=self.device)
        labels = ids[at]
        good = (docs[at] == docs[anchors][:, None]) & (labels != PAD)
        weights = self.weights * good * torch.where(kinds[at] > 0, 1.0, 0.15)
        loss, right = self.loss(h, x[at - 1], self.net.norm, self.net.embed, labels, weights)
        extra = self.kv_loss(ids, kept, c, positions) if with_kv else torch.zeros((), device=self.device)
        (loss + KV_WEIGHT * KV_EVERY * extra + 0.0 * self.rebuild.sum()).backward()
        own = good.all(1) & (kinds[at] > 0).all(1)
        length = (right.long().cumprod(1).sum(1) + 1).float()
        length = (length * own).sum() / own.sum().clamp(min=1)
        self.opt.step()
        return loss.detach(), extra.detach(), length

    def train(self, rows, held):
        begin, last, shown, looked = time.time() - self.spent, time.time(), self.step, self.spent
        widths = [1024] * 7 + [w for w in rows.own if w != 1024]
        while True:
            self.spent = time.time() - begin
            share = self.spent / self.args.seconds
            if share >= 1 or self.spent >= self.args.stop:
                break
            width, with_kv = self.rng.choice(widths), self.step % KV_EVERY == 0
            self.fill(rows, width)
            rate = min(1.0, (self.step + 1) / WARM_STEPS) * (1.0 if share < 0.25 else max(0.01, (1 - share) / 0.75))
            self.opt.set_rate(rate)
            loss, extra, length = self.run(width, with_kv)
            if with_kv:
                kv = extra
            self.step += 1
            if self.step % self.args.every == 0:
                now = time.time()
                row = dict(step=self.step, seconds=round(self.spent, 1), loss=round(loss.item(), 4),
                           length=round(length.item(), 3), kv=round(kv.item(), 4),
                           ms=round(1000 * (now - last) / (self.step - shown), 1))
                if self.spent - looked > self.args.look:
                    looked = self.spent
                    row["tokens_per_round"] = evaluate.tokens_per_round(self.net.params, self.params, held)
                    self.save()
                last, shown = time.time(), self.step
                self.curve.append(row)
                log(row)

    def save(self):
        model.save(self.params, os.path.join(out_folder(), "drafter.safetensors"))
        write_json(os.path.join(out_folder(), "drafter-curve.json"), dict(
            curve=self.curve, seconds=self.args.seconds, steps=self.step, torch=torch.__version__))

    def keep(self):
        torch.save(dict(params={k: v.detach() for k, v in self.params.items()}, rebuild=self.rebuild.detach(),
                        opt=self.opt.state(), step=self.step, spent=self.spent, curve=self.curve),
                   os.path.join(work_folder(), "drafter.pt"))

    def resume(self):
        path = os.path.join(work_folder(), "drafter.pt")
        if os.path.exists(path):
            old = torch.load(path, map_location=self.device)
            with torch.no_grad():
                for k, v in self.params.items():
                    v.copy_(old["params"][k])
                self.rebuild.copy_(old["rebuild"])
            self.opt.load(old["opt"])
            self.step, self.spent, self.curve = old["step"], old["spent"], old["curve"]
            log("goes on from step", self.step)


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("--seconds", type=float, default=400)
    flags.add_argument("--stop", type=float, default=1e9)
    flags.add_argument("--muon", type=float, default=0.02)
    flags.add_argument("--adam", type=float, default=0.002)
    flags.add_argument("--every", type=int, default=100)
    flags.add_argument("--look", type=float, default=75)
    flags.add_argument("--samples", type=int, default=20)
    flags.add_argument("--folder", help="where verifier.safetensors lies")
    flags.add_argument("--fresh", action="store_true", help="leave a checkpoint alone and keep none")
    args = flags.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(SEED)
    if device == "cuda":
        torch.cuda.set_stream(torch.cuda.Stream())
    trainer = Trainer(args, device)
    held = evaluate.continued(trainer.net.params, evaluate.held_prompts(args.samples), device, model.BF16,
                              args.samples, kinds=("code", "needle", "json", "edit", "chat"))
    log("held-out prompts continued")
    if not args.fresh:
        trainer.resume()
    trainer.train(Rows(device), held)
    log("last:", evaluate.tokens_per_round(trainer.net.params, trainer.params, held), "steps", trainer.step)
    trainer.save()
    if not args.fresh:
        trainer.keep()


if __name__ == "__main__":
    main()
