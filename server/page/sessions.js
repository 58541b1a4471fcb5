/* sessions.js - the sessions that the server holds: listed, chosen, deleted. */

let sessionList = [];

const sessionTitle = (info) => info.label || "Untitled";

function sessionNote(info) {
  const words = [`${count(info.history_length)} tokens`];
  if (info.kv.bytes) words.push(`${bytes(info.kv.bytes)} ${info.kv.format}`);
  else words.push(info.stored ? "on disk" : "not in memory");
  if (info.busy) words.push("working");
  return words.join(" · ");
}

/* A first press asks, a second deletes. */
function deleteButton(info, onDelete) {
  const title = sessionTitle(info);
  const button = iconButton("trash", `Delete ${title}`, () => {
    if (button.dataset.sure) {
      onDelete(info.id);
      return;
    }
    button.dataset.sure = "1";
    button.setAttribute("aria-label", `Really delete ${title}?`);
    button.replaceChildren("Delete?");
    announce(`Press again to delete ${title}`);
  });
  button.addEventListener("blur", () => {
    delete button.dataset.sure;
    button.setAttribute("aria-label", `Delete ${title}`);
    button.replaceChildren(icon("trash"));
  });
  return button;
}

function drawSessions(current, onOpen, onDelete) {
  const list = $("session-list");
  const held = document.activeElement?.closest?.("#session-list") ? document.activeElement : null;
  const drawing = JSON.stringify([current, sessionList.map((s) => [s.id, sessionNote(s)])]);
  if (list.dataset.drawing === drawing || held?.dataset.sure) return;
  list.dataset.drawing = drawing;
  const again = held && [held.closest("li").dataset.id, held.className];
  list.replaceChildren(...sessionList.map((info) => el("li", { "data-id": info.id },
    el("button", { type: "button", class: "session", onclick: () => onOpen(info.id),
                   "aria-current": info.id === current ? "true" : null },
       el("span", {}, sessionTitle(info)), el("small", {}, sessionNote(info))),
    deleteButton(info, onDelete))));
  $("no-sessions").hidden = sessionList.length > 0;
  if (again) list.querySelector(`[data-id="${again[0]}"] .${again[1]}`)?.focus();
}

async function loadSessions() {
  sessionList = (await call("GET", "/v1/sessions")).data;
}
