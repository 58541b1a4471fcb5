"""page_width.py BROWSER PAGE WIDTH - nothing of a page reaches beyond a screen of that width, closed and
with every part opened: wide tables scroll by themselves."""
import sys

from playwright.sync_api import sync_playwright

BEYOND = """width => {
    const scrolls = e => e && (['auto', 'scroll', 'hidden'].includes(getComputedStyle(e).overflowX)
                               || scrolls(e.parentElement));
    return [...document.querySelectorAll('body *')].filter(e => {
        const r = e.getBoundingClientRect();
        return r.width > 0 && r.right > width + 0.5 && !scrolls(e.parentElement);
    }).slice(0, 5).map(e => `${e.tagName} ${e.className} to ${e.getBoundingClientRect().right}`);
}"""


def main():
    browser, page, width = sys.argv[1], sys.argv[2], int(sys.argv[3])
    wrong = []
    with sync_playwright() as p:
        program = p.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        view = program.new_page(viewport={"width": width, "height": 800})
        view.on("pageerror", lambda e: wrong.append(str(e)))
        view.goto(f"file://{page}")
        view.wait_for_selector("svg")
        for state in ("closed", "opened"):
            drawn = view.evaluate("document.documentElement.scrollWidth")
            if drawn > width:
                wrong.append(f"{state}: {drawn} pixels wide")
            wrong += [f"{state}: {e}" for e in view.evaluate(BEYOND, width)]
            view.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        program.close()
    print("\n".join(wrong))
    return 1 if wrong else 0


sys.exit(main())
