#!/usr/bin/env python3
"""Signals at random moments in everything that writes a file.

usage: signals.py --kakeya build/kakeya [--count 1000] [--seed 1] [--only save,page]

Sends --count of each of INT, TERM and KILL to runs on the shipped model that quantize, save a
session, go on with one, train, write a report or write a page, in turns.  A run begins with no file
of its name, with one that it may replace (--force), or with one that it may not.  Afterwards

  - what is there is what was there, or the whole of what was to be written: no half file;
  - INT and TERM leave no temporary file at once, and KILL none after the next run;
  - what lies beside it is as it was, and so is a file that may not be replaced, and what was read.

The same seed draws the same moments, as parts of the time that a run takes here and now.  Moments
at the end, where the file gets its name, are drawn as often as all others.
"""
import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]
TEMP = ".kakeya-tmp"


def read(path):
    try:
        with open(path, "rb") as f:
            return f.read()
    except FileNotFoundError:
        return None


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)


class Task:
    """One command.  files: what it makes, in the order in which they get their names."""

    def __init__(self, name, work, files, command, model=(), resumes=False):
        self.name, self.folder, self.model, self.resumes = name, os.path.join(work, name), model, resumes
        self.files = [os.path.join(self.folder, f) for f in files]
        self.command = command  # of a seed, as a list, without --force
        os.mkdir(self.folder)
        self.bystander = self.files[0] + ".tmp"

    def clear(self):
        shutil.rmtree(self.folder)
        os.makedirs(os.path.dirname(self.files[0]))
        write(self.bystander, b"somebody else's")

    def put(self, contents):
        self.clear()
        for path, data in zip(self.files, contents):
            write(path, data)

    def force(self):
        return [] if self.resumes else ["--force"]

    def contents(self):
        return [read(path) for path in self.files]

    def extra(self):
        """Names beside the files and the bystander."""
        known = {os.path.basename(p) for p in self.files + [self.bystander]}
        return sorted(set(os.listdir(os.path.dirname(self.files[0]))) - known)

    def same(self, index, is_, was):
        """Whether a file is the one expected; reports have a date and times in them."""
        if is_ is None or was is None or not self.files[index].endswith("report.json"):
            return is_ == was
        try:
            typed = [json.loads(r)["command"].replace(" --force", "") for r in (is_, was)]
        except (ValueError, KeyError):
            return False
        return typed[0] == typed[1]


def tasks(work, models):
    verifier = os.path.join(models, "verifier")
    texts = os.path.join(work, "texts")
    os.mkdir(texts)
    for i in range(30):  # one of ten is held out, by what it says
        with open(os.path.join(texts, f"text{i}.py"), "w") as f:
            f.write(f"def number_{i}():\n    return 'The number {i}, and {i * i} more words.'\n")
    model, page = ["-m", verifier, "-t", "1", "-q"], os.path.join(work, "page-reports")
    shutil.copytree(os.path.join(models, "projection"), page)

    def at(name, file):
        return os.path.join(work, name, file)

    types, prompts = ["q8_0", "q4_0"], ["def add(a, b):" * 8, "import sys\n" * 12]
    return [
        Task("quantize", work, ["out.gguf"], lambda s: [
            "quantize", verifier, at("quantize", "out.gguf"), "--type", types[s], "-q"]),
        Task("save", work, ["out.kks"], lambda s: [
            "session", "save", at("save", "out.kks"), *model, "-p", prompts[s]], model),
        Task("load", work, ["out.kks"], lambda s: [
            "session", "load", at("load", "out.kks"), *model, "-p", prompts[s], "-n", "4"] if s else [
            "session", "save", at("load", "out.kks"), *model, "-p", prompts[s]], model, resumes=True),
        Task("train", work, ["p/projection.safetensors", "p/report.json", "p/projection.json"], lambda s: [
            "train", "projection", *model, "-md", "none", "--taps", "4", "--layers", "full", "--rank", str(8 + s),
            "--needles", "0", "--window", "4", "--data", texts,
            "--out", at("train", "p"), "--report", at("train", "p/report.json")]),
        Task("report", work, ["report.json"], lambda s: [
            "eval", "needle", *model, "--ladder", "10", "--samples", "1", "-n", str(2 + s),
            "--report", at("report", "report.json")]),
        Task("page", work, ["page.html"], lambda s: [
            "report", "html", page, *([page] * s), "-o", at("page", "page.html")]),
    ]


