// client.test.mjs - the client against a real server with the shipped model, and events as bytes.
// KAKEYA is the program, KAKEYA_SDK the folder of the compiled client.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { after, before, test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";

const here = new URL(".", import.meta.url);
const kakeya = process.env.KAKEYA ?? fileURLToPath(new URL("../../../build/kakeya", here));
const folder = process.env.KAKEYA_SDK ?? fileURLToPath(new URL("../dist", here));
const sdk = await import(pathToFileURL(`${folder}/index.js`));
const { EventReader } = await import(pathToFileURL(`${folder}/events.js`));
const { errorFromAnswer } = await import(pathToFileURL(`${folder}/errors.js`));
const { Client, StopReason } = sdk;

const text = "def main():";
const greedy = { temperature: 0, ignoreEos: true };
let server;
let address;

before(async () => {
  server = spawn(kakeya, ["serve", "--port", "0", "-t", "1", "-c", "4096"],
    { stdio: ["ignore", "ignore", "pipe"] });
  address = await new Promise((resolve, reject) => {
    let said = "";
    server.stderr.setEncoding("utf8");
    server.stderr.on("data", (more) => {
      said += more;
      const port = /listening on http:\/\/.*:(\d+)$/m.exec(said);
      if (port && said.includes("serve: ready:")) resolve(`127.0.0.1:${port[1]}`);
    });
    server.on("exit", () => reject(new Error(`the server ended: ${said}`)));
  });
});

after(() => new Promise((resolve) => {
  server.removeAllListeners("exit");
  server.on("exit", resolve);
  server.kill("SIGTERM");
}));

async function all(generation) {
  const out = [];
  for await (const one of generation) out.push(one);
  return out;
}

test("the surface of the prototype", async () => {
  const client = new Client(address);
  const s = await client.createSession({ clientLabel: "me", eosTokenIds: [5] });
  assert.match(s.sessionId, /^sess-[0-9a-f]{32}$/);
  assert.equal(s.lastResult, undefined);
  const ids = await client.tokenize(text);
  assert.equal(await s.append(ids), ids.length);
  const made = await all(s.generate({ maxTokens: 12, ...greedy }));
  assert.equal(made.length, 12);
  assert.equal(s.lastResult.stopReason, StopReason.MaxTokens);
  assert.equal(s.lastResult.generatedTokenCount, 12);
  assert.equal(s.lastResult.historyTruncatedDropped, 0);
  assert.ok(s.lastResult.totalDurationSeconds >= s.lastResult.prefillDurationSeconds);
  const info = await s.info();
  assert.equal(info.historyLength, ids.length + 12);
  assert.equal(info.clientLabel, "me");
  assert.ok(info.kvLiveBytes > 0);
  assert.equal(info.cacheInvariantInv1Violations, 0);
  assert.deepEqual(await s.tokens(), [...ids, ...made]);
  assert.equal(await s.close(), ids.length + 12);
  assert.equal(await s.close(), 0);
  await assert.rejects(() => s.append([1]), sdk.SessionClosedError);
  assert.throws(() => s.generate({ maxTokens: 1 }), sdk.SessionClosedError);
  await assert.rejects(() => s.info(), { name: "SessionNotFoundError", rpcCode: "NOT_FOUND", status: 404 });
  client.close();
  await assert.rejects(() => client.createSession(), sdk.SessionClosedError);
});

