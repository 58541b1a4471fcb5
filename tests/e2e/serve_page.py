"""serve_page.py KAKEYA FOLDER BROWSER [PICTURES] - the page of `kakeya serve`, in a browser.

One browser serves all tests.  With PICTURES, a folder, it writes the screenshots of the documents
there and does nothing else."""

import base64
import json
import os
import sys
import time

from playwright.sync_api import sync_playwright

from serving import Server, run_tests

KAKEYA, FOLDER, BROWSER = sys.argv[1:4]
PICTURES = sys.argv[4] if len(sys.argv) > 4 else None
CODE = 'import argparse\nimport sys\n\n\ndef main():\n    parser = argparse.ArgumentParser(' \
       'description="Count the words of a file")\n'
EVIL = """<script>window.hacked = 1</script><img src=x onerror="window.hacked = 2">
# Title <svg onload="window.hacked = 3">

[click](javascript:window.hacked=4) and [tab](data:text/html,<script>hacked=5</script>) and
[good](https://example.org/a?b=1) **bold <b onclick="hacked=6">x</b>** `</code><script>hacked=7`

```html
</code></pre><script>window.hacked = 8</script>
```

| a | <iframe srcdoc="<script>parent.hacked=9</script>"> |
|---|---|
| 1 | <style>*{display:none}</style> |

- item <a href="javascript:hacked=10">y</a>
"""


class Page:
    """A page of a server, with what it complained of."""

    def __init__(self, browser, server, path="/", **options):
        options.setdefault("viewport", {"width": 1280, "height": 800})
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.base = f"http://127.0.0.1:{server.port}"
        self.complaints, self.expected = [], ()
        self.page.on("console", lambda m: m.type == "error" and self.complaints.append(m.text))
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.on("request", self._on_request)
        self.page.on("dialog", lambda d: (self.complaints.append("a dialog"), d.dismiss()))
        self.page.goto(self.base + path)

    def _on_request(self, request):
        if not request.url.startswith((self.base, "data:")):
            self.complaints.append(f"asked {request.url}")

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        complaints = [c for c in self.complaints if not any(e in c for e in self.expected)]
        self.context.close()
        if exc[0] is None:
            assert not complaints, complaints

    def js(self, code):
        return self.page.evaluate(code)

    def wait(self, code, seconds=30):
        """The page's policy forbids Playwright's own way, which evaluates strings in the page."""
        end = time.monotonic() + seconds
        while not self.js(code):
            assert time.monotonic() < end, f"it does not become true: {code}"
            time.sleep(0.03)

    def ready(self):
        self.wait("document.body.dataset.ready === '1'")
        return self

    def set(self, **values):
        for name, value in values.items():
            self.js(f"field({json.dumps(name)}).value = {json.dumps(str(value))}")
        self.js("saveSettings()")

    def say(self, text, done=True):
        self.page.fill("#prompt", text)
        before = self.js("shown.length")
        self.page.press("#prompt", "Enter")
        self.wait(f"shown.length > {before}")
        if done:
            self.wait("!running && shown[shown.length - 1].end != null")

    def answer(self):
        return self.js("shown[shown.length - 1].answer.text()")


def stream_of(events):
    """The bytes of a stream with these events."""
    done = {"done": {"stop_reason": "eos", "generated_tokens": len(events), "rounds": 1,
                     "decode_seconds": 1, "drafted_tokens": 0, "accepted_tokens": 0}}
    return "".join(f"data: {json.dumps(e)}\n\n" for e in [*events, done]) + "data: [DONE]\n\n"


def answer_with(view, events):
    """The next generation says this instead of the model."""
    view.page.route("**/generate", lambda route: route.fulfill(
        status=200, content_type="text/event-stream", body=stream_of(events)), times=1)


def pieces(text, n=7, **more):
    return [{"token": i, "text": text[i:i + n], "round": i, "kind": "text", **more}
            for i in range(0, len(text), n)]


def generate_more(view, **members):
    """Adds members to what the page asks for."""
    def change(route):
        body = {**json.loads(route.request.post_data), **members}
        route.continue_(post_data=json.dumps(body))
    view.page.route("**/generate", change)


def judge_time(holds, words):
    """Times mean something where the two are not held up by others."""
    if not holds and os.getloadavg()[0] > 1 + os.cpu_count():
        print(f"not judged, the machine is busy: {words}")
        return
    assert holds, words


