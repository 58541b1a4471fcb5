"""Writes the prompt sets that `kakeya eval accept` and `kakeya bench` know by name.

usage: prompts.py [--held tests/data/tiny/prompts.jsonl] [--to models/tiny/prompts]

Held-out prompts are decoded to text again, so that any model can be asked them: code.jsonl (files and whole
packages in turn), json.jsonl, edit.jsonl and chat.jsonl, one {"text" or "messages", "new"} a line.  prose.jsonl
beside them is written by hand; needles need no file, because a seed makes them.
"""
import argparse
import json
import os
import re

TURN = re.compile(r"<\|turn>(\w+)\n(.*?)<turn\|>\n?", re.S)
THOUGHT = re.compile(r"<\|channel>thought\n(.*?)<channel\|>", re.S)
ROLES = {"user": "user", "system": "system", "model": "assistant"}


def decoder(path):
    with open(path) as f:
        tokenizer = json.load(f)
    piece = {i: t for t, i in tokenizer["model"]["vocab"].items()}
    piece.update((t["id"], t["content"]) for t in tokenizer["added_tokens"])

    def text(ids):
        out = b""
        for t in (piece[i] for i in ids):
            byte = re.fullmatch(r"<0x([0-9A-F]{2})>", t)
            out += bytes([int(byte[1], 16)]) if byte else t.replace("\u2581", " ").encode()
        return out.decode(errors="replace")
    return text


def prompt(text, new):
    text = text.removeprefix("<bos>")
    if not text.startswith("<|turn>"):
        return {"text": text, "new": new}
    messages = [{"role": ROLES[role], "content": THOUGHT.sub("", body)} for role, body in TURN.findall(text)]
    return {"messages": messages, "new": new}


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("--held", default="tests/data/tiny/prompts.jsonl")
    flags.add_argument("--verifier", default="models/tiny/verifier")
    flags.add_argument("--to", default="models/tiny/prompts")
    args = flags.parse_args()
    text, kinds = decoder(os.path.join(args.verifier, "tokenizer.json")), {}
    with open(args.held) as f:
        for row in map(json.loads, f):
            kinds.setdefault(row["kind"], []).append(prompt(text(row["ids"]), row["new"]))
    code = [p for pair in zip(kinds["code"][:25], kinds["codepkg"][:25]) for p in pair]
    os.makedirs(args.to, exist_ok=True)
    for name, some in {"code": code, "json": kinds["json"], "edit": kinds["edit"], "chat": kinds["chat"]}.items():
        with open(os.path.join(args.to, name + ".jsonl"), "w") as f:
            f.writelines(json.dumps(p, ensure_ascii=False) + "\n" for p in some)


if __name__ == "__main__":
    main()