test("text, messages, forks", async () => {
  const client = new Client(`http://${address}/`);
  const s = await client.createSession();
  const appended = await s.appendText(text);
  assert.equal(appended.addedTokens, appended.historyLength);
  const fork = await s.fork();
  const pieces = await all(s.generatePieces({ maxTokens: 24, ...greedy }));
  const whole = pieces.map((p) => p.text).join("");
  assert.equal((await all(fork.generateText({ maxTokens: 24, ...greedy }))).join(""), whole);
  assert.equal(fork.lastResult.logitsHash, s.lastResult.logitsHash);
  const stopped = await s.fork({ at: appended.historyLength });
  const stop = whole.slice(6, 10);
  const cut = await all(stopped.generateText({ maxTokens: 24, stop, ...greedy }));
  assert.equal(cut.join(""), whole.slice(0, whole.indexOf(stop)));
  assert.equal(stopped.lastResult.stopReason, StopReason.StopText);
  const chat = await client.createSession();
  await chat.appendMessages([{ role: "user", content: "Name a sea." }], { enableThinking: false });
  await all(chat.generate({ maxTokens: 4, ...greedy }));
  const turn = await chat.fork({ turn: 1 });
  assert.deepEqual(await turn.tokens(), await client.session(chat.sessionId).tokens());
  assert.match(await client.detokenize(await chat.tokens()), /Name a sea\./);
  const listed = (await client.listSessions()).map((i) => i.sessionId);
  assert.ok(listed.includes(turn.sessionId));
  for (const one of [s, fork, stopped, chat, turn]) await one.close();
});

test("seeds have 64 bits, and the window says what it dropped", async () => {
  const client = new Client(address);
  const hashes = [];
  for (const seed of [1, "1", 18446744073709551615n, "18446744073709551615"]) {
    const s = await client.createSession({ temperature: 1 });
    await s.appendText(text);
    await all(s.generate({ maxTokens: 16, seed, ignoreEos: true }));
    hashes.push(s.lastResult.logitsHash);
    await s.close();
  }
  assert.equal(hashes[0], hashes[1]);
  assert.equal(hashes[2], hashes[3]);
  assert.notEqual(hashes[0], hashes[2]);
  const s = await client.createSession({ kvFull: "window", sink: 4, window: 64, chunk: 64 });
  for (const seed of [-1, 1.5, 2 ** 53, "x", "18446744073709551616"]) {
    assert.throws(() => s.generate({ maxTokens: 1, seed }), sdk.InvalidArgumentError);
  }
  await s.append(Array.from({ length: 256 }, (_, i) => 100 + i));
  await all(s.generate({ maxTokens: 2, ...greedy }));
  assert.equal(s.lastResult.historyTruncatedDropped, 256 - 64 - 4);
  await s.close();
});

test("leaving and aborting end the work on the server", async () => {
  const client = new Client(address);
  const s = await client.createSession();
  await s.appendText(text);
  for await (const token of s.generate({ maxTokens: 4000, ...greedy })) {
    assert.equal(typeof token, "number");
    break;
  }
  assert.equal(s.lastResult, undefined);
  assert.ok(await s.append([5]) < 4000); // waits until the server has noticed
  const abort = new AbortController();
  let came = 0;
  await assert.rejects(async () => {
    for await (const _ of s.generate({ maxTokens: 4000, signal: abort.signal, ...greedy })) {
      came += 1;
      abort.abort();
    }
  }, { name: "RpcCancelledError", rpcCode: "CANCELLED" });
  assert.ok(came >= 1);
  assert.equal((await all(s.generate({ maxTokens: 4, ...greedy }))).length, 4);
  await assert.rejects(() => s.append([5], { signal: AbortSignal.abort() }), sdk.RpcCancelledError);
  await assert.rejects(() => all(s.generate({ maxTokens: 4, signal: AbortSignal.abort() })),
    sdk.RpcCancelledError);
  const endless = s.generate({ maxTokens: 4000, ...greedy });
  await endless.next();
  client.close();
  await assert.rejects(() => all(endless), sdk.RpcCancelledError);
  await new Client(address).session(s.sessionId).close();
});

