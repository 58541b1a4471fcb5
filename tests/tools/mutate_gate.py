#!/usr/bin/env python3
"""mutate_gate.py - breaks the gate of reports in one place at a time and sees that a test fails.

A mutant is one statement of eval/reports that is left out (a finding, a call that leads to one, a
group of rules of a kind), one limit of gate_rules.h and gate.h that is a step higher or lower in its
last digit, or with --clauses one part of a condition: a clause that always or never holds, a
comparison that takes in its edge or leaves it out, a number beside one that is a step off.  All of
them are compiled into one set of test programs, and the variable KK_MUTANT says which is at work,
so that a mutant costs a run and no build.  Programs that never come to the place of a mutant are not run for it.  Members that a kind
needs are no mutants: tests/unit/gate_members_test.c takes every member of every report away.

  mutate_gate.py BUILD [--clauses] [--draw N] [--seed S] [--only WORD] [--these FILE] [--jobs N]
                 [--list]

BUILD is a build folder with libkakeya_eval.a and libkakeya.a.  tests/tools/mutants.txt lists mutants
that may survive, and says why: of these none is drawn.  Exit status 1 when another one survives, or
when one that is listed is found out.
"""
import argparse
import concurrent.futures
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
RULES = ROOT / "eval" / "reports"
TESTS = ["gate_serving_test", "gate_steps_test", "gate_exact_test", "gate_alone_test",
         "gate_rounds_test", "gate_test", "gate_doctored_test", "gate_limits_test",
         "gate_parts_test"]
ALLOWED = ROOT / "tests" / "tools" / "mutants.txt"

HEAD = """#ifndef KK_MUTANT_H
#define KK_MUTANT_H
#include <stdbool.h>
#include <stddef.h>
bool kk_mutant_at(int n);
int kk_mutant_kind(const char *name);
#endif
"""
BODY = """#include "mutant.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static unsigned char reached[%(n)d];
static void tell(void) {
    const char *path = getenv("KK_MUTANTS_REACHED");
    FILE *f = path ? fopen(path, "w") : NULL;
    for (int i = 0; f && i < %(n)d; i++)
        if (reached[i]) fprintf(f, "%%d\\n", i);
    if (f) fclose(f);
}
bool kk_mutant_at(int n) {
    static int chosen = -2;
    if (chosen == -2) {
        const char *s = getenv("KK_MUTANT");
        chosen = s ? atoi(s) : -1;
        atexit(tell);
    }
    reached[n] = 1;
    return n == chosen;
}
int kk_mutant_kind(const char *name) {
    static const char *const names[] = {%(kinds)s};
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++)
        if (strcmp(names[i], name) == 0) return i;
    return -1;
}
"""


class Mutants:
    """Numbers mutants, each with words that stay the same when lines move."""

    def __init__(self):
        self.words = []

    def new(self, words):
        same = sum(w == words or w.startswith(words + " #") for w in self.words)
        self.words.append(words + (f" #{same + 1}" if same else ""))
        return len(self.words) - 1


def functions(text):
    """Names of functions without a result that are given the gate."""
    return set(re.findall(r"^(?:static )?void (\w+)\((?:kk_gate \*g|const search \*s)\b", text,
                          re.M))


def shorten(text):
    return re.sub(r"\s+", " ", text).strip()[:70]


def mutate_calls(name, text, known, mutants):
    """Puts a question before every call of a function that may find something."""
    out, at, inside = [], 0, "?"
    pattern = re.compile(r"(?<![\w>.])(" + "|".join(sorted(known)) + r")\((?=g[,)]|s[,)]|s->gate)")
    for line in text.splitlines(keepends=True):
        define = re.match(r"(?:static |const |void |bool |kk_)[\w *]*?(\w+)\(", line)
        if define and not line.rstrip().endswith(";"):
            inside = define.group(1)
            # The body may stand on the same line.
            brace = line.find("{")
            head, tail = (line[:brace], line[brace:]) if brace >= 0 else (line, "")
        elif define:
            head, tail = line, ""
        else:
            head, tail = "", line
        def ask(m):
            n = mutants.new(f"{name} {inside}: {shorten(tail[m.start():])}")
            return f"kk_mutant_at({n}) ? (void)0 : {m.group(0)}"
        out.append(head + pattern.sub(ask, tail))
        at += len(line)
    text = "".join(out)
    if name == "gate.c":
        text = re.sub(r"return refuse\(", lambda m: "return kk_mutant_at(%d) ? true : refuse("
                      % mutants.new("gate.c: a refusal before the rules"), text)
    return text


