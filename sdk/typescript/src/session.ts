// session.ts - a session on a server: Session, and Generation, what it says as it comes.
//
// A generation that is left (break, return, an aborted signal) closes its connection, and the server
// ends the work at its next token.  Until it has, it answers that the session is in use; a call of the
// session that left it is made again for some seconds.

import {
  InternalError, RpcCancelledError, SessionBusyError, SessionClosedError, UnavailableError,
  errorFromAnswer, makeError,
} from "./errors.js";
import { EventReader } from "./events.js";
import { Body, Digits, Transport } from "./transport.js";
import {
  Appended, CallOptions, GenerateOptions, GenerateResult, Message, MessageOptions, Piece,
  SamplingOptions, SessionInfo, readAppended, readInfo, readResult,
} from "./types.js";

const busyMs = 5000; // longest wait for the server to notice that a stream was left
const busyPauseMs = 10;

function seedOf(seed: number | string | bigint | undefined): Digits | undefined {
  if (seed === undefined) return undefined;
  const whole = typeof seed === "number" ? Number.isSafeInteger(seed) : /^\d+$/.test(String(seed));
  const value = whole ? BigInt(seed) : -1n;
  if (value < 0n || value >= 1n << 64n) {
    throw makeError("INVALID_ARGUMENT", `the seed ${seed} is not from 0 to 2**64 - 1, or a number ` +
      "beyond 2**53 - 1: give it as a string", { param: "seed" });
  }
  return new Digits(BigInt.asIntN(64, value).toString()); // the server's JSON has signed integers
}

/** The members of a request that say how tokens are chosen. */
export function bodyOfSampling(o: SamplingOptions): Body {
  return {
    seed: seedOf(o.seed),
    temperature: o.temperature,
    top_p: o.topP,
    top_k: o.topK,
    min_p: o.minP,
    repeat_penalty: o.repeatPenalty,
    presence_penalty: o.presencePenalty,
    frequency_penalty: o.frequencyPenalty,
    repeat_last_n: o.repeatLastN,
  };
}

/** What a generation says, as it comes; the call is made when the first of it is asked for. */
export class Generation<T> implements AsyncIterableIterator<T> {
  private readonly pieces: AsyncGenerator<Piece, void, void>;
  private done: GenerateResult | undefined;

  /** Made by Session. */
  constructor(
    run: (tell: (result: GenerateResult) => void) => AsyncGenerator<Piece, void, void>,
    private readonly choose: (piece: Piece) => T | undefined,
  ) {
    this.pieces = run((result) => { this.done = result; });
  }

  /** What it did; undefined: it has not ended. */
  get result(): GenerateResult | undefined {
    return this.done;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async next(): Promise<IteratorResult<T, undefined>> {
    for (;;) {
      const step = await this.pieces.next();
      if (step.done) return { done: true, value: undefined };
      const value = this.choose(step.value);
      if (value !== undefined) return { done: false, value };
    }
  }

  async return(): Promise<IteratorResult<T, undefined>> {
    await this.pieces.return();
    return { done: true, value: undefined };
  }
}

/** A token history with its own K/V cache on the server; it only grows. */
export class Session {
  private isClosed = false;
  private last: GenerateResult | undefined;
  private left = false; // the last generation was given up before its end

  /** Made by Client. */
  constructor(private readonly transport: Transport, readonly sessionId: string) {}

  get closed(): boolean {
    return this.isClosed;
  }

  /** What the last generation did; undefined: there was none, or it failed. */
  get lastResult(): GenerateResult | undefined {
    return this.last;
  }

  /** Appends token ids and evaluates them; the length of the history then. */
  async append(tokens: number[], options: CallOptions = {}): Promise<number> {
    return (await this.appended({ tokens }, options.signal)).historyLength;
  }

  /** Appends text: with <bos> before the first; special strings become special tokens. */
  async appendText(text: string, options: CallOptions = {}): Promise<Appended> {
    return this.appended({ text }, options.signal);
  }

  /** Appends turns in the model's chat format, behind those that are there. */
  async appendMessages(messages: Message[], options: MessageOptions = {}): Promise<Appended> {
    return this.appended({
      messages,
      tools: options.tools,
      enable_thinking: options.enableThinking,
      add_generation_prompt: options.addGenerationPrompt,
    }, options.signal);
  }

  /** Continues the history; yields token ids. */
  generate(options: GenerateOptions): Generation<number> {
    return this.generation(options, (piece) => piece.token);
  }

  /** The same; yields text, whole characters at a time. */
  generateText(options: GenerateOptions): Generation<string> {
    return this.generation(options, (piece) => piece.text || undefined);
  }

  /** The same; yields tokens with their text. */
  generatePieces(options: GenerateOptions): Generation<Piece> {
    return this.generation(options, (piece) => piece);
  }

  /** What the server knows of it; of a closed one, SessionNotFoundError. */
  async info(options: CallOptions = {}): Promise<SessionInfo> {
    this.checkClient();
    return readInfo(await this.transport.call("GET", this.path(), undefined, options.signal));
  }

  /** The tokens of the history. */
  async tokens(options: CallOptions = {}): Promise<number[]> {
    this.check();
    return (await this.transport.call("GET", this.path("tokens"), undefined, options.signal)).tokens;
  }

