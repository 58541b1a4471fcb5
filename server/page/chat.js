/* chat.js - the conversation: it is sent, streamed, stopped, edited, forked and read back.
 *
 * A history of the server only grows, so that an edited message, or an answer that is wanted anew,
 * is a fork before that message: all before it is shared, and nothing of it is evaluated again.
 *
 * Invariants:
 *   (1) `shown` has an entry for every message of the open session that the page shows, in order;
 *   (2) while `running` is set, nothing else is sent to the session. */

let current = null; /* the open session: what GET says of it; null: none was made yet */
let shown = []; /* {role, node, answer, text, start, end} */
let running = null; /* an AbortController */

/* ---- messages -------------------------------------------------------------------------------- */

const ROLES = { user: "You", assistant: "Model", system: "System", text: "Text" };

function addMessage(role, text) {
  const entry = { role, text, answer: null };
  const name = ROLES[role] || role;
  const body = el("div", { class: "body" });
  entry.tools = el("div", { class: "tools" });
  entry.note = el("p", { class: "note" });
  if (role === "assistant") {
    entry.answer = new Answer(setting("mode") === "text");
    body.append(entry.answer.body);
  } else if (role === "system") {
    body.append(el("details", { class: "fold" }, el("summary", {}, "System prompt"),
                   el("p", { class: "plain" }, text)));
  } else {
    body.append(el("p", { class: "plain" }, text.replace(/^\n+|\n+$/g, "")));
  }
  entry.body = body;
  entry.node = el("article", { class: `message ${role}`, "aria-label": name },
                  el("h2", {}, name), body, el("footer", {}, entry.note, entry.tools));
  shown.push(entry);
  $("welcome").hidden = true;
  $("messages").append(entry.node);
  drawTools(entry);
  return entry;
}

function drawTools(entry) {
  const tools = [];
  if (entry.role === "user" && setting("mode") === "chat")
    tools.push(iconButton("edit", "Edit this message", () => startEdit(entry)));
  if (entry.role === "assistant") {
    const show = iconButton("draft", "Show every token and what was drafted for it", () => {
      const on = entry.answer.toggleTokens();
      show.setAttribute("aria-pressed", on);
    }, "Drafting");
    show.setAttribute("aria-pressed", "false");
    if (entry.answer.tokens.length) tools.push(show);
    if (setting("mode") === "chat")
      tools.push(iconButton("again", "Answer again", () => regenerate(entry)));
  }
  if (entry.role !== "system") {
    tools.push(iconButton("copy", "Copy", () => navigator.clipboard?.writeText(
      entry.answer ? entry.answer.text() : entry.text)));
    tools.push(iconButton("fork", "Fork the session after this message", () => fork(entry)));
  }
  entry.tools.replaceChildren(...tools);
}

function clearMessages() {
  for (const entry of shown) entry.answer?.forget();
  shown = [];
  $("messages").replaceChildren();
  $("welcome").hidden = false;
}

function showError(error) {
  if (error.name === "AbortError") return;
  $("error").hidden = false;
  $("error-text").textContent = error.message;
  announce(error.message);
}

/* ---- sending --------------------------------------------------------------------------------- */

const path = (verb = "") => `/v1/sessions/${current.id}${verb}`;

/* At most 63 bytes, of whole characters. */
function labelOf(text) {
  const line = text.trim().split("\n")[0];
  let label = "";
  for (const character of line) {
    if (new TextEncoder().encode(label + character).length > 56) return `${label}…`;
    label += character;
  }
  return label;
}

async function makeSession(text) {
  current = await call("POST", "/v1/sessions", sessionBody(labelOf(text)));
  location.hash = current.id;
  return current;
}

/* The body of an append: what the user says, and, at the start, what the system is told. */
function additionOf(text) {
  if (setting("mode") !== "chat") return { text };
  const addition = { messages: [{ role: "user", content: text }],
                     enable_thinking: setting("thinking") };
  if (shown.length > 0) return addition;
  Object.assign(addition, toolsBody());
  if (!setting("system")) return addition;
  addition.messages.unshift({ role: "system", content: setting("system") });
  addMessage("system", setting("system"));
  return addition;
}

/* Messages as they are shown: a turn of the system that says nothing belongs to the next one. */
function toldMessages(messages) {
  const told = [];
  let start = null;
  for (const message of messages) {
    if (message.role === "system" && !message.parts.some((part) => part.kind === "text")) {
      start ??= message.start;
      continue;
    }
    told.push(start === null ? message : { ...message, start });
    start = null;
  }
  return told;
}

