"""The needle document of `kakeya eval needle`, word for word, and its draws.

A document is a pile of numbered padding lines that all say the same, one emphasised line with a
code between blank lines, and a question that ends in an answer cue.  The draws are those of
Python's random.Random (MT19937), so a C program with the same generator makes the same documents.
"""
import random

PADDING = "Note {:04d}: this line is unrelated padding and does not hold the answer."
NEEDLE = "**IMPORTANT: the secret access code is {}.**"
QUESTION = "Question: What is the secret access code? Answer:"
ANSWER = "The secret access code is {}."
PREFIXES = ("ALPHA BETA GAMMA DELTA EPSILON ZETA ETA THETA IOTA KAPPA "
            "ORCHID PINE MAPLE OAK BIRCH").split()


def draw(rng, low, high):
    """One sample's (lines, code, index), in the order in which they are drawn."""
    lines = rng.randint(low, high)
    prefix = rng.choice(PREFIXES)
    number = rng.randint(1000, 9999)
    return lines, "%s-%d" % (prefix, number), rng.randint(4, lines - 4)


def render(lines, code, index):
    body = [PADDING.format(i) for i in range(lines)]
    body.insert(index, "\n" + NEEDLE.format(code) + "\n")
    return "\n".join(body) + "\n\n" + QUESTION


def rung(lines):
    """The least and the most padding lines of a rung of the ladder."""
    low = max(10, (85 * lines + 50) // 100)
    return low, max(low + 1, (115 * lines + 50) // 100)


def samples(seed, n, low, high):
    rng = random.Random(seed)
    return [draw(rng, low, high) for _ in range(n)]


if __name__ == "__main__":
    assert samples(42, 5, 60, 80) == [(80, "BETA-1409", 39), (67, "DELTA-3286", 51), (63, "ORCHID-9935", 9),
                                      (78, "ETA-1520", 7), (62, "DELTA-4811", 36)]
    assert samples(42, 1, 238, 322) == [(319, "BETA-1409", 144)]
    assert [s[1:] for s in samples(0, 5, 60, 60)] == [
        ("MAPLE-7890", 6), ("IOTA-8961", 29), ("THETA-6866", 41), ("IOTA-3281", 22), ("MAPLE-2553", 43)]
    assert rung(70) == (60, 81) and rung(280) == (238, 322)
    print(render(12, "ORCHID-4821", 5))
