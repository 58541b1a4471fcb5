/* meters.js - what the engine does, in figures and two small drawings: speed and rounds of the
 * answer that comes, where the prompt came from, K/V by category, and the queue. */

const meters = { arrivals: [], rounds: [], tokens: 0, accepted: 0, rejected: 0, drawn: true };

function resetMeters() {
  Object.assign(meters, { arrivals: [], rounds: [], tokens: 0, accepted: 0, rejected: 0 });
  meters.drawn = false;
}

/* A token has come. */
function meterToken(event) {
  if (event.token == null) return;
  const rounds = meters.rounds;
  let last = rounds[rounds.length - 1];
  meters.tokens++;
  meters.arrivals.push(performance.now());
  if (event.round > 0 && last?.number !== event.round) {
    last = { number: event.round, accepted: 0, rejected: 0 };
    rounds.push(last);
  }
  if (event.drafted) meters.accepted++;
  if (last && event.drafted) last.accepted++;
  if (last && event.rejected) last.rejected += event.rejected.length;
  meters.rejected += event.rejected?.length || 0;
  meters.drawn = false;
}

/* Tokens of the last second, per second. */
function speedNow() {
  const now = performance.now();
  const list = meters.arrivals;
  let from = list.length;
  while (from > 0 && now - list[from - 1] < 1000) from--;
  const span = Math.max(0.05, (now - (list[from] ?? now)) / 1000);
  return (list.length - from) / span;
}

/* done: what the server says of the whole answer, where it has ended. */
function drawMeters(done) {
  if (meters.drawn && !done) return;
  meters.drawn = true;
  const rounds = done?.rounds ?? meters.rounds.length;
  const tokens = done?.generated_tokens ?? meters.tokens;
  const speed = done ? done.generated_tokens / Math.max(1e-6, done.decode_seconds) : speedNow();
  const drafted = meters.accepted + meters.rejected;
  $("m-speed").textContent = tokens ? rate(speed) : "–";
  $("m-round").textContent = rounds ? (tokens / rounds).toFixed(2) : "–";
  $("m-accepted").textContent = drafted ? percent(meters.accepted, drafted) : "–";
  $("m-tokens").textContent = tokens ? count(tokens) : "–";
  drawRounds();
}

/* A column per round: the model's own token, on it those that were accepted, and, hollow, those
 * that were rejected. */
function drawRounds() {
  const canvas = $("rounds");
  const scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  if (!width) return; /* not shown */
  if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
  if (canvas.height !== Math.round(height * scale)) canvas.height = Math.round(height * scale);
  const pen = canvas.getContext("2d");
  const colors = ["own", "yes", "no"].map((name) =>
    getComputedStyle(document.querySelector(`.legend .${name}`)).backgroundColor);
  const step = 7, shown = meters.rounds.slice(-Math.floor(width / step));
  const most = Math.max(4, ...shown.map((round) => 1 + round.accepted + round.rejected));
  const unit = (height - 2) / most;
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  shown.forEach((round, i) => {
    const x = i * step, draw = (from, n, color) => {
      pen.fillStyle = color;
      if (n > 0) pen.fillRect(x, height - (from + n) * unit, step - 2, n * unit - 1);
    };
    draw(0, 1, colors[0]);
    draw(1, round.accepted, colors[1]);
    draw(1 + round.accepted, round.rejected, colors[2]);
  });
  canvas.setAttribute("aria-label", `Rounds: ${count(meters.rounds.length)}; tokens accepted ` +
    `from drafts: ${count(meters.accepted)}; rejected: ${count(meters.rejected)}`);
}

/* How much of a prompt was in the cache: of `all` tokens `cached`. */
function drawPrompt(cached, all) {
  $("m-cached").textContent = all ? `${count(cached)} of ${count(all)} tokens` : "–";
  $("prompt-bar").value = all ? cached / all : 0;
}

const KV_CATEGORIES = [["kv.sliding", "sliding layers"], ["kv.full", "full layers"],
                       ["kv.drafter", "drafter"], ["kv.latents", "latents"]];

function drawMemory(memory) {
  const bar = $("kv-bar"), list = $("kv-list");
  const all = KV_CATEGORIES.reduce((sum, [name]) => sum + (memory[name] || 0), 0);
  bar.replaceChildren();
  list.replaceChildren();
  KV_CATEGORIES.forEach(([name, words], i) => {
    const n = memory[name] || 0;
    const part = el("i", { class: `kv${i}` });
    part.style.flexGrow = n;
    if (n) bar.append(part);
    list.append(el("li", {}, el("i", { class: `kv${i}` }), words, el("b", {}, bytes(n))));
  });
  $("m-kv").textContent = bytes(all);
}

function drawStats(stats) {
  $("m-queue").textContent = `${stats.running} running, ${stats.waiting} waiting`;
  $("m-held").textContent = `${stats.sessions.held} held, ${stats.sessions.resident} in memory`;
  drawMemory(stats.memory);
}