async function send(text) {
  if (running || !text.trim()) return;
  await work(async (signal) => {
    const addition = additionOf(text);
    if (!current) await makeSession(text);
    const entry = addMessage(setting("mode") === "chat" ? "user" : "text", text);
    scrollDown(true);
    const got = await callWhenFree("POST", path("/append"), addition, signal);
    const cached = got.history_length - got.evaluated_tokens;
    entry.note.textContent = `${count(cached)} of ${count(got.history_length)} tokens of the ` +
                             "prompt came from the cache";
    drawPrompt(cached, got.history_length);
    await generate(addMessage("assistant", ""), signal);
  });
}

/* Runs one piece of work at a time; the button then stops it. */
async function work(job) {
  running = new AbortController();
  $("error").hidden = true;
  drawComposer();
  try {
    await job(running.signal);
  } catch (error) {
    showError(error);
  }
  running = null;
  drawComposer();
  await sync().catch(showError);
}

async function generate(entry, signal) {
  const { answer } = entry;
  let done = null, last = 0, cost = 0;
  resetMeters();
  entry.node.setAttribute("aria-busy", "true");
  announce("The answer begins");
  /* Painting takes at most a third of the time, however long the answer grows. */
  const paint = (now) => {
    if (now - last >= 2 * cost) {
      const from = performance.now();
      answer.paint();
      drawMeters(done);
      scrollDown();
      cost = performance.now() - from;
      last = now;
    }
    if (entry.frame) entry.frame = requestAnimationFrame(paint);
  };
  entry.frame = requestAnimationFrame(paint);
  try {
    const body = { ...samplingBody(), drafts: true, chat: setting("mode") === "chat" };
    await stream(path("/generate"), body, signal, (event) => {
      if (event.done) {
        done = event.done;
        return;
      }
      answer.take(event);
      meterToken(event);
    });
  } finally {
    cancelAnimationFrame(entry.frame);
    entry.frame = 0;
    answer.paint();
    entry.node.removeAttribute("aria-busy");
    finishAnswer(entry, done);
  }
}

function finishAnswer(entry, done) {
  const words = [`${count(done?.generated_tokens ?? meters.tokens)} tokens`];
  const speed = done && done.generated_tokens / Math.max(1e-6, done.decode_seconds);
  if (done) words.push(`${rate(speed)} tok/s`);
  if (done?.rounds) words.push(`${(done.generated_tokens / done.rounds).toFixed(2)} per round`);
  if (done?.drafted_tokens)
    words.push(`${percent(done.accepted_tokens, done.drafted_tokens)} of drafts accepted`);
  if (!done) words.push("stopped");
  if (done?.stop_reason === "max_tokens" || done?.stop_reason === "context")
    words.push(done.stop_reason === "context" ? "the context is full" : "cut at the limit");
  entry.note.textContent = words.join(" · ");
  drawMeters(done);
  drawTools(entry);
  scrollDown();
  for (const each of entry.answer.calls().slice(-1)) if (done) askForResult(entry, each);
  announce(done ? `The answer is complete. ${entry.answer.text().slice(0, 800)}`
                : "The answer was stopped");
}

/* A model that called a tool waits for what it says. */
function askForResult(entry, toolCall) {
  const input = el("textarea", { rows: "2", "aria-label": `Result of ${toolCall.name}` });
  const form = el("form", { class: "result" }, input,
                  el("button", { class: "tool" }, "Give this result"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    form.remove();
    entry.answer.addResponse(input.value);
    work(async (signal) => {
      const text = `response:${toolCall.name}{value:<|"|>${input.value}<|"|>}<tool_response|>`;
      await callWhenFree("POST", path("/append"), { text }, signal);
      await generate(entry, signal);
    });
  });
  entry.body.append(form);
}

/* ---- forks ----------------------------------------------------------------------------------- */

/* Goes on before a message of the open session: in a fork, or, where nothing stands before it, in a
 * session of its own. */
async function branchBefore(entry, text) {
  const old = current, index = shown.indexOf(entry);
  const start = entry.start;
  if (index > 0 && start > 0) {
    const made = await callWhenFree("POST", path("/fork"), { at: start });
    current = { ...old, id: made.id };
    location.hash = current.id;
  } else {
    current = null;
  }
  for (const later of shown.splice(Math.max(0, index))) {
    later.answer?.forget();
    later.node.remove();
  }
  await send(text);
  if (!setting("keep") && current && current.id !== old.id) await remove(old.id);
}

