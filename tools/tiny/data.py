"""Builds what training reads: code as one stream of tokens, documents as packed rows.

usage: data.py [--bytes N] [--scale X] [--procs N]

Writes into the work folder: tokenizer.json (learnt here unless the recipe ships one), code.npy and
the held-out streams, rows.T.npy / kinds.T.npy for each row length T, packages.json, and READY last.
"""
import argparse
import multiprocessing
import os
import random

import numpy as np

import corpus
import tasks
import tokenizer
from settings import BOS, EOS, PAD, SEED, log, work_folder, write_json

# What the rows of each length hold, by share of tokens.  Long rows are for long documents.
MIXES = {
    1024: dict(needle=3, varied=4, pairs=3, sums=2, json=4, tools=2.5, chat=3, edit=7),
    2048: dict(needle=4, varied=5, pairs=3, sums=1, json=3, tools=2, chat=2, edit=7),
    4096: dict(needle=8, varied=7, pairs=2, sums=0.5, json=1.5, tools=1, chat=1, edit=4),
    8192: dict(needle=9, varied=6, pairs=1, sums=0.5, json=1.5, tools=1, chat=1, edit=3),
}
TOKENS = {1024: 36e6, 2048: 16e6, 4096: 14e6, 8192: 14e6}
STATE = {}


def stream(texts):
    ids = STATE["text"].many(texts)
    return np.concatenate([np.array([BOS] + i + [EOS], np.int16) for i in ids])


def room_for(kind, rng, free):
    """How long a document may be; needles fill what is left, small tasks stay small."""
    if kind in ("needle", "varied"):
        return min(free, rng.choice([300, 700, 1500, 3000, 6000, free, free]))
    return min(free, 1100)


def rows_of(job):
    """n rows of T tokens, packed with documents; one that does not fit is cut at the row's end."""
    seed, n, width = job
    rng = random.Random("%s:%s:%s" % (SEED, seed, width))
    source = tasks.Source("%s:rows:%s:%s" % (SEED, seed, width), STATE["files"][seed % 7::7])
    kinds, shares = zip(*MIXES[width].items())
    spent = dict.fromkeys(kinds, 0.0)
    tokens, marks = np.full((n, width), PAD, np.int16), np.full((n, width), 255, np.uint8)
    for row in range(n):
        at = 0
        while width - at > 100:
            # The kind that is furthest behind its share comes next, unless it needs more room.
            kind = min(rng.sample(kinds, 3), key=lambda k: spent[k] / MIXES[width][k])
            ids, marked = tasks.encode(source.make(kind, room_for(kind, rng, width - at)), STATE["text"])
            if len(ids) > width - at and at > 0.8 * width:
                break
            size = min(len(ids), width - at)
            tokens[row, at:at + size], marks[row, at:at + size] = ids[:size], marked[:size]
            spent[kind] += size
            at += size
    return tokens, marks


def chunks(texts, size):
    part, total = [], 0
    for text in texts:
        part.append(text)
        total += len(text)
        if total > size:
            yield part
            part, total = [], 0
    if part:
        yield part


def build(args):
    work = work_folder()
    split, packages = corpus.load(args.bytes)
    write_json(os.path.join(work, "packages.json"), packages)
    texts = {k: [t for _, t in v] for k, v in split.items()}
    log({k: "%d files, %.1f MB" % (len(v), sum(map(len, v)) / 1e6) for k, v in texts.items()})
    path = os.path.join(work, "tokenizer.json")
    shipped = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../models/tiny/verifier/tokenizer.json")
    if os.path.exists(shipped):
        with open(shipped) as f, open(path, "w") as g:
            g.write(f.read())
    else:
        part = next(chunks(texts["train"], min(24e6, args.bytes)))
        tokenizer.train(part, tasks.sample_texts(6000), path)
    STATE["text"], STATE["files"] = tokenizer.Text(path), texts["train"]
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with multiprocessing.get_context("fork").Pool(args.procs) as pool:
        for name, file in (("held_files", "held"), ("held_packages", "heldpkg"), ("train", "code")):
            if not texts[name]:
                texts[name] = texts["held_files"] or texts["train"][:20]
            np.save(os.path.join(work, file + ".npy"), np.concatenate(pool.map(stream, chunks(texts[name], 5e5))))
            log(file, np.load(os.path.join(work, file + ".npy"), mmap_mode="r").shape)
        held = {k: [[n, len(t.encode())] for n, t in split[k]] for k in ("held_files", "held_packages")}
        write_json(os.path.join(work, "held.json"), {"names": held, "texts": {k: texts[k][:400] for k in held}})
        for width, total in TOKENS.items():
            each = max(1, int(total * args.scale / width / (args.procs * 4)))
            made = pool.map(rows_of, [(i, each, width) for i in range(args.procs * 4)], chunksize=1)
            np.save(os.path.join(work, "rows.%d.npy" % width), np.concatenate([a for a, _ in made]))
            np.save(os.path.join(work, "kinds.%d.npy" % width), np.concatenate([b for _, b in made]))
            log("rows of", width, len(made) * each)
            open(os.path.join(work, "READY.%d" % width), "w").close()
    open(os.path.join(work, "READY"), "w").close()


if __name__ == "__main__":
    flags = argparse.ArgumentParser()
    flags.add_argument("--bytes", type=float, default=2.4e8, help="most bytes of source code")
    flags.add_argument("--scale", type=float, default=1.0, help="how many documents, against the recipe's number")
    flags.add_argument("--procs", type=int, default=14)
    build(flags.parse_args())