# ---- clauses ----------------------------------------------------------------------------------

def skip_quoted(text, at):
    """Behind a literal that begins here."""
    end = at + 1
    while text[end] != text[at]:
        end += 2 if text[end] == "\\" else 1
    return end + 1


def split(text, operators):
    """Parts of an expression between operators that stand in no parentheses, with each operator."""
    parts, found, depth, begin, at = [], [], 0, 0, 0
    while at < len(text):
        if text[at] in "\"'":
            at = skip_quoted(text, at)
            continue
        depth += (text[at] in "([{") - (text[at] in ")]}")
        one = next((o for o in operators if depth == 0 and text.startswith(o, at)), None)
        if one and not (one in "<>" and (text[at - 1] == "-" or text[at + 1] in "<>" or
                                         text[at - 1] in "<>")):
            parts.append(text[begin:at])
            found.append(one)
            at += len(one)
            begin = at
            continue
        at += 1
    return parts + [text[begin:]], found


def closing(text, at):
    """Where the parenthesis that opens here is closed."""
    depth = 0
    while True:
        if text[at] in "\"'":
            at = skip_quoted(text, at)
            continue
        depth += (text[at] == "(") - (text[at] == ")")
        if depth == 0:
            return at
        at += 1


class Clauses:
    """Puts questions into the conditions of one function."""

    def __init__(self, where, mutants):
        self.where, self.mutants = where, mutants

    def new(self, text, how):
        return self.mutants.new(f"{self.where}: ({shorten(text)}) {how}")

    def compare(self, text):
        """One comparison, or something else that is left alone."""
        (left, *right), found = split(text, ["<=", ">=", "==", "!=", "<", ">"])
        if len(found) != 1:
            return text
        right, op = right[0], found[0]
        swap = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}.get(op)
        out = text
        others = [(f"({left}) {swap} ({right})", f"as {swap}")] if swap else []
        if re.fullmatch(r"\s*\d+(\.\d+)?\s*", right) and "cmp(" not in left:
            others += [(f"({left}) {op} ({step(right.strip(), up)})", "up" if up else "down")
                       for up in (True, False)]
        for other, how in others:
            out = f"(kk_mutant_at({self.new(text, how)}) ? ({other}) : ({out}))"
        return out

    def inner(self, text):
        """The same with the parentheses or the negation around it."""
        m = re.match(r"\s*(!?)\s*\(", text)
        if m and closing(text, m.end() - 1) == len(text.rstrip()) - 1:
            return f"{m.group(1)}({self.parts(text[m.end():len(text.rstrip()) - 1])})"
        return self.compare(text)

    def parts(self, text):
        if len(split(text, ["?"])[0]) > 1 or len(split(text, [","])[0]) > 1:
            return text
        for operator, join, mutant in (("||", " || ", "&& !"), ("&&", " && ", "|| ")):
            parts, _ = split(text, [operator])
            if len(parts) == 1:
                continue
            how = "never" if operator == "||" else "always"
            out = []
            for part in parts:
                n = self.new(part, how)
                out.append(f"(({self.parts(part)}) {mutant}kk_mutant_at({n}))")
            return join.join(out)
        return self.inner(text)

    def condition(self, text):
        if any(len(split(text, [o])[0]) > 1 for o in ("||", "&&")):
            return self.parts(text)
        always, never = self.new(text, "always"), self.new(text, "never")
        return f"((({self.parts(text)}) || kk_mutant_at({always})) && !kk_mutant_at({never}))"