def longest_task(trace):
    """Milliseconds of processor time of the longest task of a page's main thread."""
    events = json.loads(trace)["traceEvents"]
    main = {(e["pid"], e["tid"]) for e in events
            if e["name"] == "thread_name" and e["args"]["name"] == "CrRendererMain"}
    return max(e.get("tdur", 0) for e in events
               if e["name"].endswith("RunTask") and (e["pid"], e["tid"]) in main) / 1000


# ---- what a user does ----


def test_size_policy_and_first_paint():
    status, headers, body = SERVER.ask("GET", "/")
    headers = {name.lower(): value for name, value in dict(headers).items()}
    assert status == 200 and headers["content-type"].startswith("text/html"), headers
    assert len(body) < 150_000, len(body)
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in policy and "*" not in policy, policy
    paints = []
    with Page(BROWSER_OBJECT, SERVER) as v:
        while len(paints) < 10 and (len(paints) < 3 or min(paints) >= 100):
            v.page.reload()
            v.ready().wait("performance.getEntriesByName('first-paint').length > 0")
            paints.append(v.js("performance.getEntriesByName('first-paint')[0].startTime"))
    print(f"page: {len(body)} bytes, first paint after {min(paints):.0f} ms")
    judge_time(min(paints) < 100, f"first paint: {paints}")


def test_chat_edit_regenerate_fork_resume_delete():
    with Page(BROWSER_OBJECT, SERVER) as v:
        v.ready().set(temperature=0, max_tokens=24, mode="chat", system="You are short.")
        v.say("Hello, who are you?")
        assert v.answer(), "no answer"
        first = v.js("current.id")
        v.say("And what is a boat?")
        note = v.js("shown[3].note.textContent")
        cached = int(note.split(" of ")[0].replace(",", ""))
        assert cached > 10 and "came from the cache" in note, note
        # An edited message is a fork before it: the first exchange stays, and is not evaluated.
        v.page.locator(".message.user").nth(1).get_by_label("Edit this message").click()
        v.page.get_by_label("The edited message").fill("And what is a ship?")
        v.page.get_by_role("button", name="Send").first.click()
        v.wait(f"current && current.id !== {json.dumps(first)} && !running && shown[4]?.end > 0")
        second = v.js("current.id")
        assert v.js("shown.map(m => m.role)") == ["system", "user", "assistant", "user", "assistant"]
        assert v.js("shown[3].text") == "And what is a ship?"
        ids_first = SERVER.get(f"/v1/sessions/{first}/tokens")["tokens"]
        ids_second = SERVER.get(f"/v1/sessions/{second}/tokens")["tokens"]
        start = v.js("shown[3].start")
        assert ids_first[:start] == ids_second[:start] and ids_first != ids_second
        # The same answer again, since nothing is drawn; a session of its own.
        was = v.answer()
        v.page.locator(".message.assistant").nth(1).get_by_label("Answer again").click()
        v.wait(f"current && current.id !== {json.dumps(second)} && !running && shown[4]?.end > 0")
        assert v.answer() == was, (was, v.answer())
        # A fork after the first answer has that much of the history.
        end = v.js("shown[2].end")
        v.page.locator(".message.assistant").nth(0).get_by_label("Fork the session").click()
        v.wait(f"shown.length === 3 && current.history_length === {end}")
        fork = v.js("current.id")
        # It is still there after the page was loaded again, and goes on.
        v.page.reload()
        v.ready().wait("shown.length === 3")
        assert v.js("current.id") == fork
        v.say("Go on.")
        count = v.js("sessionList.length")
        row = v.page.locator(f"[data-id='{fork}']")
        row.hover()
        row.get_by_label("Delete").click()
        row.get_by_label("Really delete").click()
        v.wait(f"sessionList.length === {count - 1} && current === null")
        assert SERVER.ask("GET", f"/v1/sessions/{fork}")[0] == 404


