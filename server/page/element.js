/* The page of `kakeya serve`: a chat over the server's sessions that shows what the engine does.
 *
 * The scripts are joined in the order element, markdown, answer, api, meters, sessions, settings,
 * chat; each uses those before it.  No markup is ever made of a string: all that a model or a user
 * wrote becomes text nodes, and the policy of the page forbids the rest.
 *
 * element.js - elements, and numbers as people read them. */
"use strict";

const $ = (id) => document.getElementById(id);

/* An element with attributes (or `on...` handlers) and children; strings become text nodes. */
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
const count = (n) => Math.round(n).toLocaleString("en");

function bytes(n) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let i = 0;
  for (; n >= 999.5 && i < units.length - 1; i++) n /= 1000;
  return `${i > 0 && n < 99.5 ? n.toFixed(1) : Math.round(n)} ${units[i]}`;
}

const percent = (part, whole) => (whole > 0 ? `${Math.round((100 * part) / whole)} %` : "–");
const rate = (n) => (n >= 99.5 ? count(n) : n.toFixed(1));

/* The icons are strokes in a box of 24, so that the page needs no font and no picture. */
const STROKES = {
  menu: "M4 7h16M4 12h16M4 17h16",
  gauge: "M4 18a8.5 8.5 0 1 1 16 0M12 15l4-5",
  plus: "M12 5v14M5 12h14",
  send: "M5 12h13M12 5l7 7-7 7",
  stop: "M7 7h10v10H7z",
  fork: "M7 4v16M7 12c6 0 10-2 10-8M14 6l3-3 3 3",
  again: "M19 12a7 7 0 1 1-2-5M19 4v4h-4",
  edit: "M5 19h4L19 9l-4-4L5 15zM13 7l4 4",
  copy: "M9 9h10v11H9zM5 15V4h10",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  theme: "M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16",
  draft: "M4 8h7M4 12h16M4 16h11",
  close: "M6 6l12 12M18 6L6 18",
};

function icon(name) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  const path = document.createElementNS(space, "path");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", STROKES[name]);
  svg.append(path);
  return svg;
}

/* A button with a drawn sign; its name is for screen readers and the pointer. */
function iconButton(name, label, onclick, shown = "") {
  return el("button", { type: "button", class: shown ? "tool" : "icon", title: label, onclick,
                        "aria-label": shown ? null : label }, icon(name), shown || null);
}

/* One line for screen readers, read when they have time. */
function announce(words) {
  $("spoken").textContent = words;
}