class Run:
    def __init__(self, kakeya, seed):
        self.kakeya, self.random, self.failures = kakeya, random.Random(seed), 0
        self.environment = dict(os.environ, LC_ALL="C.UTF-8")

    def fail(self, task, what):
        self.failures += 1
        if self.failures <= 20:
            print(f"FAILED: {task.name}: {what}", flush=True)

    def start(self, arguments):
        return subprocess.Popen([self.kakeya, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, env=self.environment)

    def whole(self, task, arguments):
        """Runs to the end, and returns the seconds it took."""
        begin = time.monotonic()
        process = self.start(arguments)
        err = process.communicate()[1].decode(errors="replace")
        if process.returncode != 0:
            self.fail(task, f"an undisturbed run: exit {process.returncode}: {err}")
        return time.monotonic() - begin

    def prepare(self, task):
        """What the files hold before and after, and the time that takes."""
        task.clear()
        self.whole(task, task.command(0))
        task.old = task.contents()
        took = []
        for _ in range(3):
            task.put(task.old)
            took.append(self.whole(task, task.command(1) + task.force()))
        task.new, task.seconds = task.contents(), sorted(took)[1]
        if None in task.old + task.new or task.extra():
            sys.exit(f"{task.name}: does not write what is looked for: {task.extra()}")

    def moment(self, task):
        """Late ones are those at which the file gets its name."""
        if self.random.random() < 0.5:
            return self.random.uniform(0, 1.05) * task.seconds
        return self.random.uniform(0.8, 1.05) * task.seconds

    def judge(self, task, before):
        """old, new, none, between (several files, of which some have got their names) or half."""
        now = task.contents()
        if all(a == b for a, b in zip(now, before)):
            return "none" if now[0] is None else "old"
        fresh = [task.same(i, now[i], task.new[i]) for i in range(len(now))]
        if all(fresh):
            return "new"
        if task.name in ("save", "load"):  # INT ends the text and saves what there is
            return "new" if self.opens(task) else "half"
        for n in range(1, len(now)):
            if all(fresh[:n]) and all(a == b for a, b in zip(now[n:], before[n:])):
                return "between"
        return "half"

    def opens(self, task):
        """Whether a session can be read, all of it: its parts have checksums."""
        process = self.start(["session", "load", task.files[0], *task.model, "-n", "1", "--keep"])
        process.communicate()
        return process.returncode == 0

    def one(self, task, number):
        """Returns what came of it."""
        begins = "replace" if task.resumes else self.random.choice(["new", "new", "replace", "replace", "refused"])
        before = [None] * len(task.files) if begins == "new" else task.old
        if begins == "new":
            task.clear()
        else:
            task.put(task.old)
        process = self.start(task.command(1) + (task.force() if begins == "replace" else []))
        delay = self.moment(task)
        deadline = time.monotonic() + delay
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(left)
        # The machine has other work too: keeps to where the end is found.
        task.seconds *= 1.02 if process.poll() is None else 0.95
        process.send_signal(number)
        err = process.communicate()[1].decode(errors="replace")
        code, what = process.returncode, f"{signal.Signals(number).name} after {delay:.4f} s, {begins}: "
        if code not in (0, -number, 128 + number) and not (begins == "refused" and code == 1):
            self.fail(task, what + f"exit {code}: {err}")
        state = self.judge(task, before)
        if state == "half" or (state == "between" and number != signal.SIGKILL):
            self.fail(task, what + f"exit {code}, left {state}: {[d and len(d) for d in task.contents()]}")
        if begins == "refused" and state != "old":
            self.fail(task, what + "overwritten without --force")
        if code == 0 and state != "new":
            self.fail(task, what + f"exit 0, and what is there is {state}")
        if read(task.bystander) != b"somebody else's":
            self.fail(task, what + "a file beside it changed")
        return self.leftovers(task, number, what, state)

    def leftovers(self, task, number, what, state):
        extra = task.extra()
        if extra and (number != signal.SIGKILL or any(not e.endswith(TEMP) for e in extra)):
            self.fail(task, what + f"left {extra}")
        if extra or self.random.random() < 0.02:
            if task.resumes and state != "old" and state != "new":
                self.fail(task, what + "the session is gone")
            self.whole(task, task.command(1) + task.force())
            if task.extra():
                self.fail(task, what + f"left {task.extra()} after the next run")
            if not task.resumes and self.judge(task, [None] * len(task.files)) != "new":
                self.fail(task, what + "the next run did not write it")
        return state + ("+temporary" if extra else "")


def digest(folder):
    h = hashlib.sha256()
    for root, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            h.update(name.encode() + read(os.path.join(root, name)))
    return h.hexdigest()


def main():
    flags = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    flags.add_argument("--kakeya", required=True)
    flags.add_argument("--count", type=int, default=1000, help="signals of each kind (1000)")
    flags.add_argument("--seed", type=int, default=1)
    flags.add_argument("--only", help="names of tasks, with commas between")
    a = flags.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell may have told us to ignore it
    kakeya = os.path.abspath(a.kakeya)
    models = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../models/tiny")
    begin, inputs = time.monotonic(), digest(models)
    run, came = Run(kakeya, a.seed), {}
    with tempfile.TemporaryDirectory(prefix="kakeya-signals-") as work:
        run.environment["XDG_STATE_HOME"] = os.path.join(work, "state")
        every = tasks(work, models)
        if not os.path.exists(os.path.join(os.path.dirname(kakeya), "libkakeya_train.so")):
            every = [t for t in every if t.name != "train"]  # built without OpenBLAS
        every = [t for t in every if not a.only or t.name in a.only.split(",")]
        for task in every:
            run.prepare(task)
        for i in range(a.count):
            for number in SIGNALS:
                task = every[i % len(every)]
                key = (task.name, signal.Signals(number).name)
                outcome = run.one(task, number)
                came.setdefault(key, {}).setdefault(outcome, 0)
                came[key][outcome] += 1
    if digest(models) != inputs:
        run.failures += 1
        print("FAILED: what was read changed")
    for (name, number), outcomes in sorted(came.items()):
        print(f"{name:9s} {number:8s} {sum(outcomes.values()):5d} runs: "
              + ", ".join(f"{outcomes[o]} {o}" for o in sorted(outcomes)))
    total = sum(sum(o.values()) for o in came.values())
    print(f"{total} signals in {time.monotonic() - begin:.0f} s, seed {a.seed}: {run.failures} failures")
    sys.exit(run.failures > 0)


if __name__ == "__main__":
    main()