def test_stop_and_drafting():
    with Page(BROWSER_OBJECT, SERVER) as v:
        v.ready().set(temperature=0, max_tokens="", mode="text")
        generate_more(v, ignore_eos=True)
        v.say(CODE, done=False)
        v.wait("meters.tokens > 150")
        v.page.keyboard.press("Escape")
        v.wait("!running && shown[1]?.end > 0")
        assert "stopped" in v.js("shown[1].note.textContent")
        said = v.js("shown[1].answer.tokens.length")
        assert 150 < said < 12000, said
        held = SERVER.get(f"/v1/sessions/{v.js('current.id')}")
        assert held["history_length"] >= said and not held["busy"], held
        # Shaded text is exactly the text of drafted tokens, and those were really drafted.
        drafted = v.js("shown[1].answer.tokens.filter(t => t.drafted).map(t => t.text).join('')")
        shaded = v.js("shown[1].answer.parts[0].ranges.map(({range: r}) => shading.has(r) ? "
                      "r.startContainer.data.slice(r.startOffset, r.endOffset) : '?').join('')")
        assert drafted and shaded == drafted, (shaded[:200], drafted[:200])
        v.page.get_by_role("button", name="Drafting").click()
        assert v.page.locator(".tokens mark").count() == v.js(
            "shown[1].answer.tokens.filter(t => t.drafted).length")
        assert v.page.locator(".tokens del").count() > 0
        assert v.js("document.querySelector('#rounds').getAttribute('aria-label')").startswith(
            "Rounds: ")
        v.wait("document.querySelector('#m-kv').textContent !== '0 B'")


def test_cache_of_a_session():
    with Page(BROWSER_OBJECT, SERVER) as v:
        v.ready().set(temperature=0, max_tokens=4, mode="text", kv_format="q4", kv_full="window",
                      window=64)
        assert "% saved" in v.js("$('saving').textContent"), v.js("$('saving').textContent")
        v.say(CODE * 12)
        info = SERVER.get(f"/v1/sessions/{v.js('current.id')}")
        assert info["kv"]["format"] == "q4" and info["kv"]["full"] == "window", info
        assert "less than all rows in bf16" in v.js("$('m-session').textContent")
        v.js("localStorage.clear()")


# ---- what an answer cannot do ----

HARMLESS = """[window.hacked ?? null,
    document.querySelectorAll('#messages :is(script,img,svg[onload],iframe,style,object,b[onclick])')
        .length,
    [...document.querySelectorAll('#messages a')].filter(a => !/^(https?|mailto):/.test(a.href))
        .length,
    getComputedStyle(document.body).display]"""


def test_hostile_answer():
    with Page(BROWSER_OBJECT, SERVER) as v:
        v.ready().set(mode="chat", max_tokens=8, system=EVIL)
        answer_with(v, [*pieces("Thinking " + EVIL, kind="thought"), *pieces(EVIL, drafted=True),
                        {"token": 1, "text": EVIL, "kind": "call", "name": EVIL,
                         "arguments": json.dumps({"x": EVIL})}])
        v.say(EVIL, done=False)
        v.wait("!running")
        time.sleep(0.2)
        assert v.js(HARMLESS) == [None, 0, 0, "block"] or v.js(HARMLESS)[:3] == [None, 0, 0]
        text = v.js("shown[shown.length - 1].node.textContent")
        for part in ("window.hacked = 1", "onerror=", "window.hacked = 8", "javascript:window"):
            assert part in text, part
        assert v.page.locator("#messages a[href='https://example.org/a?b=1']").count() > 0
        v.set(system="")
    # The same from the server's own history, and as the name of a session.
    made = SERVER.post("/v1/sessions", {"label": "<img src=x onerror=hacked=1>"})
    SERVER.post(f"/v1/sessions/{made['id']}/append", {"add_generation_prompt": False, "messages": [
        {"role": "user", "content": EVIL}, {"role": "assistant", "content": EVIL}]})
    with Page(BROWSER_OBJECT, SERVER, f"/#{made['id']}") as v:
        v.ready().wait("shown.length === 2")
        assert v.js(HARMLESS)[:3] == [None, 0, 0]
        assert v.js("$('title').textContent") == "<img src=x onerror=hacked=1>"
        # The policy holds where the page itself would fail.
        v.expected = ("TrustedHTML", "Content Security Policy", "TrustedScript")
        assert v.js("(() => { try { $('title').innerHTML = '<b>x</b>'; return 'made'; }"
                    " catch (e) { return 'refused'; } })()") == "refused"
    with Page(BROWSER_OBJECT, SERVER) as v:
        v.ready()
        shown = v.js("""(() => { const m = new MarkdownView(); let out = [];
            const source = %s;
            for (const c of source) { m.append(c); m.render(); }
            const whole = new MarkdownView(); whole.append(source); whole.render();
            return [m.root.outerHTML === whole.root.outerHTML,
                    m.pieces.every(p => p.node.data === source.substr(p.at, p.length))]; })()"""
                     % json.dumps(EVIL + "\n1. a\n2. b\n   - c\n\n> q *e* __b__ ~~s~~ a_b_c\n\n---\n"
                                  "## H `c`\n\n~~~py\nx = 1\n\ny\n~~~\nend **open"))
        assert shown == [True, True], "what is shown depends on how the answer was cut"


