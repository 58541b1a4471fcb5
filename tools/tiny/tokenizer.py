"""A byte-pair tokenizer of Gemma's kind, with 4,096 tokens.

Spaces are U+2581, unknown characters fall back to bytes, digits never merge, runs of newlines and of
spaces are tokens of their own, ids 0..106 are Gemma 4's.  Merges are learnt on pieces of words and
punctuation; the finished tokenizer does not split at all, as Gemma's does not, and the merges of
runs come first, so that indentation is cut the same way everywhere.
"""
import sys

from settings import VOCAB, log, write_json

SPACE = "\u2581"
NAMED = {0: "<pad>", 1: "<eos>", 2: "<bos>", 3: "<unk>", 4: "<mask>", 46: "<|tool>", 47: "<tool|>",
         48: "<|tool_call>", 49: "<tool_call|>", 50: "<|tool_response>", 51: "<tool_response|>",
         52: '<|"|>', 98: "<|think|>", 100: "<|channel>", 101: "<channel|>", 105: "<|turn>", 106: "<turn|>"}
SPECIALS = [NAMED.get(i, "<unused%d>" % i) for i in range(107)]
LONGEST_RUN = 16
ALPHABET = [chr(c) for c in range(33, 127)] + ["\t", SPACE]
# What a merge may cross: a word with one sign before it, a run of signs with a space before it.
PIECE = r"[\u2581._]?\p{L}+|\d|\u2581?[^\s\p{L}\p{N}\u2581]+|\u2581|\t+"


def learn(texts, n_merges):
    """The first merges of plain byte-pair training over the texts."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.Replace(" ", SPACE)
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\u2581{2,}|\n+"), "removed"),
        pre_tokenizers.Split(Regex(PIECE), "isolated"),
    ])
    trainer = trainers.BpeTrainer(vocab_size=n_merges + len(ALPHABET) + 64, initial_alphabet=ALPHABET,
                                  limit_alphabet=len(ALPHABET), show_progress=False, max_token_length=20)
    tok.train_from_iterator(texts, trainer=trainer)
    import json
    merges = json.loads(tok.to_str())["model"]["merges"]
    return [tuple(m) if not isinstance(m, str) else tuple(m.split(" ")) for m in merges][:n_merges]


def runs(sign):
    """Every way to join two runs, shorter results first: any run up to the longest is one token."""
    return [(sign * i, sign * (n - i)) for n in range(2, LONGEST_RUN + 1) for i in range(1, n)]


def assemble(merges):
    vocab = list(SPECIALS)
    vocab += ["\n" * n for n in range(1, LONGEST_RUN + 1)]
    vocab += [SPACE * n for n in range(2, LONGEST_RUN + 1)]
    vocab += ["<0x%02X>" % b for b in range(256)]
    vocab += sorted(ALPHABET)
    kept, seen = [], set(vocab)
    for left, right in merges:
        if left not in seen or right not in seen:
            continue
        if left + right not in seen:
            if len(vocab) == VOCAB:
                break
            vocab.append(left + right)
            seen.add(left + right)
        kept.append((left, right))
    assert len(vocab) == VOCAB, "%d tokens: too few merges were learnt" % len(vocab)
    flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [dict(id=i, content=s, **flags) for i, s in enumerate(SPECIALS)],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                          "invert": False},
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": {s: i for i, s in enumerate(vocab)},
                  "merges": [list(m) for m in runs("\n") + runs(SPACE) + kept]},
    }


class Text:
    """Encodes plain text; strings that look like special tokens stay plain."""

    def __init__(self, path):
        from tokenizers import Tokenizer
        self.tok = Tokenizer.from_file(path)
        self.tok.encode_special_tokens = True

    def ids(self, text):
        return self.tok.encode(text, add_special_tokens=False).ids

    def many(self, texts):
        return [e.ids for e in self.tok.encode_batch(texts, add_special_tokens=False)]

    def text(self, ids):
        return self.tok.decode(list(ids), skip_special_tokens=False)


def train(code, other, path):
    merges = learn(code + other, VOCAB)
    write_json(path, assemble(merges))
    text = Text(path)
    for probe in ("def f(self):\n    return 1234\n\n\n        x = 'caf\u00e9 \U0001F999'\n\t\n", "<mask> <bos>"):
        assert text.text(text.ids(probe)) == probe, repr(probe)
        assert min(text.ids(probe)) > 106
    log("tokenizer:", path, "bytes per token %.3f" % (
        sum(len(t.encode()) for t in code[:200]) / sum(map(len, text.many(code[:200])))))


if __name__ == "__main__":
    import corpus
    from tasks import sample_texts
    parts, _ = corpus.load(float(sys.argv[2]) if len(sys.argv) > 2 else 24e6)
    train([t for _, t in parts["train"]], sample_texts(6000), sys.argv[1])
