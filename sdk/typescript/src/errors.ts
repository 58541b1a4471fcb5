// errors.ts - what a call throws.
//
// Every error is a KakeyaError and has `rpcCode`, the name that gRPC has for it.  Which class belongs
// to which code is one table, and which code belongs to an answer is the server's own rule
// (server/fault.c), read backwards.  The names are those of the Python client.

/** What is known of a failure beside its message. */
export interface ErrorDetails {
  /** gRPC's name of the reason, as in "NOT_FOUND"; undefined: no call was made. */
  rpcCode?: string | undefined;
  /** The status of HTTP; undefined: there was no answer. */
  status?: number | undefined;
  /** The server's word for programs, as in "session_busy". */
  code?: string | undefined;
  /** The member of the request that is wrong. */
  param?: string | undefined;
  /** Seconds after which the server asks to be called again. */
  retryAfter?: number | undefined;
  cause?: unknown;
}

/** A call failed. */
export class KakeyaError extends Error {
  readonly rpcCode: string | undefined;
  readonly status: number | undefined;
  readonly code: string | undefined;
  readonly param: string | undefined;
  readonly retryAfter: number | undefined;

  constructor(message: string, details: ErrorDetails = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.name = new.target.name;
    this.rpcCode = details.rpcCode;
    this.status = details.status;
    this.code = details.code;
    this.param = details.param;
    this.retryAfter = details.retryAfter;
  }
}

/** No session has this id, or it was closed (NOT_FOUND). */
export class SessionNotFoundError extends KakeyaError {}
/** An argument is wrong, or the tokens do not fit the context (INVALID_ARGUMENT). */
export class InvalidArgumentError extends KakeyaError {}
/** An invariant of the session does not hold: it can only be closed (FAILED_PRECONDITION). */
export class InvariantViolationError extends KakeyaError {}
/** Too many sessions or calls, or no memory (RESOURCE_EXHAUSTED). */
export class ResourceExhaustedError extends KakeyaError {}
/** The server does not know the call (UNIMPLEMENTED). */
export class UnimplementedError extends KakeyaError {}
/** The call was cancelled (CANCELLED). */
export class RpcCancelledError extends KakeyaError {}
/** Another call works on the session (ABORTED). */
export class SessionBusyError extends KakeyaError {}
/** The server is not there, loads its model, or is shutting down (UNAVAILABLE). */
export class UnavailableError extends KakeyaError {}
/** The call took longer than the server allows (DEADLINE_EXCEEDED). */
export class DeadlineExceededError extends KakeyaError {}
/** The server wants an API key, or another one (UNAUTHENTICATED). */
export class UnauthenticatedError extends KakeyaError {}
/** The server refuses this client (PERMISSION_DENIED). */
export class PermissionDeniedError extends KakeyaError {}
/** The engine or the device failed, or an answer cannot be read (INTERNAL). */
export class InternalError extends KakeyaError {}
/** This object was closed: no call was made. */
export class SessionClosedError extends KakeyaError {}

type ErrorClass = new (message: string, details?: ErrorDetails) => KakeyaError;

const classes: Record<string, ErrorClass> = {
  NOT_FOUND: SessionNotFoundError,
  INVALID_ARGUMENT: InvalidArgumentError,
  FAILED_PRECONDITION: InvariantViolationError,
  RESOURCE_EXHAUSTED: ResourceExhaustedError,
  UNIMPLEMENTED: UnimplementedError,
  CANCELLED: RpcCancelledError,
  ABORTED: SessionBusyError,
  UNAVAILABLE: UnavailableError,
  DEADLINE_EXCEEDED: DeadlineExceededError,
  UNAUTHENTICATED: UnauthenticatedError,
  PERMISSION_DENIED: PermissionDeniedError,
  INTERNAL: InternalError,
  DATA_LOSS: InternalError,
};

const byWord: Record<string, string> = {
  invariant_violation: "FAILED_PRECONDITION",
  out_of_memory: "RESOURCE_EXHAUSTED",
  data_loss: "DATA_LOSS",
};

const byStatus: Record<number, string> = {
  400: "INVALID_ARGUMENT",
  401: "UNAUTHENTICATED",
  403: "PERMISSION_DENIED",
  404: "NOT_FOUND",
  405: "UNIMPLEMENTED",
  408: "DEADLINE_EXCEEDED",
  409: "ABORTED",
  413: "RESOURCE_EXHAUSTED",
  429: "RESOURCE_EXHAUSTED",
  499: "CANCELLED",
  501: "UNIMPLEMENTED",
  503: "UNAVAILABLE",
  504: "DEADLINE_EXCEEDED",
};

// An error inside a stream comes without a status: its type says which it would have had.
const byType: Record<string, number> = {
  invalid_request_error: 400,
  exceed_context_size_error: 400,
  authentication_error: 401,
  permission_error: 403,
  not_found_error: 404,
  conflict_error: 409,
  rate_limit_error: 429,
  cancelled_error: 499,
  not_supported_error: 501,
  unavailable_error: 503,
  timeout_error: 504,
};

/** The error of this code. */
export function makeError(rpcCode: string, message: string, details: ErrorDetails = {}): KakeyaError {
  return new (classes[rpcCode] ?? KakeyaError)(message, { ...details, rpcCode });
}

function textOf(value: unknown): string | undefined {
  return typeof value === "string" ? value : undefined;
}

/** The error that an answer's JSON tells; status undefined: it came inside a stream. */
export function errorFromAnswer(
  status: number | undefined, body: unknown, retryAfter?: number,
): KakeyaError {
  const told = ((body as { error?: unknown } | null | undefined)?.error ?? {}) as Record<string, unknown>;
  const code = textOf(told["code"]);
  const seen = status ?? byType[textOf(told["type"]) ?? ""] ?? 500;
  const rpcCode = byWord[code ?? ""] ?? byStatus[seen] ?? "INTERNAL";
  const message = textOf(told["message"]) ?? `the server answered with the status ${seen}`;
  return makeError(rpcCode, message, { status: seen, code, param: textOf(told["param"]), retryAfter });
}
