// index.ts - client of a Kakeya server: sessions over HTTP and server-sent events, with fetch alone.

export { Client } from "./client.js";
export type { ClientOptions } from "./client.js";
export { Generation, Session } from "./session.js";
export {
  DeadlineExceededError, InternalError, InvalidArgumentError, InvariantViolationError, KakeyaError,
  PermissionDeniedError, ResourceExhaustedError, RpcCancelledError, SessionBusyError,
  SessionClosedError, SessionNotFoundError, UnauthenticatedError, UnavailableError,
  UnimplementedError,
} from "./errors.js";
export type { ErrorDetails } from "./errors.js";
export { StopReason } from "./types.js";
export type {
  Appended, CallOptions, GenerateOptions, GenerateResult, Message, MessageOptions, Piece,
  SamplingOptions, SessionInfo, SessionOptions,
} from "./types.js";
