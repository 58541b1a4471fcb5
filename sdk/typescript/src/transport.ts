// transport.ts - requests with fetch, and nothing else: no session, no meaning.

import { errorFromAnswer, makeError } from "./errors.js";

/** What stands in a request's body. */
export type Body = Record<string, unknown>;

/** An integer that JSON.stringify should write with all its digits. */
export class Digits {
  constructor(readonly text: string) {}
}

/** JSON without what is undefined; integers beyond 2**53 keep their digits. */
export function encode(body: Body): string {
  const members = Object.entries(body).filter(([, value]) => value !== undefined);
  const written = members.map(([name, value]) =>
    `${JSON.stringify(name)}:${value instanceof Digits ? value.text : JSON.stringify(value)}`);
  return `{${written.join(",")}}`;
}

/** Sends requests to one server. */
export class Transport {
  readonly base: string;
  private readonly headers: Record<string, string>;
  private readonly running = new Set<AbortController>(); // streams that are read
  private isClosed = false;

  constructor(address: string, apiKey: string | undefined, private readonly fetcher: typeof fetch) {
    this.base = baseOf(address);
    this.headers = { Accept: "application/json, text/event-stream" };
    if (apiKey !== undefined) this.headers["Authorization"] = `Bearer ${apiKey}`;
  }

  /** Sends it and returns the JSON of the answer. */
  async call(method: string, path: string, body?: Body, signal?: AbortSignal): Promise<any> {
    const answer = await this.open(method, path, body, signal);
    try {
      return await answer.json();
    } catch (why) {
      throw this.lost(why, signal);
    }
  }

  /** Sends it and returns the answer with its body still to come; refusals are thrown. */
  async open(method: string, path: string, body?: Body, signal?: AbortSignal): Promise<Response> {
    const request: RequestInit = { method, headers: this.headers };
    if (body !== undefined) {
      request.body = encode(body);
      request.headers = { ...this.headers, "Content-Type": "application/json" };
    }
    if (signal !== undefined) request.signal = signal;
    let answer: Response;
    try {
      answer = await this.fetcher(this.base + path, request);
    } catch (why) {
      throw this.lost(why, signal);
    }
    if (!answer.ok) throw await refusal(answer);
    return answer;
  }

  /** What a failure of the network is to the caller. */
  lost(why: unknown, signal: AbortSignal | undefined): Error {
    if (signal?.aborted) {
      return makeError("CANCELLED", "the call was cancelled", { cause: signal.reason });
    }
    const message = why instanceof Error ? why.message : String(why);
    return makeError("UNAVAILABLE", `no answer from ${this.base}: ${message}`, { cause: why });
  }

  /** A stream begins that `close` should end; the function that it returns forgets it. */
  watch(stream: AbortController): () => void {
    this.running.add(stream);
    return () => this.running.delete(stream);
  }

  /** Ends the streams that still run. */
  close(): void {
    this.isClosed = true;
    for (const stream of this.running) stream.abort();
  }

  get closed(): boolean {
    return this.isClosed;
  }
}

async function refusal(answer: Response): Promise<Error> {
  const retry = Number.parseFloat(answer.headers.get("Retry-After") ?? "");
  const body: unknown = await answer.json().catch(() => undefined);
  return errorFromAnswer(answer.status, body, Number.isNaN(retry) ? undefined : retry);
}

function baseOf(address: string): string {
  try {
    const url = new URL(address.includes("://") ? address : `http://${address}`);
    if (/^https?:$/.test(url.protocol) && !url.search && !url.hash && !url.username) {
      return url.href.replace(/\/+$/, "");
    }
  } catch {
    // said below
  }
  throw makeError("INVALID_ARGUMENT", `'${address}' is no address of a server: HOST:PORT, ` +
    "http://HOST:PORT or https://HOST:PORT", { param: "address" });
}
