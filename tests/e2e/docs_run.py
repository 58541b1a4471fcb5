"""docs_run.py api|tour|python KAKEYA DOCUMENT [--update] - the examples of a document are run.

tour: every `console` block is a piece of one shell session.  What stands behind `$ ` is run, lines
that begin with `> ` belong to it, and what follows is what it prints, to the byte; a line `...` stands
for any lines.  With --update the document gets what was printed instead.

api: every `sh` block is run, in one shell, against a server; it must succeed, and where a `json` block
follows, the answer must have its members, with values of the same type; of a `text` block of events,
the first and the last.

python: every `python` block is run against a server, and must succeed.
"""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile

from serving import LIMIT, Server

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def shell(script, folder, env):
    """What a script says, and whether it succeeds."""
    return subprocess.run(["bash"], input=script, text=True, cwd=folder, env=env, timeout=LIMIT,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def environment(kakeya, folder):
    """curl fails where the server refuses, and `build/kakeya` is the program."""
    os.makedirs(os.path.join(folder, "build"), exist_ok=True)
    os.symlink(os.path.abspath(kakeya), os.path.join(folder, "build", "kakeya"))
    with open(os.path.join(folder, ".curlrc"), "w", encoding="ascii") as f:
        f.write("silent\nshow-error\nfail\n")
    return dict(os.environ, CURL_HOME=folder, HOME=folder, TERM="dumb")


# ---- the tour -------------------------------------------------------------------------------


def commands(block):
    """Pairs of a command and the lines that are shown behind it."""
    found = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append(([line[2:]], []))
        elif line.startswith("> ") and not found[-1][1]:
            found[-1][0].append(line[2:])
        else:
            found[-1][1].append(line)
    return [("\n".join(c), shown) for c, shown in found]


def matches(shown, printed):
    pattern = "\n".join(".*" if line == "..." else re.escape(line) for line in shown)
    return re.fullmatch(pattern, "\n".join(printed), re.S) is not None


def run_tour(kakeya, text, update):
    port = free_port()
    blocks = [commands(b) for lang, b in FENCE.findall(text) if lang == "console"]
    with tempfile.TemporaryDirectory() as folder:
        script = "set -m\ntrap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\n"
        for i, (command, _) in enumerate(c for b in blocks for c in b):
            # The last file descriptor of a background job is not the marker's.
            script += f"echo '@@{i}'\n{command.replace('8123', str(port))}\n"
            script += f"status=$?; [ $status -eq 0 ] || echo \"exit $status\"\n"
        got = shell(script, folder, environment(kakeya, folder))
    parts = re.split(r"^@@\d+\n", got.stdout.replace(str(port), "8123"), flags=re.M)[1:]
    parts = [p.rstrip("\n").split("\n") if p.strip("\n") else [] for p in parts]
    wrong = 0
    flat = [c for b in blocks for c in b]
    assert len(parts) == len(flat), got.stdout
    for (command, shown), printed in zip(flat, parts):
        if not matches(shown, printed):
            wrong += 1
            print(f"$ {command}\nshown:   {shown}\nprinted: {printed}")
    return wrong if not update else rewrite(text, flat, parts)


def rewrite(text, flat, parts):
    answers = iter(zip(flat, parts))

    def filled(match):
        if match.group(1) != "console":
            return match.group(0)
        lines = []
        for _ in commands(match.group(2)):
            (command, shown), printed = next(answers)
            first, *rest = command.split("\n")
            lines += ["$ " + first] + ["> " + line for line in rest]
            lines += shown if matches(shown, printed) else printed
        return "```console\n" + "\n".join(lines) + "\n```"

    return FENCE.sub(filled, text)


# ---- the reference --------------------------------------------------------------------------


def lacks(shown, got, where=""):
    """Where an answer has not what is shown of it; None: nowhere."""
    if isinstance(shown, dict) and isinstance(got, dict):
        for name, value in shown.items():
            if name not in got:
                return f"{where}.{name}"
            found = lacks(value, got[name], f"{where}.{name}")
            if found:
                return found
        return None
    if isinstance(shown, list) and isinstance(got, list):
        if shown and not got:
            return where + "[0]"
        return lacks(shown[0], got[0], where + "[0]") if shown else None
    number = (int, float)
    same = isinstance(shown, number) and isinstance(got, number) or type(shown) is type(got)
    return None if same else where


def check_answer(kind, shown, got):
    if kind == "json":
        return lacks(json.loads(shown), json.loads(got))
    shown, got = [[line for line in t.splitlines() if line.startswith("data: ")] for t in (shown, got)]
    if shown[-1] != got[-1]:
        return got[-1]
    return lacks(json.loads(shown[0][6:]), json.loads(got[0][6:]))


def run_api(kakeya, text, _):
    blocks = FENCE.findall(text)
    wrong = tried = 0
    with tempfile.TemporaryDirectory() as folder, Server(kakeya, "--state", folder + "/state") as s:
        script, wanted = "set -eo pipefail\n", []
        for i, (lang, block) in enumerate(blocks):
            if lang != "sh":
                continue
            script += f"printf '\\n@@{len(wanted)}\\n'\n{block}"
            after = blocks[i + 1] if i + 1 < len(blocks) else ("", "")
            wanted.append((block, *after))
        got = shell(script.replace("localhost:8080", f"localhost:{s.port}"), folder,
                    environment(kakeya, folder))
    parts = re.split(r"^@@\d+\n", got.stdout, flags=re.M)[1:]
    if got.returncode != 0 or len(parts) != len(wanted):
        print(f"an example fails, the last of: {got.stdout}")
        return 1
    for (block, kind, shown), said in zip(wanted, parts):
        if kind not in ("json", "text"):
            continue
        tried += 1
        missing = check_answer(kind, shown, said)
        if missing is not None:
            wrong += 1
            print(f"{block}has not {missing}: {said}")
    assert tried >= 8, tried
    return wrong


def run_python(kakeya, text, _):
    blocks = [b for lang, b in FENCE.findall(text) if lang == "python" and "langchain" not in b]
    assert blocks
    with Server(kakeya) as s:
        for block in blocks:
            code = block.replace("localhost:8080", f"127.0.0.1:{s.port}")
            got = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True,
                                 timeout=LIMIT, check=False)
            if got.returncode != 0 or not got.stdout.strip():
                print(block, got.stdout, got.stderr)
                return 1
    return 0


def main():
    kind, kakeya, document = sys.argv[1:4]
    update = "--update" in sys.argv
    with open(document, encoding="utf-8") as f:
        text = f.read()
    result = {"api": run_api, "tour": run_tour, "python": run_python}[kind](kakeya, text, update)
    if update:
        with open(document, "w", encoding="utf-8") as f:
            f.write(result)
        result = 0
    return result > 0


sys.exit(main())
