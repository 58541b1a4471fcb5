// client.ts - a server by its address: Client.

import { SessionClosedError } from "./errors.js";
import { Session, bodyOfSampling } from "./session.js";
import { Transport } from "./transport.js";
import { CallOptions, SessionInfo, SessionOptions, readInfo } from "./types.js";

/** How a server is reached. */
export interface ClientOptions {
  /** One of the server's --api-key-file. */
  apiKey?: string;
  /** Instead of the global fetch. */
  fetch?: typeof fetch;
}

/** A server, by its address: HOST:PORT, or with http:// or https:// before it. */
export class Client {
  private readonly transport: Transport;

  constructor(readonly address: string = "localhost:8080", options: ClientOptions = {}) {
    const fetcher = options.fetch ?? ((input, init) => fetch(input, init));
    this.transport = new Transport(address, options.apiKey, fetcher);
  }

  get closed(): boolean {
    return this.transport.closed;
  }

  /** A session with an empty history. */
  async createSession(options: SessionOptions = {}): Promise<Session> {
    const body = {
      ...bodyOfSampling(options),
      label: options.clientLabel,
      stop_token_ids: options.eosTokenIds,
      context: options.context,
      kv_format: options.kvFormat,
      kv_sliding: options.kvSliding,
      kv_full: options.kvFull,
      sink: options.sink,
      window: options.window,
      chunk: options.chunk,
      spec: options.spec,
      draft_max: options.draftMax,
    };
    const made = await this.open().call("POST", "/v1/sessions", body, options.signal);
    return new Session(this.transport, made.id);
  }

  /** A session that is there already, by its id; the server is not asked. */
  session(sessionId: string): Session {
    return new Session(this.transport, sessionId);
  }

  /** All sessions, the newest first. */
  async listSessions(options: CallOptions = {}): Promise<SessionInfo[]> {
    const answer = await this.open().call("GET", "/v1/sessions", undefined, options.signal);
    return answer.data.map(readInfo);
  }

  /** The tokens of a text. */
  async tokenize(text: string, options: CallOptions = {}): Promise<number[]> {
    return (await this.open().call("POST", "/tokenize", { content: text }, options.signal)).tokens;
  }

  /** The text of tokens, special ones included. */
  async detokenize(tokens: number[], options: CallOptions = {}): Promise<string> {
    return (await this.open().call("POST", "/detokenize", { tokens }, options.signal)).content;
  }

  /** Ends the streams that still run; the sessions stay on the server. */
  close(): void {
    this.transport.close();
  }

  private open(): Transport {
    if (this.closed) throw new SessionClosedError(`the client of ${this.address} is closed`);
    return this.transport;
  }
}