def test_thoughts_and_tools():
    with Page(BROWSER_OBJECT, SERVER) as v:
        v.ready().set(mode="chat", max_tokens=8, tools=json.dumps([{"type": "function", "function": {
            "name": "weather", "parameters": {"type": "object", "properties": {}}}}]))
        answer_with(v, [*pieces("I think of it.", kind="thought"), *pieces("Let me look."),
                        {"token": 9, "text": "", "kind": "call", "name": "weather",
                         "arguments": '{"city": "Oslo"}'}])
        v.say("What is the weather in Oslo?", done=False)
        v.wait("!running && document.querySelector('.result')")
        folds = v.page.locator(".message.assistant details")
        assert folds.count() == 2 and v.js(
            "[...document.querySelectorAll('.message.assistant details')].every(d => !d.open)")
        assert v.js("shown[1].answer.text()") == "Let me look."
        answer_with(v, pieces("It rains."))
        v.page.get_by_label("Result of weather").fill("rain")
        v.page.get_by_role("button", name="Give this result").click()
        v.wait("!running && shown[1].answer.text().includes('It rains.')")
        tokens = SERVER.get(f"/v1/sessions/{v.js('current.id')}/tokens")["tokens"]
        text = SERVER.post("/detokenize", {"tokens": tokens})["content"]
        assert 'response:weather{value:<|"|>rain<|"|>}<tool_response|>' in text, text
        v.set(tools="")


# A stream at some 3,000 tokens a second, in the place of the server's: what is asked here is whether
# the page keeps up, and the engine would take its processor away.
FLOOD = """(() => {
    const words = ['one ', 'of ', '*many* ', 'tokens, ', '`code` ', 'and ', 'more.\\n', '\\n\\n', '- ',
                   '```py\\nx = 1\\n', 'y = 2\\n```\\n\\n', '**bold** ', '| a | b |\\n'];
    const fetched = window.fetch, encoder = new TextEncoder();
    window.fetch = (path, options) => {
        if (!String(path).endsWith('/generate')) return fetched(path, options);
        let n = 0, seed = 1;
        return Promise.resolve(new Response(new ReadableStream({async pull(to) {
            await new Promise(done => setTimeout(done, 16));
            let text = '';
            for (let i = 0; i < 50 && n < 10000; i++, n++) {
                seed = seed * 48271 % 2147483647;
                const event = {token: n, text: words[seed % words.length], round: n >> 2,
                               kind: 'text'};
                if (n % 4) event.drafted = true;
                else event.rejected = [{token: 1, text: 'no '}];
                text += `data: ${JSON.stringify(event)}\\n\\n`;
            }
            if (text) to.enqueue(encoder.encode(text));
            else to.close();
        }})));
    };
    window.frames_ = [];
    let last = performance.now();
    const frame = now => { frames_.push(now - last); last = now; requestAnimationFrame(frame); };
    requestAnimationFrame(frame);
})()""".replace("\\\\", "\\")


def test_ten_thousand_tokens():
    with Page(BROWSER_OBJECT, SERVER) as v:
        v.ready().set(mode="chat")
        v.js(FLOOD)
        BROWSER_OBJECT.start_tracing(page=v.page, categories=["toplevel", "disabled-by-default-"
                                                              "devtools.timeline"])
        v.say("Write a long list.", done=False)
        v.wait("!running && meters.tokens === 10000", 120)
        frames = sorted(v.js("frames_"))
        task = longest_task(BROWSER_OBJECT.stop_tracing())
        assert v.js("document.querySelectorAll('.markdown .code').length") > 100
        shaded = v.js("shown[1].answer.parts[0].ranges.length")
        print(f"page: 10,000 tokens in {len(frames)} frames, the longest {frames[-1]:.0f} ms; "
              f"the longest task took {task:.0f} ms of processor time; {shaded} shaded ranges")
        assert 0 < task <= 100 and shaded > 2000, (task, shaded)
        judge_time(frames[-1] <= 100, f"frames: {frames[-5:]}")


