"""What page.sh looks at.

page_dom.py hostile REPORTS OUT          doctored copies of the reports of every kind
page_dom.py check DOM VERDICTS           the page as a browser drew it, against the JSON files
"""

import html.parser
import json
import os
import random
import re
import sys

EVIL = '</script><img src=x onerror="document.documentElement.dataset.foreign=1"><!--<b>'
VOID = {"meta", "br", "img", "link", "input", "hr"}

failures = 0


def check(holds, *words):
    global failures
    if not holds:
        failures += 1
        if failures <= 20:
            print("FAILED:", *words, file=sys.stderr)


# ---- hostile reports ---------------------------------------------------------------------------


def doctored(value, rng, depth=0):
    """Strings become markup; some values become another type."""
    if isinstance(value, str) and depth > 1:
        return EVIL
    if depth > 1 and rng.random() < 0.15:
        return rng.choice([None, [], {}, "12", EVIL, -1e308, 1e308, 0, True, [[[]]], {"a": {"b": []}}])
    if isinstance(value, dict):
        return {key: doctored(v, rng, depth + 1) for key, v in value.items()}
    if isinstance(value, list):
        return [doctored(v, rng, depth + 1) for v in value]
    return value


def hostile(reports, out):
    for name in sorted(n for n in os.listdir(reports) if n.endswith(".json")):
        with open(os.path.join(reports, name)) as f:
            report = json.load(f)
        for seed in range(3):
            with open(os.path.join(out, f"hostile-{seed}-{name}"), "w") as f:
                json.dump(doctored(report, random.Random(seed)), f)
    deep = [1]
    for _ in range(200):
        deep = [{"more": deep}]
    with open(os.path.join(out, "unknown.json"), "w") as f:
        json.dump({"schema": 1, "kind": "thing", "__proto__": {"x": EVIL}, "constructor": 1, "deep": deep,
                   "rows": [{"name": EVIL, "value": 0.125}], EVIL: EVIL}, f)
    # A line with more points than it can show.
    points = [{"step": i, "loss": i % 7} for i in range(20000)]
    with open(os.path.join(out, "long.json"), "w") as f:
        json.dump({"schema": 1, "kind": "projection", "curve": points}, f, separators=(",", ":"))


# ---- the document ------------------------------------------------------------------------------


class Element:
    def __init__(self, name, attributes, parent):
        self.name, self.attributes, self.parent, self.children = name, attributes, parent, []

    def get(self, key):
        return self.attributes.get(key)

    def classes(self):
        return (self.get("class") or "").split()

    def text(self):
        return "".join(c if isinstance(c, str) else c.text() for c in self.children)

    def all(self, name=None, cls=None):
        for c in self.children:
            if isinstance(c, str):
                continue
            if (name is None or c.name == name) and (cls is None or cls in c.classes()):
                yield c
            yield from c.all(name, cls)

    def one(self, **how):
        return next(self.all(**how), None)