function regenerate(entry) {
  const before = shown.slice(0, shown.indexOf(entry)).reverse();
  const asked = before.find((other) => other.role === "user");
  if (!running && asked) branchBefore(asked, asked.text).catch(showError);
}

function startEdit(entry) {
  if (running) return;
  const input = el("textarea", { rows: "3", "aria-label": "The edited message" });
  const before = [...entry.body.childNodes];
  const end = () => entry.body.replaceChildren(...before);
  const form = el("form", { class: "result" }, input,
                  el("button", { class: "tool primary" }, "Send"),
                  el("button", { type: "button", class: "tool", onclick: end }, "Cancel"));
  input.value = entry.text;
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") end();
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) form.requestSubmit();
    if (event.key === "Enter" && !event.shiftKey) event.preventDefault();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    end();
    if (input.value.trim()) branchBefore(entry, input.value).catch(showError);
  });
  entry.body.replaceChildren(form);
  input.focus();
}

async function fork(entry) {
  if (running || !current || entry.end == null) return;
  try {
    const made = await callWhenFree("POST", path("/fork"), { at: entry.end });
    await open(made.id);
    announce(`Forked after ${count(made.history_length)} tokens`);
  } catch (error) {
    showError(error);
  }
}

/* ---- sessions -------------------------------------------------------------------------------- */

/* A session whose generation was just stopped is in use until the round it was in has ended. */
async function whenFree() {
  for (;;) {
    const info = await call("GET", path());
    if (!info.busy) return info;
    await new Promise((done) => setTimeout(done, 30));
  }
}

/* What the server has of the conversation: places of messages, and the list of sessions. */
async function sync() {
  if (current) {
    current = await whenFree();
    const { messages } = await callWhenFree("GET", path("/messages"));
    if (setting("mode") === "chat") toldMessages(messages).forEach((message, i) => {
      if (shown[i]) Object.assign(shown[i], { start: message.start, end: message.end });
    });
    else if (shown.length) shown[shown.length - 1].end = current.history_length;
    $("m-session").textContent = savedBy(current) || "–";
  }
  await loadSessions();
  redrawSessions();
  poll();
}

function redrawSessions() {
  drawSessions(current?.id, open, remove);
  $("title").textContent = current ? sessionTitle(current) : "New session";
}

/* Shows a session as the server has it.  Who drafted what is not stored. */
async function open(id) {
  if (running) return;
  try {
    current = await call("GET", `/v1/sessions/${id}`);
    const { messages } = await call("GET", path("/messages"));
    location.hash = id;
    clearMessages();
    if (messages.some((message) => message.role === "text")) field("mode").value = "text";
    else if (messages.length) field("mode").value = "chat";
    for (const message of toldMessages(messages)) showStored(message);
    drawPrompt(0, 0);
    await sync();
    document.body.classList.remove("show-sessions");
    scrollDown(true);
  } catch (error) {
    showError(error);
  }
}

function showStored(message) {
  const said = message.parts.filter((part) => part.kind === "text").map((part) => part.text);
  const entry = addMessage(message.role, said.join("\n\n"));
  entry.start = message.start;
  entry.end = message.end;
  if (!entry.answer) return;
  for (const part of message.parts) {
    if (part.kind === "response") entry.answer.addResponse(part.text);
    else entry.answer.take(part);
  }
  for (const part of entry.answer.parts) part.paint();
}

async function remove(id) {
  try {
    await call("DELETE", `/v1/sessions/${id}`);
    if (current?.id === id) startNew();
    await loadSessions();
    redrawSessions();
    announce("The session was deleted");
  } catch (error) {
    showError(error);
  }
}

function startNew() {
  if (running) return;
  current = null;
  history.replaceState(null, "", location.pathname);
  clearMessages();
  drawPrompt(0, 0);
  $("m-session").textContent = "–";
  redrawSessions();
  document.body.classList.remove("show-sessions");
  $("prompt").focus();
}

/* ---- the page -------------------------------------------------------------------------------- */

/* Follows the answer unless the reader has scrolled away. */
let follows = true;
function scrollDown(always) {
  const log = $("log");
  if (always) follows = true;
  if (follows) log.scrollTop = log.scrollHeight;
}