# ---- who sees it otherwise ----

CONTRAST = """(() => {
  const parse = c => c.match(/[\\d.]+/g).map(Number);
  const over = (a, b) => { const k = a[3] ?? 1; return [0,1,2].map(i => k*a[i] + (1-k)*b[i]); };
  const lum = c => { const [r,g,b] = c.map(v => { v /= 255;
      return v <= 0.03928 ? v/12.92 : ((v+0.055)/1.055)**2.4; });
      return 0.2126*r + 0.7152*g + 0.0722*b; };
  const back = e => { const list = [];
      for (; e; e = e.parentElement) list.push(parse(getComputedStyle(e).backgroundColor));
      return list.reverse().reduce((b, c) => over(c, b), [255,255,255]); };
  const bad = [];
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    if (!own || e.closest('script, style') || !e.checkVisibility({checkOpacity: true})) continue;
    if (!e.getClientRects().length || e.closest('.unseen, option')) continue;
    const s = getComputedStyle(e), b = back(e), f = over(parse(s.color), b);
    const [x, y] = [lum(f), lum(b)].sort((p, q) => q - p);
    const large = parseFloat(s.fontSize) >= 24;
    if ((x + 0.05) / (y + 0.05) < (large ? 3 : 4.5))
      bad.push([e.tagName, e.className, e.textContent.slice(0, 30), ((x+.05)/(y+.05)).toFixed(2)]);
  }
  return bad; })()"""
NAMES = """[...document.querySelectorAll('button, input, select, textarea, [tabindex], a, summary')]
  .filter(e => !(e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') ||
      [...(e.labels || [])].some(l => l.textContent.trim()) || e.textContent.trim() ||
      e.closest('pre')))
  .map(e => e.outerHTML.slice(0, 120))"""


def test_contrast_and_names():
    with Page(BROWSER_OBJECT, SERVER) as v:
        v.ready().set(mode="chat", max_tokens=8, temperature=0)
        answer_with(v, [*pieces("Thinking", kind="thought"),
                        *pieces("# One\n\ntwo `three` [four](https://example.org)\n\n> five\n\n"
                                "```py\nsix\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"),
                        {"token": 5, "text": " six", "round": 9, "kind": "text", "drafted": True,
                         "rejected": [{"token": 7, "text": " seven"}]}])
        v.say("Hello", done=False)
        v.wait("!running")
        v.js("document.querySelectorAll('details').forEach(d => d.open = true)")
        v.js("showError(new Error('An error'))")
        for tokens in (False, True):
            for theme in ("light", "dark"):
                v.js(f"setTheme('{theme}')")
                bad = v.js(CONTRAST)
                assert not bad, (theme, bad)
            if not tokens:
                v.page.get_by_role("button", name="Drafting").click()
        assert v.js(NAMES) == [], v.js(NAMES)
        assert v.js("[...document.querySelectorAll('[tabindex]')].every(e => e.tabIndex === 0)")
        assert v.js("document.documentElement.lang") == "en"
        ids = v.js("[...document.querySelectorAll('[id]')].map(e => e.id)")
        assert len(ids) == len(set(ids)), ids
        v.js("localStorage.clear()")


def test_focus_order():
    """Tab passes what can be used once, in the order of the page, and each shows that it is there."""
    with Page(BROWSER_OBJECT, SERVER) as v:
        v.ready()
        v.page.mouse.click(1, 1)
        v.js("document.querySelector('.skip').focus()")
        v.page.keyboard.press("Shift+Tab")
        seen = []
        for _ in range(60):
            v.page.keyboard.press("Tab")
            at = v.js("""(() => { const e = document.activeElement;
                if (!e || e === document.body) return null;
                window.list_ ??= [...document.querySelectorAll('*')];
                const s = getComputedStyle(e), ring = s.outlineStyle !== 'none' ||
                    e.id === 'prompt';
                return [list_.indexOf(e), e.id || e.className || e.tagName, ring,
                        e.checkVisibility()]; })()""")
            if at is None or (seen and at[0] == seen[0][0]):
                break
            seen.append(at)
        names = [name for _, name, _, _ in seen]
        assert names[0] == "skip" and "prompt" in names and "send" in names, names
        assert [at for at, *_ in seen] == sorted(at for at, *_ in seen), names
        assert all(ring and visible for _, _, ring, visible in seen), seen


