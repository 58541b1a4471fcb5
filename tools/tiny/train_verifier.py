"""Trains the verifier for a given time; goes on from its checkpoint when there is one.

usage: train_verifier.py --seconds S [--stop S] [--muon 0.02] [--adam 0.003] [--plain-adam]

--seconds is the length of the whole schedule, --stop ends this piece earlier (for a later one to
go on from).  While data.py still builds rows this program compiles.
"""
import argparse
import os
import random
import time

import numpy as np
import torch

import model
import needle
from optim import Both, Graphs
from settings import BOS, CHANNEL_CLOSE, CHANNEL_OPEN, PAD, SEED, TURN_CLOSE, TURN_OPEN, log, out_folder, work_folder, \
    write_json
from tokenizer import Text

TOKENS = int(os.environ.get("TINY_TOKENS", 32768))
CODE = 3
WEIGHTS = {0: 0.2, 1: 1.0, 2: 3.0, CODE: 1.0}
SHARE_OF_TASKS = 0.4
WARM_STEPS = 150


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.2)


class Data:
    """Token streams and rows on the device; a step draws from them at random."""

    def __init__(self, device):
        self.device, self.rows, work = device, {}, work_folder()
        wait_for(os.path.join(work, "READY.1024"))
        read = lambda name: torch.from_numpy(np.load(os.path.join(work, name))).to(device)
        self.code, self.held, self.heldpkg = read("code.npy"), read("held.npy"), read("heldpkg.npy")
        self.text = Text(os.path.join(work, "tokenizer.json"))
        self.weights = torch.zeros(256, device=device)
        for kind, weight in WEIGHTS.items():
            self.weights[kind] = weight
        self.draw = torch.Generator(device=device).manual_seed(SEED)

    def rows_of(self, width):
        if width not in self.rows:
            work = work_folder()
            wait_for(os.path.join(work, "READY.%d" % width))
            self.rows[width] = tuple(torch.from_numpy(np.load(os.path.join(work, "%s.%d.npy" % (n, width))))
                                     .to(self.device) for n in ("rows", "kinds"))
        return self.rows[width]

    def windows(self, stream, n, width):
        at = torch.randint(0, stream.numel() - width, (n, 1), device=self.device, generator=self.draw)
        rows = stream[at + torch.arange(width, device=self.device)]
        rows[:, 0] = BOS
        return rows

    def batch(self, width):
        """ids, labels and loss weights of one packed step."""
        n = TOKENS // width
        tasks = max(1, round(n * SHARE_OF_TASKS))
        rows, kinds = self.rows_of(width)
        pick = torch.randint(0, rows.shape[0], (tasks,), device=self.device, generator=self.draw)
        code = self.windows(self.code, n - tasks, width)
        ids = torch.cat((code, rows[pick])).flatten().long()
        kind = torch.cat((torch.full(code.shape, CODE, device=self.device, dtype=torch.uint8), kinds[pick])).flatten()
        return ids, *self.labels(ids, kind)

    def labels(self, ids, kind):
        labels, kind = ids.roll(-1), kind.roll(-1).long()
        return labels, self.weights[kind] * (labels != BOS) * (labels != PAD), kind

    def held_batch(self, stream, index, width=1024):
        rows = stream[index * TOKENS:(index + 1) * TOKENS].view(-1, width).clone()
        rows[:, 0] = BOS
        ids = rows.flatten().long()
        return ids, *self.labels(ids, torch.full_like(ids, CODE, dtype=torch.uint8))

    def needle_batch(self, lines, width):
        """Needle documents with held-out words and seeds, one to a row, and where their codes lie."""
        ids, kinds = np.full((TOKENS // width, width), PAD), np.zeros((TOKENS // width, width), np.uint8)
        ids[:, 0] = BOS
        for row, (n, code, at) in enumerate(needle.samples(1000 + width, len(ids), *lines)):
            doc = [BOS, TURN_OPEN] + self.text.ids("user\n" + needle.render(n, code, at)) + [TURN_CLOSE]
            doc += self.text.ids("\n") + [TURN_OPEN] + self.text.ids("model\n") + [CHANNEL_OPEN]
            doc += self.text.ids("thought\n") + [CHANNEL_CLOSE]
            answer = self.text.ids(needle.ANSWER.format(code)) + [TURN_CLOSE]
            assert len(doc) + len(answer) <= width, (len(doc), width)
            ids[row, :len(doc) + len(answer)] = doc + answer
            kinds[row, len(doc):len(doc) + len(answer)] = 2
        ids = torch.from_numpy(ids.flatten()).to(self.device)
        return ids, *self.labels(ids, torch.from_numpy(kinds.flatten()).to(self.device))


def width_at(share, rng):
    if share < 0.45:
        return 1024
    if share < 0.72:
        return rng.choice([1024, 2048, 2048, 4096])
    return rng.choice([1024, 2048, 4096, 8192, 8192])


def rate_at(share, step):
    warm = min(1.0, (step + 1) / WARM_STEPS)
    return warm * (1.0 if share < 0.3 else max(0.01, (1 - share) / 0.7))


class Trainer:
    def __init__(self, args, device):
        self.args, self.device = args, device
        self.params = model.init(SEED, device)
        self.net = model.Net(self.params, compiled=device == "cuda")
        self.masks = model.Masks(TOKENS, device) if device == "cuda" else None
        self.opt = Both(self.params, args.muon, args.adam, muon=not args.plain_adam)
        self.step, self.spent, self.curve, self.rng = 0, 0.0, [], random.Random(SEED)
        self.ids = torch.zeros(TOKENS, dtype=torch.long, device=device)
        self.labels = torch.zeros_like(self.ids)
        self.weights = torch.zeros(TOKENS, device=device)
        self.run = Graphs(self.one, device == "cuda" and not args.no_graphs)

    def one(self, width):
        """A whole step over the buffers."""
        self.opt.clear()
        loss, ce, uneven = self.forward(self.ids, self.labels, self.weights, width)
        (loss + 0.01 * uneven).backward()
        return ce, uneven.detach(), self.opt.step()

    def forward(self, ids, labels, weights, width):
        masks = None
        if self.masks:
            self.masks.docs.copy_(model.documents(ids)[0])
            masks = self.masks.of(width)
        x, uneven, _ = self.net.forward(ids, masks=masks)
        loss, ce = self.net.head_loss(x, self.net.norm, self.net.embed, labels, weights)
        return loss, ce, uneven

    def warm_up(self):
        self.ids.random_(110, 4096)
        self.ids[::1024] = BOS
        self.labels.copy_(self.ids.roll(-1))
        self.weights.fill_(1.0)
        self.opt.set_rate(0.0)
        self.one(1024)

    def look(self, data):
        """Held-out code loss, and the share of needle answers whose every token is right."""
        found = {}
        for name, stream in (("held", data.held), ("heldpkg", data.heldpkg)):
            n = min(4, stream.numel() // TOKENS)
            losses = []
            for i in range(n):
                ids, labels, weights, _ = data.held_batch(stream, i)
                losses.append(self.forward(ids, labels, weights, 1024)[0].item())
            found[name] = round(sum(losses) / max(1, n), 4)
        for lines, width in (((60, 81), 2048), ((238, 322), 8192)):
            if width > TOKENS:
                continue
            ids, labels, weights, kind = data.needle_batch(lines, width)
            _, ce, _ = self.forward(ids, labels, weights, width)
            wrong = ((ce > 0.69) & (kind == 2)).view(-1, width).any(1)
            found["recall%d" % width] = round(1 - wrong.float().mean().item(), 3)
        return found

    def train(self, data):
        begin, last, shown, looked = time.time() - self.spent, time.time(), self.step, self.spent
        while True:
            self.spent = time.time() - begin
            share = self.spent / self.args.seconds
            if share >= 1 or self.spent >= self.args.stop:
                break
            width = min(width_at(share, self.rng), TOKENS)
            ids, labels, weights, kind = data.batch(width)
            self.ids.copy_(ids), self.labels.copy_(labels), self.weights.copy_(weights)
            self.opt.set_rate(rate_at(share, self.step))
            plain = self.forward(self.ids, self.labels, self.weights, width)[1] if self.step in (8, 400) else None
            ce, uneven, norm = self.run(width)
            if plain is not None:
                self.compare(plain.mean().item(), ce.mean().item())
            self.step += 1
            if self.step % self.args.every == 0:
                mean = lambda k: round(ce[kind == k].mean().item(), 4)
                row = dict(step=self.step, seconds=round(self.spent, 1), width=width, code=mean(CODE), answer=mean(1),
                           recall=mean(2), uneven=round(uneven.item(), 3), norm=round(norm.item(), 2))
                now = time.time()
                row["tokens_per_s"] = int((self.step - shown) * TOKENS / (now - last))
                if self.spent - looked > self.args.look:
                    looked = self.spent
                    row.update(self.look(data))
                    self.save()
                last, shown = time.time(), self.step
                self.curve.append(row)
                log(row)
                if not row["code"] < 8 or (self.spent > 60 and row["code"] > 3.2):
                    raise SystemExit("this run does not learn; try a lower rate")

    def compare(self, plain, replayed):
        """A replayed step must see what a plain one sees."""
        log("mean loss, plain %.4f, replayed %.4f" % (plain, replayed))
        if not abs(plain - replayed) < 0.05:
            self.run.on = False

    def save(self):
        model.save(self.params, os.path.join(out_folder(), "verifier.safetensors"))
        write_json(os.path.join(out_folder(), "verifier-curve.json"), dict(
            curve=self.curve, seconds=self.args.seconds, steps=self.step, tokens=self.step * TOKENS,
            muon=self.args.muon, adam=self.args.adam, torch=torch.__version__,
            device=torch.cuda.get_device_name() if self.device == "cuda" else "cpu"))

    def keep(self):
        torch.save(dict(params={k: v.detach() for k, v in self.params.items()}, opt=self.opt.state(), step=self.step,
                        spent=self.spent, curve=self.curve), os.path.join(work_folder(), "verifier.pt"))

    def resume(self):
        path = os.path.join(work_folder(), "verifier.pt")
        if not os.path.exists(path):
            return
        old = torch.load(path, map_location=self.device)
        with torch.no_grad():
            for k, v in self.params.items():
                v.copy_(old["params"][k])
        self.opt.load(old["opt"])
        self.step, self.spent, self.curve = old["step"], old["spent"], old["curve"]
        log("goes on from step", self.step)


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("--seconds", type=float, default=480)
    flags.add_argument("--stop", type=float, default=1e9)
    flags.add_argument("--muon", type=float, default=0.02)
    flags.add_argument("--adam", type=float, default=0.003)
    flags.add_argument("--plain-adam", action="store_true")
    flags.add_argument("--every", type=int, default=100)
    flags.add_argument("--look", type=float, default=60)
    flags.add_argument("--no-graphs", action="store_true")
    flags.add_argument("--fresh", action="store_true", help="leave a checkpoint alone and keep none")
    args = flags.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(SEED)
    if device == "cuda":
        torch.cuda.set_stream(torch.cuda.Stream())  # graphs cannot be captured beside the default stream
    trainer = Trainer(args, device)
    trainer.warm_up()
    log("compiled; waiting for data")
    data = Data(device)
    if not args.fresh:
        trainer.resume()
    trainer.train(data)
    log("last look:", trainer.look(data), "steps", trainer.step, "tokens %.0f M" % (trainer.step * TOKENS / 1e6))
    trainer.save()
    if not args.fresh:
        trainer.keep()
    if device == "cuda":
        log("peak memory GB %.1f" % (torch.cuda.max_memory_allocated() / 1e9))


if __name__ == "__main__":
    main()