  /** A second session with the first `at` tokens, or up to the end of `turn` generations. */
  async fork(options: CallOptions & { at?: number; turn?: number } = {}): Promise<Session> {
    this.check();
    const body = { at: options.at, turn: options.turn };
    const answer = await this.patiently(() =>
      this.transport.call("POST", this.path("fork"), body, options.signal));
    return new Session(this.transport, answer.id);
  }

  /** Ends it on the server; the length of its history, or 0 when it was closed before. */
  async close(options: CallOptions = {}): Promise<number> {
    if (this.isClosed) return 0;
    this.checkClient();
    const answer = await this.transport.call("DELETE", this.path(), undefined, options.signal);
    this.isClosed = true;
    return answer.history_length;
  }

  private path(verb = ""): string {
    return `/v1/sessions/${encodeURIComponent(this.sessionId)}${verb && "/"}${verb}`;
  }

  private checkClient(): void {
    if (this.transport.closed) throw new SessionClosedError("the client is closed");
  }

  private check(): void {
    this.checkClient();
    if (this.isClosed) throw new SessionClosedError(`the session ${this.sessionId} is closed`);
  }

  private async appended(body: Body, signal: AbortSignal | undefined): Promise<Appended> {
    this.check();
    return readAppended(await this.patiently(() =>
      this.transport.call("POST", this.path("append"), body, signal)));
  }

  private generation<T>(o: GenerateOptions, choose: (piece: Piece) => T | undefined): Generation<T> {
    this.check();
    const body = {
      ...bodyOfSampling(o),
      max_tokens: o.maxTokens,
      stop: o.stop,
      stop_token_ids: o.stopTokenIds,
      logit_bias: o.logitBias,
      ignore_eos: o.ignoreEos,
      stream: true,
    };
    return new Generation((tell) => this.run(body, o.signal, tell), choose);
  }

  private async *run(
    body: Body, signal: AbortSignal | undefined, tell: (result: GenerateResult) => void,
  ): AsyncGenerator<Piece, void, void> {
    const abort = new AbortController();
    const stop = (): void => abort.abort(signal?.reason);
    const forget = this.transport.watch(abort);
    if (signal?.aborted) stop();
    signal?.addEventListener("abort", stop);
    this.last = undefined;
    try {
      yield* this.stream(body, abort, tell);
    } catch (why) {
      throw abort.signal.aborted && !(why instanceof RpcCancelledError)
        ? makeError("CANCELLED", "the generation was cancelled", { cause: signal?.reason }) : why;
    } finally {
      signal?.removeEventListener("abort", stop);
      forget();
      this.left = this.last === undefined;
      if (this.left) abort.abort();
    }
  }

  private async *stream(
    body: Body, abort: AbortController, tell: (result: GenerateResult) => void,
  ): AsyncGenerator<Piece, void, void> {
    const start = Date.now();
    for (;;) {
      try {
        const answer = await this.transport.open("POST", this.path("generate"), body, abort.signal);
        yield* this.read(answer, abort.signal, tell);
        return;
      } catch (why) { // "in use" is said before anything else, so nothing is heard twice
        if (!this.again(why, start)) throw why;
      }
      await pause();
    }
  }

  private async *read(
    answer: Response, signal: AbortSignal, tell: (result: GenerateResult) => void,
  ): AsyncGenerator<Piece, void, void> {
    const events = new EventReader();
    if (!answer.body) throw new InternalError("the answer has no body", { rpcCode: "INTERNAL" });
    const reader = answer.body.getReader();
    try {
      for (;;) {
        const step = await reader.read().catch((why) => { throw this.transport.lost(why, signal); });
        if (step.done) break;
        for (const event of events.feed(step.value)) {
          if (event === "[DONE]") continue;
          const told = parse(event);
          if ("error" in told) throw errorFromAnswer(undefined, told);
          if ("done" in told) {
            this.last = readResult(told["done"]);
            tell(this.last);
          } else {
            yield { token: told["token"] as number | undefined, text: (told["text"] ?? "") as string };
          }
        }
      }
    } finally {
      await reader.cancel().catch(() => undefined);
    }
    if (!this.last) {
      throw new UnavailableError("the server ended a generation without its result",
        { rpcCode: "UNAVAILABLE" });
    }
  }

  private again(why: unknown, start: number): boolean {
    return this.left && why instanceof SessionBusyError && Date.now() - start < busyMs;
  }

  private async patiently<T>(call: () => Promise<T>): Promise<T> {
    const start = Date.now();
    for (;;) {
      try {
        const answer = await call();
        this.left = false;
        return answer;
      } catch (why) {
        if (!this.again(why, start)) throw why;
      }
      await pause();
    }
  }
}

function pause(): Promise<void> {
  return new Promise((resolve) => { setTimeout(resolve, busyPauseMs); });
}

function parse(event: string): Record<string, unknown> {
  try {
    const told: unknown = JSON.parse(event);
    if (typeof told === "object" && told !== null) return told as Record<string, unknown>;
  } catch {
    // said below
  }
  throw new InternalError(`an event of the stream cannot be read: ${event.slice(0, 60)}`,
    { rpcCode: "INTERNAL" });
}