def mutate_clauses(name, text, mutants):
    """Conditions of `if`, and what functions of type bool return."""
    out, inside, is_bool, at = [], "?", False, 0
    pattern = re.compile(r"^(?=\w)(?:static |const )*(?P<type>\w+)[ *]+(?P<name>\w+)\("
                         r"|(?P<if>\bif \()|(?P<return>\breturn )"
                         r"|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"", re.M | re.S)
    while m := pattern.search(text, at):
        out.append(text[at:m.end()])
        at = m.end()
        clauses = Clauses(f"{name} {inside}", mutants)
        if m.group("name"):
            inside, is_bool = m.group("name"), m.group("type") == "bool"
        elif m.group("if"):
            end = closing(text, at - 1)
            out.append(clauses.condition(text[at:end]))
            at = end
        elif m.group("return") and is_bool:
            end = text.index(";", at)
            out.append(clauses.parts(text[at:end]))
            at = end
    return "".join(out) + text[at:]


def mutate_tables(name, text, kinds, mutants):
    """Groups of a kind, left out where the table is read."""
    if name == "gate.c":
        base = len(mutants.words)
        for kind, groups in kinds:
            for i in range(16):
                mutants.new(f"kind {kind}: group {groups[i] if i < len(groups) else '-'}")
        old = "for (size_t i = 0; i < g->kind->n_groups; i++) "
        assert old in text
        text = text.replace(old, old + f"if (kk_mutant_kind(g->kind->name) < 0 || !kk_mutant_at("
                            f"{base} + 16 * kk_mutant_kind(g->kind->name) + (int)i)) ")
    return text


def step(number, up):
    """The number with its last digit one more or one less."""
    digits = re.match(r"(\d+(?:\.\d+)?)(e-?\d+)?$", number)
    mantissa, exponent = digits.group(1), digits.group(2) or ""
    places = len(mantissa.split(".")[1]) if "." in mantissa else 0
    value = float(mantissa) + (1 if up else -1) * 10.0 ** -places
    return f"{value:.{places}f}{exponent}"


def mutate_limits(name, text, mutants):
    """A limit becomes a question with three answers."""
    def ask(limit, number):
        up = mutants.new(f"{limit} {number} up")
        down = mutants.new(f"{limit} {number} down")
        return (f"(kk_mutant_at({up}) ? {step(number, True)} : kk_mutant_at({down}) ? "
                f"{step(number, False)} : {number})")
    text = re.sub(r"#define (KK_GATE_\w+) ([\d.e-]+)$",
                  lambda m: f"#define {m.group(1)} {ask(m.group(1), m.group(2))}", text,
                  flags=re.M)
    added = []
    def from_enum(m):
        number = m.group(2).strip()
        if "<<" in number:
            a, b = (int(x) for x in number.split("<<"))
            number = str(a << b)
        added.append(f"#define {m.group(1)} {ask(m.group(1), number)}")
        return ""
    text = re.sub(r"(KK_GATE_\w+) = ([\d <]+),", from_enum, text)
    text = re.sub(r"enum \{(?:\s|/\*.*?\*/)*\};", lambda m: "\n".join(added), text, flags=re.S)
    return '#include "mutant.h"\n' + text


def read_kinds():
    """Every kind with the names of its groups, in the order of gate_kinds.h."""
    kinds = []
    for kind in re.findall(r"KIND\((\w+)\)", (RULES / "gate_kinds.h").read_text()):
        if kind == "KIND":
            continue
        text = (RULES / f"kind_{kind}.c").read_text()
        groups = re.search(r"groups\[\] = \{(.*?)\};", text, re.S).group(1)
        kinds.append((kind, re.findall(r"&(\w+)", groups)))
    return kinds


def write_sources(folder, clauses):
    mutants, kinds = Mutants(), read_kinds()
    sources = sorted(RULES.glob("gate*.c")) + sorted(RULES.glob("kind_*.c"))
    target = folder / "eval" / "reports"
    target.mkdir(parents=True)
    (folder / "mutant.h").write_text(HEAD)
    for path in RULES.glob("*.h"):
        text = path.read_text()
        if path.name in ("gate_rules.h", "gate.h"):
            text = mutate_limits(path.name, text, mutants)
        (target / path.name).write_text(text)
    for path in sources:
        text = path.read_text()
        if clauses and path.name != "gate_files.c":  # which has no rules
            text = mutate_clauses(path.name, text, mutants)
        known = functions(text) | {"kk_gate_say", "kk_gate_walk"}
        text = mutate_calls(path.name, text, known, mutants)
        text = mutate_tables(path.name, text, kinds, mutants)
        (target / path.name).write_text('#include "mutant.h"\n' + text)
    (folder / "mutant.c").write_text(BODY % {
        "n": len(mutants.words), "kinds": ", ".join(f'"{k[0]}"' for k in kinds)})
    return mutants.words, [target / p.name for p in sources] + [folder / "mutant.c"]


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")


def build(folder, sources, build_folder, jobs):
    cc = os.environ.get("CC", "cc")
    flags = ["-std=c11", "-O1", "-w", "-DKK_MUTANTS", f"-I{folder}", f"-I{ROOT / 'src'}",
             f"-I{ROOT}", f"-I{ROOT / 'include'}", f"-I{ROOT / 'tests'}",
             f"-DKK_TEST_DATA=\"{ROOT / 'tests' / 'data'}\"",
             f"-DKK_MODELS=\"{ROOT / 'models'}\""]
    def compile_one(path):
        out = folder / (path.stem + ".o")
        run([cc, *flags, "-c", path, "-o", out])
        return out
    tests = [ROOT / "tests" / "unit" / f"{t}.c" for t in TESTS]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        objects = list(pool.map(compile_one, sources + tests))
    own, mains = objects[:len(sources)], objects[len(sources):]
    programs = []
    for main in mains:
        program = folder / main.stem
        run([cc, main, *own, build_folder / "libkakeya_eval.a", build_folder / "libkakeya.a",
             "-o", program, "-lcmocka", "-ljansson", "-lpthread", "-lm", "-ldl"])
        programs.append(program)
    return programs


def passes(program, mutant, reached=None):
    env = dict(os.environ, KK_MUTANT=str(mutant))
    if reached:
        env["KK_MUTANTS_REACHED"] = str(reached)
    try:
        done = subprocess.run([program], env=env, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, timeout=60)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def reach(programs, folder):
    """Which mutants each program comes to."""
    found = {}
    for program in programs:
        listing = folder / (program.name + ".reached")
        if not passes(program, -1, listing):
            sys.exit(f"{program.name} fails without a mutant")
        found[program] = set(map(int, listing.read_text().split()))
    return found


def allowed():
    """Mutants that may survive: words, then a line that argues for it."""
    if not ALLOWED.exists():
        return set()
    lines = ALLOWED.read_text().splitlines()
    return {l for l in lines if l and not l.startswith((" ", "#"))}


def main():
    ask = argparse.ArgumentParser()
    ask.add_argument("build", type=pathlib.Path)
    ask.add_argument("--clauses", action="store_true", help="parts of conditions as well")
    ask.add_argument("--draw", type=int, default=0, help="so many of them; 0: all")
    ask.add_argument("--seed", type=int, default=1)
    ask.add_argument("--only", default="", help="those whose words hold this one")
    ask.add_argument("--these", type=pathlib.Path,
                     help="those that a file names, a line each, as an earlier run said them")
    ask.add_argument("--jobs", type=int, default=2)
    ask.add_argument("--list", action="store_true")
    args = ask.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="kakeya-mutants-"))
    try:
        words, sources = write_sources(folder, args.clauses)
        numbers = [i for i, w in enumerate(words) if not re.search(r" -( #\d+)?$", w)
                   and args.only in w]
        if args.these:
            named = {re.sub(r"^survives[^:]*: ", "", l) for l in args.these.read_text().split("\n")}
            numbers = [i for i in numbers if words[i] in named]
        if args.draw:
            numbers = [i for i in numbers if words[i] not in allowed()]
            numbers = random.Random(args.seed).sample(numbers, min(args.draw, len(numbers)))
        if args.list:
            print("\n".join(words[i] for i in numbers))
            return 0
        programs = build(folder, sources, args.build.resolve(), args.jobs)
        reached = reach(programs, folder)
        nowhere = {words[n] for n in numbers if not any(n in r for r in reached.values())}
        fine, looked_at, alive = allowed(), {words[n] for n in numbers}, set()
        def survives(n):
            return all(passes(p, n) for p in programs if n in reached[p])
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            for w, is_alive in zip((words[n] for n in numbers), pool.map(survives, numbers)):
                if not is_alive:
                    continue
                alive.add(w)
                if w not in fine:
                    print(f"survives{' (no test comes there)' if w in nowhere else ''}: {w}",
                          flush=True)
        for w in sorted((fine & looked_at) - alive):
            print(f"listed in {ALLOWED.name}, and found out: {w}")
        print(f"{len(numbers)} mutants, {len(alive)} survive, {len(alive & fine)} of them argued for")
        return 1 if alive - fine or (fine & looked_at) - alive else 0
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