function drawComposer() {
  const button = $("send");
  button.replaceChildren(icon(running ? "stop" : "send"));
  button.setAttribute("aria-label", running ? "Stop" : "Send");
  button.title = running ? "Stop (Esc)" : "Send (Enter)";
  button.classList.toggle("stop", Boolean(running));
}

function growPrompt() {
  const prompt = $("prompt");
  prompt.style.height = "auto";
  prompt.style.height = `${Math.min(220, prompt.scrollHeight)}px`;
}

function submit() {
  if (running) {
    running.abort();
    return;
  }
  const text = $("prompt").value;
  if (!text.trim()) return;
  $("prompt").value = "";
  growPrompt();
  send(text);
}

function toggleTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme || (dark ? "dark" : "light");
  setTheme(now === "dark" ? "light" : "dark");
}

function setTheme(name) {
  if (!name) return;
  document.documentElement.dataset.theme = name;
  localStorage.setItem("kakeya.theme", name);
  drawRounds();
}

/* Drawers of narrow screens. */
function toggleDrawer(name) {
  const other = name === "show-sessions" ? "show-panel" : "show-sessions";
  document.body.classList.remove(other);
  const on = document.body.classList.toggle(name);
  $(name === "show-sessions" ? "menu" : "gauge").setAttribute("aria-expanded", on);
  if (on) drawRounds();
}

let polling = 0;
async function poll() {
  clearTimeout(polling);
  try {
    if (!document.hidden) drawStats(await call("GET", "/stats"));
    setStatus(true, "");
  } catch (error) {
    setStatus(false, error.message);
  }
  polling = setTimeout(poll, running ? 1000 : 3000);
}

function setStatus(good, words) {
  $("status").className = good ? "good" : "bad";
  $("status").title = words || "The server is ready";
  $("status-text").textContent = words;
}

/* The model may still be loading: the page waits for it. */
async function waitForServer() {
  for (;;) {
    try {
      return await call("GET", "/props");
    } catch (failure) {
      setStatus(false, failure.message);
      if (failure.status === 401) showError(failure);
      await new Promise((done) => setTimeout(done, failure.status === 401 ? 3000 : 500));
    }
  }
}

function connectButtons() {
  $("menu").append(icon("menu"));
  $("gauge").append(icon("gauge"));
  $("theme").append(icon("theme"));
  $("new").prepend(icon("plus"));
  $("menu").addEventListener("click", () => toggleDrawer("show-sessions"));
  $("gauge").addEventListener("click", () => toggleDrawer("show-panel"));
  $("theme").addEventListener("click", toggleTheme);
  $("new").addEventListener("click", startNew);
  $("error-close").append(icon("close"));
  $("error-close").addEventListener("click", () => ($("error").hidden = true));
  $("key-cancel").addEventListener("click", () => $("key-dialog").close(""));
  for (const chip of document.querySelectorAll(".chip"))
    chip.addEventListener("click", () => {
      field("mode").value = chip.dataset.mode;
      $("prompt").value = chip.dataset.text;
      growPrompt();
      $("prompt").focus();
    });
}

function connectKeys() {
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  $("prompt").addEventListener("input", growPrompt);
  $("prompt").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!running) submit();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    running?.abort();
    document.body.classList.remove("show-sessions", "show-panel");
  });
  $("log").addEventListener("scroll", () => {
    const log = $("log");
    follows = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
  }, { passive: true });
  $("settings").addEventListener("input", saveSettings);
  $("settings").addEventListener("submit", (event) => event.preventDefault());
}

async function start() {
  setTheme(localStorage.getItem("kakeya.theme"));
  connectButtons();
  connectKeys();
  drawComposer();
  props = await waitForServer();
  $("model").textContent = props.model_alias;
  document.title = `${props.model_alias} · Kakeya`;
  $("about").textContent = `${props.model_alias} on ${props.device.name} (${props.device.isa}), ` +
    `${count(props.n_ctx)} tokens of context, drafting: ${props.spec.proposer}.`;
  loadSettings();
  await loadSessions();
  redrawSessions();
  const wanted = location.hash.slice(1);
  if (sessionList.some((info) => info.id === wanted)) await open(wanted);
  $("prompt").focus();
  document.body.dataset.ready = "1";
  poll();
}

start().catch(showError);
