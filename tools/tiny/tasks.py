"""Our own documents: needles, key-value recall, arithmetic, JSON, tool calls, chats, edits.

A document is a list of (kind, piece); a piece is plain text or a special token's id, a kind says
what the tokens count for in the loss.  Pieces of one side are joined before they are encoded, so the
border between prompt and answer is the only cut, which is where inference has it too.
A document is held out when a hash of its prompt says so: train and test can never share one.
"""
import hashlib
import json
import random

import needle
from settings import (BOS, CALL_CLOSE, CALL_OPEN, CHANNEL_CLOSE, CHANNEL_OPEN, EOS, QUOTE, RESPONSE_CLOSE,
                      RESPONSE_OPEN, TOOL_CLOSE, TOOL_OPEN, TURN_CLOSE, TURN_OPEN)
from words import (ADJECTIVES, ADVERBS, CAPITALS, CHATS, CITIES, DEFINITIONS, FUNCTIONS, NAMES, NOUNS, OBJECTS,
                   OPPOSITES, SUBJECTS, TOOLS, VERBS)

PROMPT, ANSWER, RECALL = 0, 1, 2
HELD_ONE_IN = 12


def is_held(doc):
    text = "".join(str(piece) for kind, piece in doc if kind == PROMPT)
    return int(hashlib.md5(text.encode()).hexdigest()[:8], 16) % HELD_ONE_IN == 0


def prompt_of(doc):
    """What comes before the last answer."""
    last = max(i for i, (kind, _) in enumerate(doc) if kind == PROMPT)
    return doc[:last + 1]


# ---- the two frames: a chat in Gemma's format, or plain text with a cue ---------------------------

def turn(rng, user, answer, system=None, kind=ANSWER, first=True):
    """One exchange; the model's turn opens with an empty thought channel, as for the large models."""
    doc = [(PROMPT, BOS)] if first else [(PROMPT, "\n")]
    if system:
        doc += [(PROMPT, TURN_OPEN), (PROMPT, "system\n")] + system + [(PROMPT, TURN_CLOSE), (PROMPT, "\n")]
    doc += [(PROMPT, TURN_OPEN), (PROMPT, "user\n" + user.strip()), (PROMPT, TURN_CLOSE), (PROMPT, "\n"),
            (PROMPT, TURN_OPEN), (PROMPT, "model\n")]
    if rng.random() < 0.8:
        doc += [(PROMPT, CHANNEL_OPEN), (PROMPT, "thought\n"), (PROMPT, CHANNEL_CLOSE)]
    answer = answer if isinstance(answer, list) else [(kind, answer)]
    return doc + answer + [(ANSWER, TURN_CLOSE)]


def plain(prompt, answer, kind=ANSWER):
    return [(PROMPT, BOS), (PROMPT, prompt), (kind, answer), (ANSWER, "\n"), (ANSWER, EOS)]


def frame(rng, prompt, answer, kind=ANSWER):
    return turn(rng, prompt, answer, kind=kind) if rng.random() < 0.6 else plain(prompt, " " + answer, kind)


# ---- needles ---------------------------------------------------------------------------------------

def new_word(rng):
    if rng.random() < 0.45:
        word = rng.choice(NOUNS + OBJECTS + SUBJECTS).upper()
    else:
        word = "".join(rng.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(rng.randint(2, 7)))
    return word if word not in needle.PREFIXES else new_word(rng)


def new_code(rng):
    return "%s-%d" % (new_word(rng), rng.randint(1000, 9999))


def sentence(rng):
    return "The %s %s %s the %s %s %s." % (rng.choice(ADJECTIVES), rng.choice(SUBJECTS), rng.choice(VERBS),
                                           rng.choice(ADJECTIVES), rng.choice(OBJECTS), rng.choice(ADVERBS))


PADDINGS = ["Entry {:03d}: nothing of interest here.", "Line {}: this sentence is filler and can be ignored.",
            "[{:05d}] padding text that does not matter", "Note {:04d}: there is no answer in this line.",
            "{}. The grass is green. The sky is blue. The sun is yellow. Here we go.",
            "INFO {:06d} worker finished its task without errors"]


