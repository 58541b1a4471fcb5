// types.ts - what calls take and return: plain values.

/** Why a generation ended; the numbers are those of runtime.proto. */
export enum StopReason {
  Unspecified = 0,
  MaxTokens = 1,
  /** A stop id, which is the last token and part of the history. */
  Eos = 2,
  Cancelled = 3,
  /** Not used. */
  Truncated = 4,
  ContextFull = 5,
  StopText = 6,
}

/** How a token is chosen; what is not given is the session's own. */
export interface SamplingOptions {
  /** 0 to 2**64 - 1; a number beyond 2**53 - 1 as a string or a bigint. */
  seed?: number | string | bigint;
  /** 0: the likeliest token. */
  temperature?: number;
  topP?: number;
  /** 0: all. */
  topK?: number;
  minP?: number;
  repeatPenalty?: number;
  presencePenalty?: number;
  frequencyPenalty?: number;
  /** Tokens that the penalties look back over; -1: all. */
  repeatLastN?: number;
}

/** Of one generation. */
export interface GenerateOptions extends SamplingOptions {
  maxTokens: number;
  /** The first of these texts ends it; 16 at most. */
  stop?: string | string[];
  /** Beside the model's and the session's; 64 at most. */
  stopTokenIds?: number[];
  /** Added to the logits of these ids; -100 to 100. */
  logitBias?: Record<number, number>;
  /** No id ends it. */
  ignoreEos?: boolean;
  /** Aborting it ends the work on the server; the iteration throws an RpcCancelledError. */
  signal?: AbortSignal;
}

/** Of a session, from its beginning; what is not given is the server's own. */
export interface SessionOptions extends SamplingOptions {
  /** Ids that end a generation, beside the model's own; 16 at most. */
  eosTokenIds?: number[];
  /** Any text of up to 63 bytes, which listSessions shows. */
  clientLabel?: string;
  /** Most tokens of the history. */
  context?: number;
  kvFormat?: "bf16" | "f32" | "q8" | "q4" | "s8";
  kvSliding?: "native" | "window" | "restored";
  kvFull?: "exact" | "window" | "restored";
  sink?: number;
  window?: number;
  chunk?: number;
  spec?: "auto" | "none" | "dflash" | "ngram";
  draftMax?: number;
  signal?: AbortSignal;
}

/** Of a call that is not a generation. */
export interface CallOptions {
  signal?: AbortSignal;
}

/** A message of a conversation, in the shape of OpenAI's API. */
export interface Message {
  role: string;
  content?: string | null;
  [more: string]: unknown;
}

/** How messages are appended. */
export interface MessageOptions extends CallOptions {
  tools?: object[];
  enableThinking?: boolean;
  addGenerationPrompt?: boolean;
}

/** A token as it comes, with the text that is certain by it; the last piece may have no token. */
export interface Piece {
  token: number | undefined;
  text: string;
}

/** What an append did, in tokens. */
export interface Appended {
  historyLength: number;
  addedTokens: number;
  cachedTokens: number;
  evaluatedTokens: number;
  seconds: number;
}

/** What a generation did. */
export interface GenerateResult {
  stopReason: StopReason;
  generatedTokenCount: number;
  prefillDurationSeconds: number;
  totalDurationSeconds: number;
  /** Tokens that full layers under a window see no more. */
  historyTruncatedDropped: number;
  historyLength: number;
  /** Forward passes of the model. */
  rounds: number;
  draftedTokens: number;
  acceptedTokens: number;
  cachedTokens: number;
  evaluatedTokens: number;
  /** Of the logits of every chosen token, in order; 16 hexadecimal digits. */
  logitsHash: string;
}

/** What the server knows of a session. */
export interface SessionInfo {
  sessionId: string;
  historyLength: number;
  kvLiveBytes: number;
  cacheInvariantInv1Violations: number;
  cacheInvariantInv2Violations: number;
  cacheInvariantInv3Violations: number;
  idleSeconds: number;
  clientLabel: string;
  turns: number;
  context: number;
  busy: boolean;
  resident: boolean;
  stored: boolean;
  createdUnixSeconds: number;
  /** All that the server said. */
  raw: Record<string, unknown>;
}

type Told = any; // JSON of the server

const stopWords: Record<string, StopReason> = {
  max_tokens: StopReason.MaxTokens,
  eos: StopReason.Eos,
  cancelled: StopReason.Cancelled,
  context: StopReason.ContextFull,
  stop_text: StopReason.StopText,
};

export function readAppended(told: Told): Appended {
  return {
    historyLength: told.history_length,
    addedTokens: told.added_tokens,
    cachedTokens: told.cached_tokens,
    evaluatedTokens: told.evaluated_tokens,
    seconds: told.seconds,
  };
}

export function readResult(told: Told): GenerateResult {
  return {
    stopReason: stopWords[told.stop_reason] ?? StopReason.Unspecified,
    generatedTokenCount: told.generated_tokens,
    prefillDurationSeconds: told.prefill_seconds,
    totalDurationSeconds: told.prefill_seconds + told.decode_seconds,
    historyTruncatedDropped: told.dropped_tokens ?? 0,
    historyLength: told.history_length,
    rounds: told.rounds,
    draftedTokens: told.drafted_tokens,
    acceptedTokens: told.accepted_tokens,
    cachedTokens: told.cached_tokens,
    evaluatedTokens: told.evaluated_tokens,
    logitsHash: told.logits_hash,
  };
}

export function readInfo(told: Told): SessionInfo {
  return {
    sessionId: told.id,
    historyLength: told.history_length,
    kvLiveBytes: told.kv.bytes,
    cacheInvariantInv1Violations: told.invariant_violations[0],
    cacheInvariantInv2Violations: told.invariant_violations[1],
    cacheInvariantInv3Violations: told.invariant_violations[2],
    idleSeconds: told.idle_seconds,
    clientLabel: told.label,
    turns: told.turns,
    context: told.context,
    busy: told.busy,
    resident: told.resident,
    stored: told.stored,
    createdUnixSeconds: told.created,
    raw: told,
  };
}
