/* settings.js - how answers are sampled, and how new sessions are made; kept in this browser. */

const FIELDS = ["system", "tools", "thinking", "mode", "temperature", "top_p", "top_k", "min_p",
                "repeat_penalty", "max_tokens", "seed", "kv_format", "kv_full", "kv_sliding",
                "window", "sink", "spec", "keep"];
const BITS = { bf16: 16, f32: 32, q8: 8.5, q4: 4.5, s8: 8.25 };
let props = null; /* of the server */

const field = (name) => $(`s-${name}`);

function setting(name) {
  const input = field(name);
  if (input.type === "checkbox") return input.checked;
  return input.value.trim();
}

const numberSetting = (name) => (setting(name) === "" ? undefined : Number(setting(name)));

function saveSettings() {
  const all = Object.fromEntries(FIELDS.map((name) => [name, setting(name)]));
  localStorage.setItem("kakeya.settings", JSON.stringify(all));
  drawSaving();
}

/* What was kept, or else the server's own choices. */
function loadSettings() {
  const kept = JSON.parse(localStorage.getItem("kakeya.settings") || "{}");
  const own = { ...props.sampling, kv_format: props.kv.format, kv_full: props.kv.full,
                kv_sliding: props.kv.sliding, spec: props.spec.proposer, keep: true,
                thinking: props.thinking, mode: props.chat ? "chat" : "text" };
  field("kv_format").replaceChildren(...props.kv_costs.formats.map((name) =>
    el("option", { value: name }, name)));
  for (const name of FIELDS) {
    const input = field(name), value = kept[name] ?? own[name];
    if (value === undefined) continue;
    if (input.type === "checkbox") input.checked = value === true;
    else input.value = typeof value === "number" ? String(+value.toFixed(4)) : value;
  }
  for (const name of ["kv_full", "kv_sliding"]) {
    const restored = field(name).querySelector("[value=restored]");
    restored.disabled = props.kv_costs.latent_rank === 0;
    if (restored.disabled && restored.selected) field(name).value = own[name];
  }
  drawSaving();
}

/* Members of a request that generates. */
function samplingBody() {
  const body = {};
  for (const name of ["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "max_tokens",
                      "seed"])
    if (numberSetting(name) !== undefined) body[name] = numberSetting(name);
  return body;
}

/* Members of a request that makes a session. */
function sessionBody(label) {
  const body = { label, spec: setting("spec") };
  for (const name of ["kv_format", "kv_full", "kv_sliding"]) body[name] = setting(name);
  for (const name of ["window", "sink"])
    if (numberSetting(name) !== undefined) body[name] = numberSetting(name);
  return body;
}

/* The declared tools; throws what is wrong with them. */
function toolsBody() {
  if (!setting("tools")) return {};
  try {
    return { tools: JSON.parse(setting("tools")) };
  } catch (error) {
    throw new Failure(0, `The tools are no JSON: ${error.message}`);
  }
}

/* ---- what a cache takes ---------------------------------------------------------------------- */

/* Bytes of K/V of n tokens, in pages of 64 rows, as a policy and a format keep them. */
function kvBytes(n, how) {
  const costs = props.kv_costs, page = (rows) => Math.ceil(rows / 64) * 64;
  const few = (how.sink || 4) + (how.window || 64) + (how.chunk || 64);
  const full = page(how.full === "exact" ? n : Math.min(n, few));
  const slid = page(Math.min(n, costs.sliding_window, how.sliding === "native" ? n : few));
  const share = (BITS[how.format] || 16) / 16;
  return share * (full * costs.full_bytes_per_token +
                  (slid * costs.sliding_bytes_most) / costs.sliding_window) + latentBytes(n, how);
}

/* Two bytes for each value of a latent. */
function latentBytes(n, how) {
  const restored = how.full === "restored" || how.sliding === "restored";
  return restored ? Math.ceil(n / 64) * 64 * props.kv_costs.latent_rank * 2 : 0;
}

const EVERYTHING = { format: "bf16", full: "exact", sliding: "native" };

/* What the chosen cache of new sessions saves with the whole context used. */
function drawSaving() {
  if (!props) return;
  const chosen = { format: setting("kv_format"), full: setting("kv_full"),
                   sliding: setting("kv_sliding"), window: numberSetting("window"),
                   sink: numberSetting("sink") };
  const takes = kvBytes(props.n_ctx, chosen), whole = kvBytes(props.n_ctx, EVERYTHING);
  $("saving").textContent = `A full context of ${count(props.n_ctx)} tokens takes about ` +
    `${bytes(takes)}; all rows in bf16 would take ${bytes(whole)}` +
    (takes < whole ? `: ${percent(whole - takes, whole)} saved.` : ".");
}

/* The same of a session as it is. */
function savedBy(info) {
  if (!info.kv.tokens) return "";
  const whole = kvBytes(info.kv.tokens, EVERYTHING);
  const what = `${info.kv.format}, ${info.kv.full} and ${info.kv.sliding} rows`;
  const takes = info.kv.bytes + latentBytes(info.kv.tokens, info.kv);
  const saved = takes < 0.98 * whole
    ? `, ${percent(whole - takes, whole)} less than all rows in bf16` : "";
  return `${bytes(takes)} of K/V (${what})${saved}`;
}