def filler(rng, code_lines):
    """A function from an index to a line of padding."""
    kind = rng.random()
    if kind < 0.25:
        form = rng.choice(PADDINGS)
        return lambda i: form.format(i)
    if kind < 0.55:
        return lambda i: sentence(rng)
    if kind < 0.7:
        form = rng.choice(PADDINGS)
        return lambda i: form.format(rng.randint(0, 9999)) if rng.random() < 0.5 else sentence(rng)
    return lambda i: rng.choice(code_lines)


def needle_plain(rng, budget, code_lines):
    """The document of `kakeya eval needle` with words it never uses."""
    lines = max(10, min(int((budget - 60) / 20.5), rng.randint(10, 420)))
    code = new_code(rng)
    text = needle.render(lines, code, rng.randint(0, lines))
    answer = needle.ANSWER.format(code)
    if rng.random() < 0.5:
        return turn(rng, text, answer, kind=RECALL)
    return plain(text, " " + answer, RECALL)


STATES = ["The {w} code for the {k} is {c}.", "Remember that the {w} code of the {k} is {c}.",
          "Note: the {w} code for the {k} is {c}, keep it safe.", "**The {w} code for the {k} is {c}.**",
          "# {w} code of the {k}: {c}", "IMPORTANT: the {k} opens with the {w} code {c}."]
ASKS = [("What is the {w} code for the {k}?", "The {w} code for the {k} is {c}."),
        ("Question: What is the {w} code of the {k}? Answer:", "The {w} code of the {k} is {c}."),
        ("Tell me the {w} code that opens the {k}.", "It is {c}."),
        ("Please repeat the code of the {k}.", "The code of the {k} is {c}."),
        ("Which {w} code was mentioned for the {k}?", "{c}")]
KINDS_OF_CODE = "secret access door entry backup master pass".split()


def needle_varied(rng, budget, code_lines):
    """Several facts in a pile of padding, then one or more questions about them."""
    facts, used = [], set()
    for _ in range(rng.choice([1, 1, 2, 3, 4, 6])):
        place = "%s %s" % (rng.choice(ADJECTIVES), rng.choice(NOUNS))
        if place not in used:
            used.add(place)
            facts.append(dict(k=place, c=new_code(rng), w=rng.choice(KINDS_OF_CODE)))
    line, lines, size = filler(rng, code_lines), [], 0
    room = (budget - 150) * 2.9 - 75 * len(facts)
    while size < room:
        lines.append(line(len(lines)))
        size += len(lines[-1]) + 1
    for fact in facts:
        text = rng.choice(STATES).format(**fact)
        lines.insert(rng.randint(0, len(lines)), rng.choice(["%s", "\n%s\n"]) % text)
    body = "\n".join(lines) + "\n\n"
    asked = rng.sample(facts, min(len(facts), rng.choice([1, 1, 2, 3])))
    chat, doc = rng.random() < 0.5, []
    for i, fact in enumerate(asked):
        ask, answer = rng.choice(ASKS)
        ask, answer = ask.format(**fact), answer.format(**fact)
        if chat:
            doc += turn(rng, (body if i == 0 else "") + ask, answer, kind=RECALL, first=i == 0)
        elif i == 0:
            doc += [(PROMPT, BOS), (PROMPT, body + ask), (RECALL, " " + answer), (ANSWER, "\n")]
        else:
            doc += [(PROMPT, ask), (RECALL, " " + answer), (ANSWER, "\n")]
    return doc if chat else doc + [(ANSWER, EOS)]