def test_narrow_screens():
    with Page(BROWSER_OBJECT, SERVER, viewport={"width": 380, "height": 700}, has_touch=True) as v:
        v.ready().set(mode="chat", max_tokens=8)
        answer_with(v, pieces("```\n" + "x" * 400 + "\n```\n\n| " + " | ".join("abcdefghij") +
                              " |\n|" + "---|" * 10 + "\n" + "w" * 300))
        v.say("Hello", done=False)
        v.wait("!running")
        assert v.js("document.documentElement.scrollWidth") <= 380
        assert v.js("$('log').scrollWidth <= $('log').clientWidth")
        for button, drawer in (("Sessions", "#sessions"), ("Engine and settings", "#panel")):
            v.page.get_by_role("button", name=button).click()
            assert v.page.locator(drawer).is_visible()
            box = v.page.locator(drawer).bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= 380, box
            v.page.keyboard.press("Escape")
            assert not v.page.locator(drawer).is_visible()


def test_key():
    path = os.path.join(FOLDER, "keys")
    with open(path, "w", encoding="ascii") as out:
        out.write("sk-page-key\n")
    with Server(KAKEYA, "--api-key-file", path) as s, Page(BROWSER_OBJECT, s) as v:
        v.expected = ("401",)
        v.wait("$('key-dialog').open")
        v.page.get_by_role("textbox", name="API key").fill("wrong")
        v.page.get_by_role("button", name="Use it").click()
        v.wait("$('key-dialog').open && key === 'wrong'")
        v.page.get_by_role("textbox", name="API key").fill("sk-page-key")
        v.page.get_by_role("button", name="Use it").click()
        v.ready().set(mode="chat", max_tokens=4)
        v.say("Hello")


# ---- pictures ----


def save_picture(png, path):
    """Writes it as WebP, a quarter as large, which the browser can make."""
    page = BROWSER_OBJECT.new_page()
    url = page.evaluate("""async (png) => {
        const image = new Image();
        image.src = 'data:image/png;base64,' + png;
        await image.decode();
        const canvas = new OffscreenCanvas(image.width, image.height);
        canvas.getContext('2d').drawImage(image, 0, 0);
        const blob = await canvas.convertToBlob({type: 'image/webp', quality: 0.8});
        const bytes = new Uint8Array(await blob.arrayBuffer());
        return btoa(String.fromCharCode(...bytes)); }""", base64.b64encode(png).decode())
    page.close()
    with open(path, "wb") as out:
        out.write(base64.b64decode(url))


def take_pictures():
    with Server(KAKEYA, "-c", "8192") as s:
        for label, format in (("What is 626 + 449?", "bf16"), ("A log of the harbour", "q4"),
                              ("Rename the parser's options", "q8")):
            made = s.post("/v1/sessions", {"label": label, "kv_format": format})
            s.post(f"/v1/sessions/{made['id']}/append", {"text": CODE * len(label)})

        def picture(name, theme, width, height, tokens=False, **more):
            with Page(BROWSER_OBJECT, s, viewport={"width": width, "height": height},
                      color_scheme=theme, **more) as v:
                v.ready().set(temperature=0, max_tokens=150, mode="text", kv_format="q8")
                v.say(CODE)
                v.set(max_tokens=110)
                v.say("\n\nif __name__ == \"__main__\":\n")
                if tokens:
                    v.page.get_by_role("button", name="Drafting").last.click()
                v.js("document.activeElement.blur()")
                time.sleep(0.5)
                save_picture(v.page.screenshot(), os.path.join(PICTURES, f"page-{name}.webp"))
                v.js("localStorage.clear()")
                s.ask("DELETE", f"/v1/sessions/{v.js('current.id')}")

        picture("light", "light", 1240, 760)
        picture("dark", "dark", 1240, 760, tokens=True)
        picture("narrow", "dark", 380, 720, has_touch=True)


with sync_playwright() as playwright:
    BROWSER_OBJECT = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
    if PICTURES:
        take_pictures()
    else:
        with Server(KAKEYA, "-c", "12288", "--max-sessions", "64") as SERVER:
            run_tests([test for name, test in globals().items() if name.startswith("test_")])
    BROWSER_OBJECT.close()