test("errors have the names of the Python client", async () => {
  const client = new Client(address);
  const s = await client.createSession();
  const wrong = { name: "InvalidArgumentError", rpcCode: "INVALID_ARGUMENT", status: 400 };
  await assert.rejects(() => s.append([10 ** 6]), { ...wrong, param: "tokens" });
  await assert.rejects(() => all(s.generate({ maxTokens: 0 })), { ...wrong, param: "max_tokens" });
  await assert.rejects(() => all(s.generate({ maxTokens: 1 })), wrong); // no history
  await assert.rejects(() => client.createSession({ kvFormat: "q3" }), { ...wrong, param: "kv_format" });
  await s.appendText(text);
  const running = s.generate({ maxTokens: 4000, ...greedy });
  await running.next();
  await assert.rejects(() => client.session(s.sessionId).append([5]),
    { name: "SessionBusyError", rpcCode: "ABORTED", code: "session_busy" });
  await running.return();
  await s.close();
  await assert.rejects(() => new Client("127.0.0.1:1").createSession(),
    { name: "UnavailableError", rpcCode: "UNAVAILABLE" });
  for (const bad of ["", "ftp://x", "http://u@x", "x:port"]) {
    assert.throws(() => new Client(bad), sdk.InvalidArgumentError, bad);
  }
  const names = { 401: "UnauthenticatedError", 403: "PermissionDeniedError", 405: "UnimplementedError",
    429: "ResourceExhaustedError", 499: "RpcCancelledError", 502: "InternalError",
    504: "DeadlineExceededError" };
  for (const [status, name] of Object.entries(names)) {
    assert.equal(errorFromAnswer(Number(status), undefined).name, name);
  }
  const violated = { error: { message: "m", type: "server_error", code: "invariant_violation" } };
  assert.equal(errorFromAnswer(undefined, violated).name, "InvariantViolationError");
});

test("sessions at the same time", async () => {
  const client = new Client(address);
  const run = async (prompt) => {
    const s = await client.createSession();
    await s.appendText(prompt);
    const tokens = await all(s.generate({ maxTokens: 24, ...greedy }));
    await s.close();
    return tokens;
  };
  const prompts = Array.from({ length: 16 }, (_, i) => `def f${i}(x):`);
  const alone = [await run(prompts[0]), await run(prompts[1])];
  const streams = await Promise.all(prompts.map(run));
  assert.deepEqual(streams.slice(0, 2), alone);
});

test("what is sent, and answers that are none", async () => {
  const sent = [];
  let answer = () => new Response('{"id": "sess-1"}');
  const client = new Client("https://a.example/kakeya/", {
    apiKey: "secret",
    fetch: async (url, init) => { sent.push([url, init]); return answer(); },
  });
  const s = await client.createSession({ clientLabel: "me", seed: "18446744073709551615", topK: 3 });
  const [url, init] = sent[0];
  assert.equal(url, "https://a.example/kakeya/v1/sessions");
  assert.equal(init.headers.Authorization, "Bearer secret");
  assert.equal(init.body, '{"seed":-1,"top_k":3,"label":"me"}');
  answer = () => new Response("<html>");
  await assert.rejects(() => s.tokens(), sdk.UnavailableError);
  answer = () => new Response("busy", { status: 429, headers: { "Retry-After": "3" } });
  await assert.rejects(() => s.tokens(), { name: "ResourceExhaustedError", retryAfter: 3 });
  answer = () => new Response("data: {\n\n");
  await assert.rejects(() => all(s.generate({ maxTokens: 1 })), sdk.InternalError);
  answer = () => new Response('data: {"token": 5, "text": "x"}\n\n'); // cut off
  await assert.rejects(() => all(s.generate({ maxTokens: 1 })), sdk.UnavailableError);
});

test("events, wherever they are cut", () => {
  const stream = 'data: {"a": "\u00e9"}\n\n: ping\n\nevent: x\ndata: two\ndata:lines\n\ndata: [DONE]\n\n';
  for (const form of [stream, stream.replaceAll("\n", "\r\n")]) {
    const bytes = new TextEncoder().encode(form);
    for (let cut = 1; cut <= bytes.length; cut += 1) {
      const reader = new EventReader();
      const found = [];
      for (let i = 0; i < bytes.length; i += cut) found.push(...reader.feed(bytes.subarray(i, i + cut)));
      assert.deepEqual(found, ['{"a": "\u00e9"}', "two\nlines", "[DONE]"]);
    }
  }
});
