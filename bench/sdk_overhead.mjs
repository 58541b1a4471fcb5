// sdk_overhead.mjs DIST ADDRESS SESSION TOKENS PAIRS - the arms of sdk_overhead.py in node: reading the
// bytes of a stream with fetch, and @kakeya/runtime.  Prints [wall, cpu] seconds of every turn.

import { pathToFileURL } from "node:url";

const [dist, address, sessionId, tokensText, pairsText] = process.argv.slice(2);
const tokens = Number(tokensText);
const { Client } = await import(pathToFileURL(`${dist}/index.js`));
const client = new Client(address);
const prompt = client.session(sessionId);

async function readFetch(session) {
  const answer = await fetch(`http://${address}/v1/sessions/${session.sessionId}/generate`, {
    method: "POST",
    body: JSON.stringify({ max_tokens: tokens, temperature: 0, ignore_eos: true, stream: true }),
  });
  const reader = answer.body.getReader();
  let bytes = 0;
  for (let step = await reader.read(); !step.done; step = await reader.read()) bytes += step.value.length;
  return bytes > 0 ? tokens : 0;
}

async function readNode(session) {
  let n = 0;
  for await (const piece of session.generatePieces({ maxTokens: tokens, temperature: 0, ignoreEos: true })) {
    n += piece.token === undefined ? 0 : 1;
  }
  return n;
}

const arms = { fetch: readFetch, node: readNode };
const got = { fetch: [], node: [] };
for (let i = 0; i <= Number(pairsText); i += 1) {
  for (const name of i % 2 === 0 ? ["fetch", "node"] : ["node", "fetch"]) {
    const session = await prompt.fork();
    const start = performance.now();
    const cpu = process.cpuUsage();
    const n = await arms[name](session);
    const used = process.cpuUsage(cpu);
    const took = [(performance.now() - start) / 1e3, (used.user + used.system) / 1e6];
    if (n !== tokens) throw new Error(`${name}: ${n} tokens`);
    await session.close();
    if (i > 0) got[name].push(took);
  }
}
console.log(JSON.stringify(got));
