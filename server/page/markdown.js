/* markdown.js - the Markdown that models write, as elements, while it comes.
 *
 * Every text node holds a contiguous piece of the source, and the view knows which: so that tokens
 * can be shaded in the finished text without touching it.
 *
 * Invariants of a view between calls of render():
 *   (1) blocks before `settled` (a place in the source) are final: their nodes are never touched;
 *   (2) `pieces` lists every text node that shows source, by rising place;
 *   (3) only the last two blocks are made again when text is added, and of an open block of code not
 *       even that: its text grows. */

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const HEADING = /^(#{1,6})[ \t]+/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const ITEM = /^([ \t]*)([-*+]|\d{1,9}[.)])[ \t]+/;
const QUOTE = /^ {0,3}> ?/;
const DIVIDER = /^[ \t]*\|?[ \t]*:?-+:?[ \t]*(\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

class MarkdownView {
  /* plain: no Markdown, one text that grows. */
  constructor(plain) {
    this.root = el(plain ? "p" : "div", { class: plain ? "plain mono" : "markdown" });
    this.source = "";
    this.shown = 0; /* how much of the source was rendered */
    this.settled = 0;
    this.settledNodes = 0; /* children of root, and pieces, that are final */
    this.settledPieces = 0;
    this.pieces = []; /* {node, at, length} */
    this.open = false; /* the last piece is code, or plain text, that grows */
    this.plain = plain;
    if (plain) this.put(this.root, 0, 0, true);
  }

  append(text) {
    this.source += text;
  }

  /* Shows all of the source; returns the place from which on nodes are new. */
  render() {
    if (this.shown === this.source.length) return this.shown;
    const before = this.shown;
    if ((this.plain || this.open) && this.grow()) return before;
    const from = this.settled;
    while (this.root.childNodes.length > this.settledNodes) this.root.lastChild.remove();
    this.pieces.length = this.settledPieces;
    this.before = null;
    this.closed = true;
    this.open = false;
    const lines = this.linesFrom(from);
    for (let i = 0; i < lines.length;) {
      const text = this.text(lines[i]);
      if (text.trim()) this.settle(lines[i].from, text);
      i = this.block(this.root, lines, i);
    }
    this.shown = this.source.length;
    return from;
  }

  /* A block begins at `at`: all before it is final, but for the block just before it where its last
   * line may still turn out to be the next of a list, a table or a paragraph. */
  settle(at, text) {
    const here = [at, this.root.childNodes.length, this.pieces.length];
    const last = this.closed || this.before === null ? here : this.before;
    if (last[0] >= this.settled) [this.settled, this.settledNodes, this.settledPieces] = last;
    this.before = here;
    this.closed = FENCE.test(text) || HEADING.test(text) || RULE.test(text);
  }

  grow() {
    const start = this.source.lastIndexOf("\n", this.shown - 1) + 1;
    const ends = /^ {0,3}[`~]/m.test(this.source.slice(start)); /* perhaps the end of the code */
    if (ends && !this.plain) return false;
    const piece = this.pieces[this.pieces.length - 1];
    piece.node.appendData(this.source.slice(piece.at + piece.length));
    piece.length = this.source.length - piece.at;
    this.shown = this.source.length;
    return true;
  }

  linesFrom(at) {
    const lines = [];
    while (at < this.source.length) {
      const found = this.source.indexOf("\n", at);
      const to = found < 0 ? this.source.length : found;
      lines.push({ from: at, to });
      at = to + 1;
    }
    return lines;
  }

  text(line) {
    return this.source.slice(line.from, line.to);
  }

  /* ---- blocks: each takes lines from i on, and returns the next ------------------------------ */

  block(parent, lines, i) {
    const line = this.text(lines[i]);
    if (!line.trim()) return i + 1;
    if (FENCE.test(line)) return this.codeBlock(parent, lines, i);
    if (HEADING.test(line)) return this.heading(parent, lines, i);
    if (RULE.test(line)) {
      parent.append(el("hr"));
      return i + 1;
    }
    if (QUOTE.test(line)) return this.quote(parent, lines, i);
    if (ITEM.test(line)) return this.list(parent, lines, i);
    if (line.includes("|") && i + 1 < lines.length && DIVIDER.test(this.text(lines[i + 1])) &&
        this.text(lines[i + 1]).includes("-"))
      return this.table(parent, lines, i);
    return this.paragraph(parent, lines, i);
  }

  codeBlock(parent, lines, i) {
    const [, fence, language] = FENCE.exec(this.text(lines[i]));
    let end = i + 1;
    const closes = (line) => line.trim().startsWith(fence) && !line.trim().slice(fence.length);
    while (end < lines.length && !closes(this.text(lines[end]))) end++;
    const from = i + 1 < lines.length ? lines[i + 1].from : this.source.length;
    const closed = end < lines.length;
    const to = closed ? Math.max(from, lines[end].from - 1) : this.source.length;
    const code = el("code", { tabindex: "0" });
    const button = iconButton("copy", "Copy the code",
                              () => navigator.clipboard?.writeText(code.textContent));
    parent.append(el("figure", { class: "code" },
                     el("figcaption", {}, language || "code", button), el("pre", {}, code)));
    this.put(code, from, to, true);
    this.open = !closed && parent === this.root;
    return closed ? end + 1 : end;
  }

  heading(parent, lines, i) {
    const mark = HEADING.exec(this.text(lines[i]));
    const level = Math.min(6, mark[1].length + 2); /* below the page's own */
    const node = el(`h${level}`);
    this.inline(node, lines[i].from + mark[0].length, lines[i].to);
    parent.append(node);
    return i + 1;
  }

  quote(parent, lines, i) {
    const inside = [];
    for (; i < lines.length && QUOTE.test(this.text(lines[i])); i++) {
      const mark = QUOTE.exec(this.text(lines[i]))[0].length;
      inside.push({ from: lines[i].from + mark, to: lines[i].to });
    }
    const node = el("blockquote");
    for (let k = 0; k < inside.length;) k = this.block(node, inside, k);
    parent.append(node);
    return i;
  }

  /* Lines that are indented deeper than an item's mark belong to the item. */
  list(parent, lines, i) {
    const [, indent, mark] = ITEM.exec(this.text(lines[i]));
    const ordered = /\d/.test(mark);
    const node = el(ordered ? "ol" : "ul", ordered ? { start: parseInt(mark, 10) } : {});
    const depth = (line) => line.length - line.trimStart().length;
    while (i < lines.length) {
      const found = ITEM.exec(this.text(lines[i]));
      if (!found || found[1].length !== indent.length || /\d/.test(found[2]) !== ordered) break;
      const inside = [{ from: lines[i].from + found[0].length, to: lines[i].to }];
      for (i++; i < lines.length; i++) {
        const line = this.text(lines[i]);
        if (line.trim() && depth(line) <= indent.length) break;
        if (!line.trim() && (i + 1 >= lines.length ||
            depth(this.text(lines[i + 1])) <= indent.length)) break;
        const shift = Math.min(depth(line), found[0].length);
        inside.push({ from: lines[i].from + shift, to: lines[i].to });
      }
      node.append(this.item(inside));
      if (i < lines.length && !this.text(lines[i]).trim() && i + 1 < lines.length &&
          ITEM.test(this.text(lines[i + 1]))) i++;
    }
    parent.append(node);
    return i;
  }

  item(inside) {
    const node = el("li");
    this.inline(node, inside[0].from, inside[0].to);
    let k = 1;
    for (; k < inside.length && this.continues(inside[k]); k++)
      this.softLine(node, inside[k - 1], inside[k]);
    while (k < inside.length) k = this.block(node, inside, k);
    return node;
  }

  table(parent, lines, i) {
    const head = el("tr");
    const body = el("tbody");
    for (const cell of this.cells(lines[i])) {
      const th = el("th", { scope: "col" });
      this.inline(th, cell.from, cell.to);
      head.append(th);
    }
    for (i += 2; i < lines.length && this.text(lines[i]).includes("|"); i++) {
      const row = el("tr");
      for (const cell of this.cells(lines[i])) {
        const td = el("td");
        this.inline(td, cell.from, cell.to);
        row.append(td);
      }
      body.append(row);
    }
    const table = el("table", {}, el("thead", {}, head), body);
    parent.append(el("div", { class: "wide", tabindex: "0", role: "group",
                              "aria-label": "Table" }, table));
    return i;
  }

  cells(line) {
    const cells = [];
    let from = line.from;
    for (let at = line.from; at <= line.to; at++) {
      if (at < line.to && (this.source[at] !== "|" || this.source[at - 1] === "\\")) continue;
      const text = this.source.slice(from, at);
      const start = from + (text.length - text.trimStart().length);
      if (text.trim() || (from > line.from && at < line.to))
        cells.push({ from: Math.min(start, at), to: at - (text.length - text.trimEnd().length) });
      from = at + 1;
    }
    return cells;
  }

  paragraph(parent, lines, i) {
    const node = el("p");
    this.inline(node, lines[i].from, lines[i].to);
    for (i++; i < lines.length && this.continues(lines[i]); i++)
      this.softLine(node, lines[i - 1], lines[i]);
    parent.append(node);
    return i;
  }

  continues(line) {
    const text = this.text(line);
    return text.trim() && !FENCE.test(text) && !HEADING.test(text) && !QUOTE.test(text) &&
           !ITEM.test(text) && !RULE.test(text);
  }

  softLine(node, before, line) {
    this.put(node, before.to, before.to + 1);
    this.inline(node, line.from, line.to);
  }

  /* ---- inside a line ------------------------------------------------------------------------- */

  /* grows: the node is wanted while it has no text, too. */
  put(parent, from, to, grows = false) {
    if (from >= to && !grows) return;
    const node = document.createTextNode(this.source.slice(from, to));
    this.pieces.push({ node, at: from, length: to - from });
    parent.append(node);
  }

  inline(parent, from, to) {
    const mark = /\\[!-/:-@[-`{-~]|(`+)|(\*\*|__|~~)|([*_])|(\[)|(https?:\/\/)/g;
    let plain = from;
    mark.lastIndex = from;
    for (let found; (found = mark.exec(this.source)) && found.index < to;) {
      const at = found.index;
      const end = this.span(parent, found, at, to, plain);
      if (end < 0) continue;
      plain = mark.lastIndex = end;
    }
    this.put(parent, plain, to);
  }

  /* What begins at a mark; returns the place behind it, -1: the mark is plain text. */
  span(parent, found, at, to, plain) {
    const before = () => this.put(parent, plain, at);
    if (found[0][0] === "\\") {
      before();
      this.put(parent, at + 1, at + 2);
      return at + 2;
    }
    if (found[1]) return this.inlineCode(parent, found[1], at, to, before);
    if (found[2]) return this.emphasis(parent, found[2], at, to, before);
    if (found[3]) return this.emphasis(parent, found[3], at, to, before);
    if (found[4]) return this.link(parent, at, to, before);
    return this.address(parent, at, to, before);
  }

  inlineCode(parent, ticks, at, to, before) {
    const end = this.source.indexOf(ticks, at + ticks.length);
    if (end < 0 || end + ticks.length > to) return -1;
    before();
    const node = el("code");
    this.put(node, at + ticks.length, end);
    parent.append(node);
    return end + ticks.length;
  }

  emphasis(parent, mark, at, to, before) {
    const start = at + mark.length;
    const end = this.source.indexOf(mark, start + 1);
    const word = /\w/;
    if (end < 0 || end + mark.length > to || /\s/.test(this.source[start]) ||
        /\s/.test(this.source[end - 1])) return -1;
    if (mark[0] === "_" && (word.test(this.source[at - 1] || "") ||
        word.test(this.source[end + mark.length] || ""))) return -1; /* snake_case */
    before();
    const node = el(mark === "~~" ? "del" : mark.length === 2 ? "strong" : "em");
    this.inline(node, start, end);
    parent.append(node);
    return end + mark.length;
  }

  link(parent, at, to, before) {
    const found = /^\[([^\]\n]*)\]\(([^)\s]*)\)/.exec(this.source.slice(at, to));
    if (!found) return -1;
    const node = this.anchor(found[2]);
    if (!node) return -1;
    before();
    this.inline(node, at + 1, at + 1 + found[1].length);
    parent.append(node);
    return at + found[0].length;
  }

  address(parent, at, to, before) {
    const found = /^https?:\/\/[^\s<>"')\]]*[\w/#=&-]/.exec(this.source.slice(at, to));
    const node = found && this.anchor(found[0]);
    if (!node) return -1;
    before();
    this.put(node, at, at + found[0].length);
    parent.append(node);
    return at + found[0].length;
  }

  /* Only addresses of the web and of mail; what else a browser would run or open stays text. */
  anchor(address) {
    if (!/^(https?:\/\/|mailto:)/i.test(address)) return null;
    return el("a", { href: address, target: "_blank", rel: "noopener noreferrer nofollow" });
  }

  /* ---- places -------------------------------------------------------------------------------- */

  /* The parts of text nodes that show [from, to) of the source, as ranges. */
  ranges(from, to) {
    let low = 0, high = this.pieces.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      const piece = this.pieces[middle];
      if (piece.at + piece.length <= from) low = middle + 1;
      else high = middle;
    }
    const found = [];
    for (; low < this.pieces.length && this.pieces[low].at < to; low++) {
      const { node, at, length } = this.pieces[low];
      found.push(new StaticRange({
        startContainer: node, startOffset: Math.max(0, from - at),
        endContainer: node, endOffset: Math.min(length, to - at) }));
    }
    return found;
  }
}
