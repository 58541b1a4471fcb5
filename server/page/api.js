/* api.js - calls of the server: the key, failures in words, streams of events. */

let key = sessionStorage.getItem("kakeya.key") || "";

class Failure extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function request(method, path, body, signal) {
  const headers = {};
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method, headers, signal,
                                   body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure(0, "The server does not answer.");
  }
  if (response.ok) return response;
  const said = await response.json().catch(() => ({}));
  throw new Failure(response.status, said.error?.message || `HTTP ${response.status}`,
                    said.error?.code);
}

/* JSON in, JSON out.  Where a key is wanted it is asked for, once per call. */
async function call(method, path, body, signal) {
  for (;;) {
    try {
      return await (await request(method, path, body, signal)).json();
    } catch (failure) {
      if (failure.status !== 401 || !(await askForKey())) throw failure;
    }
  }
}

/* A session that was just stopped is in use for a moment longer. */
async function callWhenFree(method, path, body, signal) {
  for (let wait = 20; ; wait *= 2) {
    try {
      return await call(method, path, body, signal);
    } catch (failure) {
      if (failure.status !== 409 || wait > 2000) throw failure;
      await new Promise((done) => setTimeout(done, wait));
    }
  }
}

/* Calls onEvent for every event of a stream; returns when it has ended. */
async function stream(path, body, signal, onEvent) {
  const response = await request("POST", path, { ...body, stream: true }, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new Failure(500, event.error.message, event.error.code);
      onEvent(event);
    }
  }
}

/* Asks for the API key; false: it was not given. */
let asking = null;
function askForKey() {
  const dialog = $("key-dialog");
  asking ??= new Promise((done) => {
    $("key-input").value = "";
    dialog.returnValue = "";
    dialog.addEventListener("close", () => {
      const given = $("key-input").value.trim();
      asking = null;
      if (dialog.returnValue === "use" && given) {
        key = given;
        sessionStorage.setItem("kakeya.key", key);
      }
      done(dialog.returnValue === "use" && given !== "");
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}
