/* answer.js - an answer while it comes: thoughts, text, calls, and which tokens were drafted.
 *
 * Tokens that came from an accepted draft are shaded with the browser's custom highlights, which
 * mark ranges of text and leave the elements alone; where a browser has none, the view of drafting
 * still shows them.  That view, made on demand, has one element per token, with what was drafted
 * and rejected before it. */

const shading = "highlights" in CSS ? new Highlight() : null;
if (shading) CSS.highlights.set("drafted", shading);

/* One part of an answer: a view of text, and the places of it that were drafted. */
class Part {
  constructor(kind) {
    this.kind = kind;
    this.view = new MarkdownView(kind === "plain");
    this.drafted = []; /* [from, to) of the source, rising, apart from each other */
    this.ranges = []; /* {at, range} */
    this.root = kind === "thought" ? this.fold("Thinking") : this.view.root;
  }

  fold(title) {
    this.title = el("summary", {}, title);
    return el("details", { class: "fold" }, this.title, this.view.root);
  }

  append(text, drafted) {
    const from = this.view.source.length, to = from + text.length;
    const last = this.drafted[this.drafted.length - 1];
    this.view.append(text);
    if (!drafted || !text) return;
    if (last && last[1] === from) last[1] = to;
    else this.drafted.push([from, to]);
  }

  paint() {
    const before = this.view.shown;
    const from = Math.min(this.view.render(), before);
    if (!shading) return;
    while (this.ranges.length && this.ranges[this.ranges.length - 1].at >= from)
      shading.delete(this.ranges.pop().range);
    for (let i = this.drafted.length - 1; i >= 0 && this.drafted[i][1] > from; i--) {
      const begin = Math.max(from, this.drafted[i][0]);
      for (const range of this.view.ranges(begin, this.drafted[i][1])) {
        this.ranges.push({ at: begin, range });
        shading.add(range);
      }
    }
    this.ranges.sort((a, b) => a.at - b.at);
  }

  forget() {
    for (const { range } of this.ranges) shading?.delete(range);
  }
}

class Answer {
  /* plain: it goes on a text, and is shown as it stands. */
  constructor(plain) {
    this.textKind = plain ? "plain" : "text";
    this.parts = [];
    this.tokens = []; /* {text, drafted, round, rejected} */
    this.body = el("div", { class: "body" });
    this.tokensView = null;
    this.dirty = false;
  }

  part(kind) {
    const last = this.parts[this.parts.length - 1];
    if (last && last.kind === kind) return last;
    const part = new Part(kind);
    this.parts.push(part);
    this.body.append(part.root);
    return part;
  }

  /* An event of the server's stream. */
  take(event) {
    if (event.token != null) this.tokens.push(event);
    if (event.kind === "call") this.addCall(event);
    else if (event.text) this.part(this.kindOf(event)).append(event.text, event.drafted);
    this.dirty = true;
  }

  kindOf(event) {
    return event.kind === "thought" ? "thought" : this.textKind;
  }

  addCall(call) {
    const code = el("code", { tabindex: "0" }, call.arguments ?? call.text);
    this.parts.push({ kind: "call", call, paint() {}, forget() {} });
    this.body.append(el("details", { class: "fold call" },
                        el("summary", {}, `Calls ${call.name || "a tool"}`),
                        el("figure", { class: "code" }, el("pre", {}, code))));
  }

  addResponse(text) {
    this.parts.push({ kind: "response", paint() {}, forget() {} });
    this.body.append(el("details", { class: "fold call" }, el("summary", {}, "The tool answered"),
                        el("p", { class: "plain" }, text)));
  }

  paint() {
    if (!this.dirty) return;
    this.dirty = false;
    const last = this.parts[this.parts.length - 1];
    for (const part of this.parts.slice(-2)) part.paint();
    if (last?.kind === "thought") last.root.classList.add("going");
    else for (const part of this.parts) part.root?.classList.remove("going");
  }

  /* All that was said as an answer, without thoughts. */
  text() {
    return this.parts.filter((part) => part.kind === "text" || part.kind === "plain")
      .map((part) => part.view.source).join("\n\n");
  }

  calls() {
    return this.parts.filter((part) => part.kind === "call").map((part) => part.call);
  }

  /* Switches between the answer and its tokens; returns whether tokens are shown now. */
  toggleTokens() {
    if (this.tokensView) {
      this.tokensView.replaceWith(this.body);
      this.tokensView = null;
      return false;
    }
    this.tokensView = this.drawTokens();
    this.body.replaceWith(this.tokensView);
    return true;
  }

  drawTokens() {
    const view = el("div", { class: "tokens", tabindex: "0", role: "group",
                             "aria-label": "Tokens of the answer by how they came" });
    let round = -1;
    for (const token of this.tokens) {
      for (const wrong of token.rejected || [])
        view.append(el("del", { title: `round ${token.round}: drafted and rejected` },
                       visible(wrong.text).replace(/\n/g, "")));
      const attributes = { title: token.drafted ? `round ${token.round}: drafted and accepted`
                                                : `round ${token.round}: chosen by the model` };
      if (token.round !== round) attributes.class = "first";
      view.append(el(token.drafted ? "mark" : "span", attributes, visible(token.text)));
      round = token.round;
    }
    return view;
  }

  forget() {
    for (const part of this.parts) part.forget();
  }
}

/* A token alone: line breaks are shown, and kept. */
const visible = (text) => text.replace(/\n/g, "⏎\n") || "·";