class Tree(html.parser.HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.root = self.at = Element("document", {}, None)

    def handle_starttag(self, name, attributes):
        e = Element(name, {k: v or "" for k, v in attributes}, self.at)
        self.at.children.append(e)
        if name not in VOID:
            self.at = e

    def handle_startendtag(self, name, attributes):
        self.at.children.append(Element(name, dict(attributes), self.at))

    def handle_endtag(self, name):
        e = self.at
        while e and e.name != name:
            e = e.parent
        if e and e.parent:
            self.at = e.parent

    def handle_data(self, data):
        self.at.children.append(data)


def by_id(root, name):
    return next((e for e in root.all() if e.get("id") == name), None)


def rows_of(section, caption):
    """The rows of a table, each {column: cell} with the row's header under None."""
    for t in section.all("table"):
        c = t.one(name="caption")
        if not c or not c.text().startswith(caption):
            continue
        out = []
        for tr in t.one(name="tbody").all("tr"):
            row = {}
            for cell in tr.children:
                row.setdefault(None if cell.name == "th" else cell.get("data-column"), cell)
            out.append(row)
        return out
    check(False, "no table", caption)
    return []


def figure(x):
    """A number as the page shows it: four digits, thousands with commas."""
    x = float(f"{x:.4g}") if abs(x) < 1000 else round(x)
    return f"{x:,}" if abs(x) >= 1000 else f"{x:.4g}"


def same(cell, want, what):
    if cell is None:
        return check(False, what, "is not on the page")
    check(cell.get("data-value") is not None and float(cell.get("data-value")) == want, what, "is",
          cell.get("data-value"), "on the page and", want, "in the report")
    if 0.001 < abs(want) < 999:
        check(cell.text() == figure(want), what, "shows as", cell.text(), "not", figure(want))


# ---- figures of a few reports ------------------------------------------------------------------


def check_arms(section, report):
    rows = rows_of(section, "Arms by set")
    shown = {(r[None].text(), r["arm"].text()): r for r in rows}
    withheld = 0
    for s in report["sets"]:
        for name, arm in s["arms"].items():
            row = shown.get((s["set"], name), {})
            same(row.get("tok/s"), arm["tok_s"], f"tok/s of {s['set']} {name}")
            same(row.get("min"), arm["tok_s_spread"]["min"], f"min of {s['set']} {name}")
            if arm["speedup"] is not None:
                same(row.get("speed-up"), arm["speedup"], f"speed-up of {s['set']} {name}")
            elif name != "plain":
                withheld += 1
                check(row["speed-up"].text() == f"withheld: {arm['withheld']}", "withheld:", row["speed-up"].text())
                check(row["speed-up"].get("data-value") is None, "a withheld speed-up has a value")
    return withheld


def check_needle(section, report):
    rows = rows_of(section, "Codes found")
    check(len(rows) == len(report["rungs"]), "rungs:", len(rows))
    for row, rung in zip(rows, report["rungs"]):
        check(row[None].text() == rung["arm"], "arm", row[None].text())
        same(row.get("recall"), rung["recall"], "recall")
        kv = sum(n for k, n in rung["bytes"].items() if k.startswith("kv."))
        same(row.get("K/V and latents"), kv, "K/V bytes")
    if report.get("sums"):
        for row, total in zip(rows_of(section, "All texts together"), report["sums"]):
            same(row.get("mean KL, nats"), total["mean_kl"], "mean KL")


def check_rounds(section, report):
    arms = [(name, a) for name, a in report["arms"].items() if a.get("round_times")]
    if not arms:
        return 0
    for row, (name, arm) in zip(rows_of(section, "Round times"), arms):
        check(row[None].text() == name, "round times of", row[None].text())
        same(row.get("longest, ms"), arm["round_times"]["longest_ms"], f"longest round of {name}")
        if arm["round_times"]["steady"]["cv"] is not None:
            same(row.get("coefficient of variation"), arm["round_times"]["steady"]["cv"], f"cv of {name}")
    return 1


def check_sessions(section, report):
    rows = rows_of(section, "Tokens per second of all")
    for row, key in zip(rows, ("alone", "together")):
        same(row.get("tok/s"), report["sessions"][key]["tok_s"], f"tok/s {key}")


def check_compare(section, report):
    rows = rows_of(section, "Times the other, turn by turn")
    same(rows[0].get("median"), report["decode_ratio"]["median"], "decode ratio")


def check_memory(section, report):
    for row, growth in zip(rows_of(section, "Growth with context"), report["growth"]):
        same(row.get("bytes per token"), growth["bytes_per_token"], "growth")


def check_figures(section, report, seen):
    kind = report["kind"]
    if kind == "bench" and report.get("sets"):
        seen["withheld"] += check_arms(section, report)
        seen["arms"] += 1
    if kind == "bench":
        seen["rounds"] += check_rounds(section, report)
    if kind == "bench" and report.get("sessions"):
        check_sessions(section, report)
        seen["sessions"] += 1
    for name, fn in (("needle", check_needle), ("compare", check_compare), ("memory", check_memory)):
        if kind == name:
            fn(section, report)
            seen[name] += 1


# ---- the page ----------------------------------------------------------------------------------


def check_plots(section, name, kind):
    plots = list(section.all("svg", "plot"))
    if kind != "lossless":  # which is tables alone
        check(plots, name, "has no plot")
    for svg in plots:
        ticks = [t.text() for t in svg.all("text", "tick")]
        axes = [t.text() for t in svg.all("text", "axis")]
        check(len(ticks) >= 2 and all(ticks), name, "has a plot without tick labels")
        check(axes and all(axes), name, "has a plot whose axes have no names")
        check(svg.get("aria-label"), name, "has a plot without a name")


def check_marks(root):
    """Nothing of a report became markup, and every table can be read aloud."""
    for e in root.all():
        check(e.name not in ("img", "b", "iframe", "link", "object", "embed"), f"<{e.name}> is on the page")
        for key, value in e.attributes.items():
            check(not key.startswith("on"), "handler", key)
            check("[object" not in value, e.name, key, value)
            check(not re.search(r"NaN|undefined|Infinity", value), e.name, key, value)
            if key in ("href", "src"):
                check(value.startswith("#"), "a link out:", value)
        if e.name == "table":
            check(e.one(name="caption") is not None, "a table without a caption")
            check(all(th.get("scope") in ("row", "col") for th in e.all("th")), "a header without a scope")


def check_page(dom, verdicts):
    tree = Tree()
    with open(dom, encoding="utf-8") as f:
        tree.feed(f.read())
    with open(verdicts) as f:
        wanted = json.load(f)["reports"]
    root = tree.root
    top = root.one(name="html")
    errors = by_id(root, "errors")
    check(errors.get("data-count") is None, "errors:", errors.text())
    check(top.get("data-drawn") == str(len(wanted)), "drawn:", top.get("data-drawn"), "of", len(wanted))
    check(top.get("data-foreign") is None, "a script that is not the page's own ran")
    check(len(list(root.all("h1"))) == 1, "there is not one h1")
    rows = list(by_id(root, "index").one(name="tbody").all("tr"))
    check(len(rows) == len(wanted), "index rows:", len(rows))
    seen = dict.fromkeys(("arms", "withheld", "rounds", "sessions", "needle", "compare", "memory", "refused", "failed", "evil"), 0)
    for i, (want, row) in enumerate(zip(wanted, rows)):
        name = os.path.basename(want["file"])
        section = by_id(root, f"r{i}")
        if section is None:
            check(False, name, "has no section")
            continue
        heading = section.one(name="h2")
        check(heading.text().startswith(name), name, "has the heading", heading.text())
        check(row.one(name="a").get("href") == f"#r{i}" and row.one(name="a").text() == name, name, "in the index")
        verdict = next(row.all("td", want["verdict"]), None)
        check(section.get("data-verdict") == want["verdict"] and verdict is not None, name, "is", want["verdict"])
        codes = [f["code"] for f in want["findings"]]
        seen["refused"] += bool(codes)
        if codes:
            check(codes[0] in verdict.text() and codes[0] in section.one(cls="findings").text(), name,
                  "does not name", codes[0])
        seen["failed"] += bool(list(row.all("td", "failed")))
        if want["verdict"] == "holds":
            with open(want["file"]) as f:
                report = json.load(f)
            check_plots(section, name, report["kind"])
            check_figures(section, report, seen)
        if name.startswith("hostile"):
            seen["evil"] += EVIL in section.text()
    # What was to be looked at was there to be looked at.
    for what, n in seen.items():
        check(n > 0, "no report with", what)
    check(seen["evil"] >= 27, "hostile strings are shown in", seen["evil"], "sections")
    unknown = next(s for s in root.all("section") if s.get("data-kind") == "thing" or
                   (s.one(name="h2") and s.one(name="h2").text() == "unknown.json"))
    check(any(c.get("data-value") == "0.125" for c in unknown.all("td")), "a kind that is not known has no figures")
    check("[object" not in by_id(root, "page").text(), "an object is shown as a text")
    check_marks(root)


if sys.argv[1] == "hostile":
    hostile(*sys.argv[2:])
else:
    check_page(*sys.argv[2:])
sys.exit(failures > 0)