def key_values(rng, budget, code_lines):
    """A table of pairs in one of several spellings and questions for some of its values."""
    n = rng.randint(4, max(5, min(60, (budget - 80) // 14)))
    keys = list(dict.fromkeys("%s_%s" % (rng.choice(ADJECTIVES), rng.choice(NOUNS)) for _ in range(n)))
    make = rng.choice([lambda: str(rng.randint(10, 99999)), lambda: new_word(rng).lower(), lambda: new_code(rng)])
    pairs = [(k, make()) for k in keys]
    form = rng.choice(["{} = {}", "{}: {}", '    "{}": "{}",', "| {} | {} |", "{} -> {}"])
    table = "\n".join(form.format(k, v) for k, v in pairs)
    if form.startswith("    "):
        table = "settings = {\n%s\n}" % table
    asks = ["What is the value of {}?", "Look up {}.", "Which value belongs to {}?"]
    doc = []
    for i in range(rng.randint(1, 4)):
        k, v = rng.choice(pairs)
        ask = rng.choice(asks).format(k)
        doc += turn(rng, (table + "\n\n" + ask) if i == 0 else ask, "The value of %s is %s." % (k, v),
                    kind=RECALL, first=i == 0)
    return doc


# ---- small skills ----------------------------------------------------------------------------------

def arithmetic(rng, budget, code_lines):
    def one():
        size = rng.choice([10, 10, 100, 100, 1000])
        a, b, op = rng.randrange(size), rng.randrange(size), rng.choice("++-*")
        if op == "*":
            a, b = a % 13, b % 13
        value = a + b if op == "+" else a - b if op == "-" else a * b
        return a, op, b, value
    if rng.random() < 0.6:
        doc = []
        for i in range(rng.randint(1, 3)):
            a, op, b, value = one()
            ask = rng.choice(["What is %d %s %d?", "Compute %d %s %d.", "%d %s %d"]) % (a, op, b)
            doc += turn(rng, ask, "%d %s %d = %d" % (a, op, b, value), first=i == 0)
        return doc
    sums = [one() for _ in range(rng.randint(4, 16))]
    doc = [(PROMPT, BOS), (PROMPT, "Sums:\n")]
    for a, op, b, value in sums:
        doc += [(PROMPT, "%d %s %d =" % (a, op, b)), (ANSWER, " %d\n" % value)]
    return doc + [(ANSWER, EOS)]


FIELDS = ["name", "age", "city", "email", "active", "score", "tags", "id", "job", "team", "address", "height"]


def record(rng):
    first, last = rng.choice(NAMES), rng.choice(NOUNS).capitalize()
    every = dict(name="%s %s" % (first, last), age=rng.randint(18, 90), city=rng.choice(CITIES),
                 email="%s.%s@example.org" % (first.lower(), last.lower()), active=rng.random() < 0.5,
                 score=rng.randint(0, 1000) / 10, tags=rng.sample(ADJECTIVES, rng.randint(1, 4)),
                 id=rng.randint(1000, 99999), job=rng.choice(SUBJECTS), team=rng.choice(NOUNS),
                 address=dict(street="%d %s street" % (rng.randint(1, 200), rng.choice(NOUNS)),
                              city=rng.choice(CITIES)), height=rng.randint(150, 199))
    return {k: every[k] for k in rng.sample(FIELDS, rng.randint(3, 8))}


def spoken(value):
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(value)
    if isinstance(value, dict):
        return "%(street)s in %(city)s" % value
    return str(value)


def json_task(rng, budget, code_lines):
    rows = [record(rng) for _ in range(rng.choice([1, 1, 1, 2, 3, 4]))]
    value = rows[0] if len(rows) == 1 else rows
    kind = rng.random()
    if kind < 0.45:
        facts = "\n".join("; ".join("%s: %s" % (k, spoken(v)) for k, v in row.items()) for row in rows)
        answer = json.dumps(value, indent=rng.choice([2, 2, 4]))
        return turn(rng, rng.choice(["Write this as JSON:\n", "Turn these notes into JSON.\n", "JSON please:\n"])
                    + facts, answer)
    if kind < 0.65:
        return turn(rng, "Format this JSON with an indent of 2:\n" + json.dumps(value), json.dumps(value, indent=2))
    if kind < 0.8:
        return turn(rng, "Make this JSON compact:\n" + json.dumps(value, indent=2), json.dumps(value))
    row = rng.choice(rows)
    key, new = rng.choice(list(row)), rng.choice([rng.randint(1, 999), rng.choice(CITIES), True, None])
    old = json.dumps(value, indent=2)
    at = rows.index(row)
    row[key] = new
    where = "" if len(rows) == 1 else " of entry %d" % (at + 1)
    return turn(rng, "Set %s%s to %s:\n%s" % (key, where, json.dumps(new), old), json.dumps(value, indent=2))


# ---- tool calls --------------------------------------------------------------------------------------

def quoted(kind, text):
    return [(kind, QUOTE), (kind, text), (kind, QUOTE)]


def declaration(tool):
    parts = [(PROMPT, TOOL_OPEN), (PROMPT, "declaration:%s{description:" % tool["name"])]
    parts += quoted(PROMPT, tool["description"]) + [(PROMPT, ",parameters:{properties:{")]
    for i, (name, (kind, text)) in enumerate(sorted(tool["parameters"].items())):
        parts += [(PROMPT, ("," if i else "") + name + ":{description:")] + quoted(PROMPT, text)
        parts += [(PROMPT, ",type:")] + quoted(PROMPT, kind.upper()) + [(PROMPT, "}")]
    parts += [(PROMPT, "},required:[")]
    for i, name in enumerate(sorted(tool["parameters"])):
        parts += ([(PROMPT, ",")] if i else []) + quoted(PROMPT, name)
    return parts + [(PROMPT, "],type:")] + quoted(PROMPT, "OBJECT") + [(PROMPT, "}}"), (PROMPT, TOOL_CLOSE)]


def mapping(kind, values):
    parts = [(kind, "{")]
    for i, (name, value) in enumerate(sorted(values.items())):
        parts.append((kind, ("," if i else "") + name + ":"))
        parts += quoted(kind, value) if isinstance(value, str) else [(kind, json.dumps(value))]
    return parts + [(kind, "}")]


def tool_call(rng, budget, code_lines):
    tools = rng.sample(TOOLS, rng.randint(1, 3))
    tool = rng.choice(tools)
    values = {"city": rng.choice(CITIES), "name": rng.choice(NAMES), "minutes": rng.randint(1, 90),
              "query": "%s %s" % (rng.choice(ADJECTIVES), rng.choice(NOUNS)), "amount": rng.randint(1, 500),
              "path": "%s/%s.txt" % (rng.choice(NOUNS), rng.choice(OBJECTS)), "room": rng.choice(NOUNS),
              "level": rng.randint(0, 100), "date": "2026-%02d-%02d" % (rng.randint(1, 12), rng.randint(1, 28))}
    given = {k: values[k] for k in tool["parameters"]}
    system = [part for t in sorted(tools, key=lambda t: t["name"]) for part in declaration(t)]
    call = [(ANSWER, CALL_OPEN), (ANSWER, "call:" + tool["name"])] + mapping(ANSWER, given) + [(ANSWER, CALL_CLOSE)]
    doc = turn(rng, rng.choice(tool["asks"]).format(**given), call, system=system)[:-1]
    doc.append((ANSWER, RESPONSE_OPEN))
    if rng.random() < 0.5:
        return doc
    result, text = rng.choice(tool["results"])
    result = {k: v.format(n=rng.randint(1, 30), **given) for k, v in result.items()}
    doc += [(PROMPT, "response:" + tool["name"])] + mapping(PROMPT, result) + [(PROMPT, RESPONSE_CLOSE)]
    return doc + [(ANSWER, text.format(**given, **{"r_" + k: v for k, v in result.items()})), (ANSWER, TURN_CLOSE)]


# ---- chats -------------------------------------------------------------------------------------------

def one_chat(rng):
    kind = rng.random()
    if kind < 0.2:
        ask, answer = rng.choice(CHATS)
        name = rng.choice(NAMES)
        return rng.choice(ask).format(name=name), rng.choice(answer).format(name=name)
    if kind < 0.36:
        country, city = rng.choice(CAPITALS)
        return rng.choice([("What is the capital of %s?" % country, "The capital of %s is %s." % (country, city)),
                           ("Which country has %s as its capital?" % city, "%s is the capital of %s."
                            % (city, country)),
                           ("Tell me the capital of %s, please." % country, "It is %s." % city)])
    if kind < 0.46:
        a, b = rng.choice(OPPOSITES)
        if rng.random() < 0.5:
            a, b = b, a
        return "What is the opposite of %s?" % a, "The opposite of %s is %s." % (a, b)
    if kind < 0.6:
        word, text = rng.choice(DEFINITIONS)
        return rng.choice(["What is %s?", "Explain %s in one sentence.", "Tell me about %s."]) % word, text
    if kind < 0.72:
        words = rng.sample(NOUNS + OBJECTS + ADJECTIVES, rng.randint(3, 7))
        text = " ".join(words)
        return rng.choice([("Repeat after me: %s" % text, text), ("Sort these words: %s" % text,
                                                                  " ".join(sorted(words))),
                           ("Write in capital letters: %s" % text, text.upper()),
                           ("Reverse the order of the words: %s" % text, " ".join(reversed(words))),
                           ("List these as bullets: %s" % ", ".join(words), "\n".join("- " + w for w in words)),
                           ("How many words are in: %s" % text, "There are %d words." % len(words))])
    if kind < 0.82:
        name, job, city = rng.choice(NAMES), rng.choice(SUBJECTS), rng.choice(CITIES)
        text = "%s is a %s who lives in %s." % (name, job, city)
        return rng.choice([(text + " What does %s do?" % name, "%s is a %s." % (name, job)),
                           (text + " Where does %s live?" % name, "%s lives in %s." % (name, city)),
                           ("Summarise: " + text + " " + sentence(rng), "%s is a %s from %s." % (name, job, city))])
    names = dict(a=rng.choice("abxypqmn"), f=rng.choice(["", "my_", "get_", "do_"]), n=rng.choice(["n", "k", "count"]),
                 s=rng.choice(["items", "values", "data", "numbers", "words"]))
    ask, code, says = rng.choice(FUNCTIONS)
    answer = "```python\n" + code.format(**names) + "\n```"
    if rng.random() < 0.5:
        answer += "\n" + says
    return rng.choice(["Write a Python function that %s.", "How do I write a function that %s in Python?",
                       "Python: a function that %s."]) % ask, answer


def chat(rng, budget, code_lines):
    doc = []
    for i in range(rng.choice([1, 1, 1, 2, 3])):
        ask, answer = one_chat(rng)
        system = [(PROMPT, "You are a small and helpful model.")] if i == 0 and rng.random() < 0.15 else None
        doc += turn(rng, ask, answer, system=system, first=i == 0)
    return doc


# ---- edits -------------------------------------------------------------------------------------------

def excerpt(rng, files, low, high):
    lines = rng.choice(files).split("\n")
    starts = [i for i, l in enumerate(lines) if l.startswith(("def ", "class ", "    def ", "import ", "@"))]
    at = rng.choice(starts) if starts else rng.randrange(max(1, len(lines) - low))
    chosen = [l.rstrip() for l in lines[at:at + rng.randint(low, high)]]
    while chosen and not chosen[-1]:
        chosen.pop()
    return [l for l in chosen if len(l) < 160]


def edited(rng, lines):
    """An instruction and the file that obeys it."""
    import re
    words = [w for w in re.findall(r"[A-Za-z_]\w{2,}", "\n".join(lines))
             if w not in ("def", "class", "return", "import", "from", "self", "None", "True", "False")]
    numbers = [i for i, l in enumerate(lines) if re.search(r"\b\d+\b", l)]
    kind = rng.random()
    if kind < 0.5 and words:
        old = rng.choice(words)
        new = rng.choice([old + "_" + rng.choice(["new", "v2", "old", "ref"]), rng.choice(ADJECTIVES) + "_" + old,
                          rng.choice(NOUNS) + "_" + rng.choice(OBJECTS)])
        return "Rename `%s` to `%s`." % (old, new), [re.sub(r"\b%s\b" % old, new, l) for l in lines]
    if kind < 0.65 and numbers:
        at = rng.choice(numbers)
        old = rng.choice(re.findall(r"\b\d+\b", lines[at]))
        new = str(rng.randint(2, 500))
        changed = list(lines)
        changed[at] = re.sub(r"\b%s\b" % old, new, changed[at], count=1)
        return "Change %s to %s in the line `%s`." % (old, new, lines[at].strip()), changed
    full = [i for i, l in enumerate(lines) if l.strip()]
    at = rng.choice(full)
    if kind < 0.8:
        return "Delete the line `%s`." % lines[at].strip(), [l for l in lines if l != lines[at]]
    text = "# " + rng.choice(["TODO: check this", "see the notes", "%s %s" % (rng.choice(ADJECTIVES),
                                                                            rng.choice(NOUNS))])
    indent = lines[at][:len(lines[at]) - len(lines[at].lstrip())]
    return ("Add the comment `%s` above the line `%s`." % (text, lines[at].strip()),
            [new for i, l in enumerate(lines) for new in ([indent + text, l] if i == at else [l])])


def edit(rng, budget, files):
    lines = []
    while len("".join(lines)) < 120:
        lines = excerpt(rng, files, 8, max(10, min(70, budget // 26)))
    if rng.random() < 0.12:
        return turn(rng, "Repeat this file exactly.\n```python\n%s\n```" % "\n".join(lines),
                    "```python\n%s\n```" % "\n".join(lines))
    ask, changed = edited(rng, lines)
    return turn(rng, "%s\n```python\n%s\n```" % (ask, "\n".join(lines)), "```python\n%s\n```" % "\n".join(changed))


# ---- all of them ---------------------------------------------------------------------------------------

MAKERS = {"needle": needle_plain, "varied": needle_varied, "pairs": key_values, "sums": arithmetic,
          "json": json_task, "tools": tool_call, "chat": chat, "edit": edit}


def one_channel(doc):
    """Only the last model turn keeps its empty thought channel: the chat template removes the others."""
    opens = [i for i, (_, piece) in enumerate(doc) if piece == CHANNEL_OPEN]
    dropped = {j for i in opens[:-1] for j in (i, i + 1, i + 2)}
    if opens and any(piece == TURN_OPEN for _, piece in doc[opens[-1]:]):
        dropped |= {opens[-1], opens[-1] + 1, opens[-1] + 2}
    return [part for i, part in enumerate(doc) if i not in dropped]


class Source:
    """Documents without end from one seed, of one side of the split."""

    def __init__(self, seed, files, held=False):
        self.rng, self.files, self.held = random.Random(seed), files, held
        self.lines = [l for t in files for l in map(str.strip, t.split("\n")) if 12 <= len(l) <= 100]

    def make(self, kind, budget):
        while True:
            doc = one_channel(MAKERS[kind](self.rng, budget, self.files if kind == "edit" else self.lines))
            if is_held(doc) == self.held:
                return doc


def encode(doc, text):
    """Token ids and the kind of each; plain pieces of one side are encoded together."""
    ids, kinds, run, side = [], [], "", None
    for kind, piece in list(doc) + [(None, 0)]:
        if run and (isinstance(piece, int) or kind != side):
            new = text.ids(run)
            ids += new
            kinds += [side] * len(new)
            run = ""
        if kind is None:
            return ids, kinds
        if isinstance(piece, int):
            ids.append(piece)
            kinds.append(kind)
        else:
            run += piece
        side = kind


def sample_texts(n):
    """Plain text of documents, for the tokenizer to learn from."""
    source = Source("tokenizer", ["def f(x):\n    return x + 1\n\n\nclass A:\n    pass\n" * 4])
    kinds = ["needle", "varied", "pairs", "sums", "json", "tools", "chat"]
    docs = [source.make(kinds[i % len(kinds)], 300) for i in range(n)]
    return ["".join(p for _, p in doc if isinstance(p, str)) for doc in docs]


if __name__ == "__main__":
    shown = Source("show", [open(__file__).read()])
    for name in MAKERS:
        print("-----", name)
        print("".join(p if isinstance(p, str) else "<%d>" % p for _, p in shown.make(name, 300)))
