"""native.py - the engine in this process, through libkakeya (include/kakeya.h).

    with Engine("models/tiny/verifier") as engine, engine.session() as session:
        session.append_text("def main():")
        print(session.generate(max_tokens=32, temperature=0).text)

An engine is a device, its threads and one model; its sessions share it.  Calls run without the
interpreter's lock, so sessions in several threads run at the same time and share forward passes; a
session is used by one thread at a time, and a second one gets a `SessionBusyError`.  An object that is
in use cannot be closed, so no call ever works on freed memory.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import functools
import json
import os
import weakref
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Mapping, Sequence, TypedDict

from . import _abi, errors
from ._library import Handle, Path, call, encoded, ids_array, load_library, plain
from .options import CacheOptions, SamplingOptions, check
from .types import GenerateResult, StopReason

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

__all__ = ["Completion", "Engine", "EngineOptions", "LogProbs", "NativeGenerateOptions", "Session",
           "Span", "Tokenizer", "load_library", "render_chat"]

# ---- tokenizer and chat -------------------------------------------------------------------------


class Tokenizer:
    """Text to tokens and back; many threads may use one."""

    def __init__(self, path: Path, *, library: Path | None = None) -> None:
        """path: a folder with tokenizer.json, a tokenizer.json, or a GGUF file."""
        self._library = load_library(library)
        out = ctypes.c_void_p()
        call(self._library, "kk_tokenizer_open", ctypes.byref(out), os.fsencode(path))
        self._handle = Handle("tokenizer", out.value or 0, self._library.kk_tokenizer_close)
        self._owner: Engine | None = None

    @classmethod
    def _of(cls, engine: Engine) -> Tokenizer:
        """The engine's own, which lives as long as it does."""
        self = cls.__new__(cls)
        self._library, self._owner, self._handle = engine._library, engine, engine._handle
        return self

    @contextlib.contextmanager
    def _use(self) -> Iterator[int]:
        with self._handle.use() as pointer:
            yield self._library.kk_engine_tokenizer(pointer) if self._owner else pointer

    def __len__(self) -> int:
        with self._use() as tok:
            return int(self._library.kk_tokenizer_size(tok))

    def special(self, text: str) -> int | None:
        """The id of a special token by its text, such as "<bos>"; None: there is none."""
        with self._use() as tok:
            found = int(self._library.kk_tokenizer_special(tok, text.encode()))
        return found if found >= 0 else None

    def encode(self, text: str | bytes, *, bos: bool = False, special: bool = False) -> list[int]:
        """bos: <bos> comes first; special: special strings become special tokens."""
        data = text.encode() if isinstance(text, str) else text
        flags = _abi.KK_ENCODE_BOS * bos | _abi.KK_ENCODE_SPECIAL * special
        with self._use() as tok:
            return self._ids("kk_encode", tok, data, len(data), flags)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **more: Any) -> list[int]:
        """A conversation in the model's format; `more` as `render_chat` has it."""
        data = _chat_json(messages, more)
        with self._use() as tok:
            return self._ids("kk_chat_encode", tok, data, len(data))

    def decode_bytes(self, tokens: Iterable[int], *, special: bool = False) -> bytes:
        """special: special tokens are written as their text, else left out."""
        ids = list(tokens)
        text, n = ctypes.c_void_p(), ctypes.c_size_t()
        with self._use() as tok:
            call(self._library, "kk_decode", tok, ids_array(ids), len(ids), special,
                  ctypes.byref(text), ctypes.byref(n))
        return _taken(self._library, text, n)

    def decode(self, tokens: Iterable[int], *, special: bool = False) -> str:
        """The same; bytes that are no UTF-8 become U+FFFD."""
        return self.decode_bytes(tokens, special=special).decode("utf-8", "replace")

    def close(self) -> None:
        """Frees it; an engine's own ends with the engine."""
        if self._owner is None:
            self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()

    def _ids(self, name: str, *arguments: Any) -> list[int]:
        ids, n = ctypes.POINTER(ctypes.c_int32)(), ctypes.c_size_t()
        call(self._library, name, *arguments, ctypes.byref(ids), ctypes.byref(n))
        try:
            return ids[: n.value]
        finally:
            self._library.kk_free(ids)


def _taken(library: ctypes.CDLL, text: ctypes.c_void_p, n: ctypes.c_size_t) -> bytes:
    try:
        return ctypes.string_at(text.value or 0, n.value) if n.value else b""
    finally:
        library.kk_free(text)


def _chat_json(messages: Sequence[Mapping[str, Any]], more: Mapping[str, Any]) -> bytes:
    return json.dumps({"messages": list(messages), "add_generation_prompt": True, **more}).encode()


def render_chat(messages: Sequence[Mapping[str, Any]], *, library: Path | None = None,
                **more: Any) -> str:
    """A conversation as the model's format writes it.

    more: tools, enable_thinking, add_generation_prompt (here true unless it is given), in the shapes
    of OpenAI's API.
    """
    lib, data = load_library(library), _chat_json(messages, more)
    text, n = ctypes.c_void_p(), ctypes.c_size_t()
    call(lib, "kk_chat_render", data, len(data), ctypes.byref(text), ctypes.byref(n))
    return _taken(lib, text, n).decode()


@dataclass(frozen=True, slots=True)
class Span:
    """A part of an answer: "text", "thought" or "call", with what is added to it."""

    kind: str
    part: int  #: spans with one number are one part; a call is one span
    text: str
    name: str | None  #: of a call: its function
    arguments: str | None  #: of a call: a JSON object


class _Answer:
    """What a model writes, taken apart as it comes."""

    KINDS = ("text", "thought", "call")

    def __init__(self, library: ctypes.CDLL, tokenizer: int, raw: bool, stops: Sequence[str]) -> None:
        self._library = library
        self._stops = (ctypes.c_char_p * len(stops))(*[s.encode() for s in stops])
        opts = _abi.kk_answer_opts(tok=tokenizer, raw=raw, stops=self._stops, n_stops=len(stops))
        out = ctypes.c_void_p()
        call(library, "kk_answer_new", ctypes.byref(out), ctypes.byref(opts))
        self._pointer = out

    def push(self, token: int) -> list[Span]:
        return self._spans("kk_answer_push", token)

    def finish(self) -> list[Span]:
        return self._spans("kk_answer_finish")

    @property
    def stopped(self) -> bool:
        return bool(self._library.kk_answer_stopped(self._pointer))

    def free(self) -> None:
        self._library.kk_answer_free(self._pointer)

    def _spans(self, name: str, *arguments: Any) -> list[Span]:
        spans, n = ctypes.POINTER(_abi.kk_answer_span)(), ctypes.c_size_t()
        call(self._library, name, self._pointer, *arguments, ctypes.byref(spans), ctypes.byref(n))
        return [self._span(spans[i]) for i in range(n.value)]

    def _span(self, s: _abi.kk_answer_span) -> Span:
        text = ctypes.string_at(s.text, s.len) if s.len else b""
        return Span(self.KINDS[s.kind], s.part, text.decode("utf-8", "replace"),
                    s.name.decode() if s.name else None,
                    s.arguments.decode() if s.arguments else None)


# ---- engine -------------------------------------------------------------------------------------


class EngineOptions(TypedDict, total=False):
    """As kk_engine_opts has them; each is optional."""

    synthetic: str  #: instead of a model: "26b-a4b:q4_0[:layers]", random weights
    drafter: Path  #: DFlash folder or GGUF file
    draft_type: str
    draft_embed_scale: str
    draft_vocab: str  #: of its short head: a number of ids, FILE or FILE:IDS of counts, "full"
    draft_bidirectional: bool
    projection: Path  #: folder of a projection, to restore rows with
    projection_type: str
    device: str  #: "cpu", "cuda", "mlx"
    isa: str
    threads: int  #: 0: all cores this process may run on
    max_rows: int
    max_logits: int
    no_pin: bool
    mlock: bool
    huge_pages: bool
    memory_limit: int  #: bytes of K/V and workspace; 0: none
    gpu_memory: int  #: of cuda: bytes of the GPU's memory that it may take; 0: all
    key_cache: int  #: of cpu: bytes of rebuilt keys kept between tokens; 0: the usual, -1: none
    ahead: int
    exact_rows: int  #: of mlx: rows of a round measured to be exact; -1: no limit
    exact_packed_rows: int  #: the same, of weights that are packed
    exact_page_rows: int  #: the same, of kernels over K/V pages; 0: they are not used
    exact_measured: bool  #: these were measured here; else they are asked for


class Engine:
    """A device, its threads and one model; many threads may use one."""

    def __init__(self, model: Path | None = None, *, library: Path | None = None,
                 **options: Unpack[EngineOptions]) -> None:
        """model: a Hugging Face folder or a GGUF file."""
        self._library = load_library(library)
        given = {name: encoded(v) for name, v in check(options, EngineOptions).items()}
        opts = _abi.kk_engine_opts(model=encoded(model), **given)
        out = ctypes.c_void_p()
        call(self._library, "kk_engine_open", ctypes.byref(out), ctypes.byref(opts))
        self._handle = Handle("engine", out.value or 0, self._library.kk_engine_close)
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()

    @property
    def closed(self) -> bool:
        return self._handle.closed

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's own."""
        with self._handle.use() as engine:
            if not self._library.kk_engine_tokenizer(engine):
                raise errors.make("UNIMPLEMENTED", "the model came without a tokenizer")
        return Tokenizer._of(self)

    @property
    def stop_ids(self) -> list[int]:
        """Ids that end a generation, from the model's own files."""
        n = ctypes.c_size_t()
        with self._handle.use() as engine:
            ids = self._library.kk_engine_stop_ids(engine, ctypes.byref(n))
            return [int(i) for i in ids[: n.value]]

    def info(self) -> dict[str, Any]:
        """What kk_model_info has: name, layers, vocab, context, bytes of weights, ..."""
        return self._told("kk_engine_info", _abi.kk_model_info())

    def device(self) -> dict[str, Any]:
        """The device as the engine sees it, and why it is this one."""
        return self._told("kk_engine_device", _abi.kk_device_info())

    def sharing(self) -> dict[str, Any]:
        """How sessions shared forward passes since the engine was opened."""
        return self._told("kk_engine_sharing", _abi.kk_sharing())

    def fingerprints(self) -> dict[str, Any]:
        """Which weights these are."""
        return self._told("kk_engine_fingerprints", _abi.kk_fingerprints())

    def drafter(self) -> dict[str, Any] | None:
        """The drafter; None: there is none."""
        return self._told_if("kk_engine_drafter", _abi.kk_drafter_info())

    def projection(self) -> dict[str, Any] | None:
        """The projection that rebuilds rows; None: there is none."""
        return self._told_if("kk_engine_projection", _abi.kk_projection_info())

    def memory(self) -> dict[str, int]:
        """Bytes by category, as the allocator counts them."""
        got = (ctypes.c_int64 * _abi.KK_MEM_CATEGORIES)()
        with self._handle.use() as engine:
            self._library.kk_engine_memory(engine, got)
        name = self._library.kk_mem_category_name
        return {name(i).decode(): int(n) for i, n in enumerate(got)}

    def session(self, **options: Unpack[CacheOptions]) -> Session:
        """A session with an empty history."""
        opts = self._session_opts(options)
        out = ctypes.c_void_p()
        with self._handle.use() as engine:
            call(self._library, "kk_session_new", ctypes.byref(out), engine, ctypes.byref(opts))
            return Session._made(self, out.value or 0)

    def load(self, path: Path, **options: Unpack[CacheOptions]) -> Session:
        """A session that `Session.save` wrote; `spec`, `draft_max` and `context` may change."""
        opts = self._session_opts(options)
        out, exact = ctypes.c_void_p(), ctypes.c_bool()
        with self._handle.use() as engine:
            call(self._library, "kk_session_load", ctypes.byref(out), engine, os.fsencode(path),
                  ctypes.byref(opts), ctypes.byref(exact))
            return Session._made(self, out.value or 0, exact.value)

    def close(self) -> None:
        """Closes its sessions and frees it; refused with `SessionBusyError` while one is in use."""
        for session in list(self._sessions):
            session.close()
        self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self._handle.close()

    def _told(self, name: str, struct: ctypes.Structure) -> dict[str, Any]:
        with self._handle.use() as engine:
            getattr(self._library, name)(engine, ctypes.byref(struct))
        return plain(struct)

    def _told_if(self, name: str, struct: ctypes.Structure) -> dict[str, Any] | None:
        with self._handle.use() as engine:
            there = getattr(self._library, name)(engine, ctypes.byref(struct))
        return plain(struct) if there else None

    def _session_opts(self, options: Mapping[str, Any]) -> _abi.kk_session_opts:
        given = {n: v for n, v in check(options, CacheOptions).items() if v is not None}
        opts = _abi.kk_session_opts(ctx=given.pop("context", 0))
        if "kv_format" in given:
            format = _abi.Enum()
            name = given.pop("kv_format")
            if not self._library.kk_kv_format_named(name.encode(), ctypes.byref(format)):
                raise errors.make("INVALID_ARGUMENT", f"there is no K/V format {name!r}",
                                  param="kv_format")
            opts.kv_format = format.value
        keeps = ("window", "restored")
        for kind, everything in ("kv_sliding", "native"), ("kv_full", "exact"):
            setattr(opts, kind, _word(given.pop(kind, everything), (everything, *keeps), kind))
        specs = [self._library.kk_spec_name(i).decode() for i in range(_abi.KK_SPEC_NGRAM + 1)]
        opts.spec = _word(given.pop("spec", specs[0]), specs, "spec")
        for name, value in given.items():
            setattr(opts, name, value)
        return opts


def _word(word: str, words: Sequence[str], name: str) -> int:
    if word not in words:
        raise errors.make("INVALID_ARGUMENT", f"{name} is {word!r}: it must be one of "
                          f"{', '.join(words)}", param=name)
    return words.index(word)


# ---- session ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogProbs:
    """ln of the probability of the token that was chosen, and of the likeliest ones."""

    token: int
    logprob: float
    best: list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Completion:
    """What a generation made."""

    tokens: list[int]
    text: str  #: without special tokens; empty where the model has no tokenizer
    result: GenerateResult


class NativeGenerateOptions(SamplingOptions, total=False):
    """Of one generation; what is not given is off, and a temperature that is not given is 0."""

    stop: str | Sequence[str] | None  #: the first of these texts ends it
    stop_token_ids: Sequence[int] | None  #: beside the model's own
    logit_bias: Mapping[int, float] | None  #: -inf: the token is never chosen
    ignore_eos: bool | None
    allowed: Iterable[int] | None  #: ids that may be chosen; None: all
    #: The same by position: ids that may follow these tokens, None: those of `allowed`.  It must
    #: depend on the tokens alone, may be called in another thread, and must call nothing here.
    allowed_at: Callable[[list[int]], Iterable[int] | None] | None
    on_token: Callable[[int], object] | None  #: called as each is chosen; False ends it
    on_text: Callable[[str], object] | None  #: called with text, whole characters; False ends it
    on_logprobs: Callable[[LogProbs], object] | None  #: called just before on_token
    n_logprobs: int | None  #: how many of the likeliest on_logprobs gets; 20 at most


class Session:
    """One token history with its K/V cache; made by `Engine.session`."""

    def __init__(self) -> None:
        raise TypeError("sessions are made by Engine.session, Engine.load and Session.fork")

    @classmethod
    def _made(cls, engine: Engine, pointer: int, exact: bool = True) -> Session:
        self = cls.__new__(cls)
        self._library = engine._library
        self._engine = engine
        self._exact = exact
        engine._handle.acquire()  # until it is freed, so that the engine outlives it
        self._handle = Handle("session", pointer, functools.partial(_free_session, engine))
        engine._sessions.add(self)
        return self

    # Set by _made: __init__ refuses, so that no session is without its engine.
    _library: ctypes.CDLL
    _engine: Engine
    _exact: bool
    _handle: Handle

    @property
    def closed(self) -> bool:
        return self._handle.closed

    @property
    def exact(self) -> bool:
        """Whether a loaded session gives the tokens and logits of the saved one, to the bit."""
        return self._exact

    @property
    def context(self) -> int:
        """Most tokens of the history."""
        with self._handle.use(alone=True) as s:
            return int(self._library.kk_session_ctx(s))

    def __len__(self) -> int:
        with self._handle.use(alone=True) as s:
            return int(self._library.kk_session_len(s))

    def tokens(self) -> list[int]:
        """The tokens of the history."""
        with self._handle.use(alone=True) as s:
            n = self._library.kk_session_len(s)
            return [int(t) for t in self._library.kk_session_tokens(s)[:n]] if n else []

    def append(self, tokens: Iterable[int], *,
               progress: Callable[[int, int], object] | None = None) -> int:
        """Appends token ids and evaluates them; the length of the history then.

        progress: called with the tokens done and in all after each chunk; False stops, and the
        session is as it was (`RpcCancelledError`).
        """
        ids = list(tokens)
        calls = _Callbacks()
        watch = _abi.kk_progress(calls.guard_bool(
            lambda _, done, total: progress(done, total) if progress else True))
        with self._handle.use(alone=True) as s, calls:
            call(self._library, "kk_session_append", s, ids_array(ids), len(ids),
                  watch if progress else _abi.kk_progress(), None)
            return int(self._library.kk_session_len(s))

    def append_text(self, text: str) -> int:
        """Appends text: with <bos> before the first; special strings become special tokens."""
        return self.append(self._engine.tokenizer.encode(text, bos=len(self) == 0, special=True))

    def generate(self, max_tokens: int = 0, **options: Unpack[NativeGenerateOptions]) -> Completion:
        """Continues the history; 0 tokens: until a stop id comes or the context is full.

        What a callback raises is raised here, after the generation was ended.
        """
        running = _Generation(self, check(options, NativeGenerateOptions))
        with self._handle.use(alone=True) as s:
            return running.run(s, max_tokens)

    def fork(self, at: int | None = None) -> Session:
        """A second session with the first `at` tokens; pages are shared until they are written."""
        out = ctypes.c_void_p()
        with self._handle.use(alone=True) as s, self._engine._handle.use():
            if at is None:
                call(self._library, "kk_session_fork", ctypes.byref(out), s)
            else:
                call(self._library, "kk_session_fork_at", ctypes.byref(out), s, at, None)
            return Session._made(self._engine, out.value or 0)

    def rewind(self, length: int) -> int:
        """Takes the history back to so many tokens; how many had to be evaluated again."""
        evaluated = ctypes.c_int32()
        with self._handle.use(alone=True) as s:
            call(self._library, "kk_session_rewind", s, length, ctypes.byref(evaluated))
        return evaluated.value

    def checkpoint(self) -> None:
        """Marks this point, so that a later rewind or fork to it is free."""
        with self._handle.use(alone=True) as s:
            call(self._library, "kk_session_checkpoint", s)

    def logits(self) -> array.array[float]:
        """Of the last token, after the soft-cap: one float for each id of the vocabulary."""
        out = ctypes.POINTER(ctypes.c_float)()
        with self._handle.use(alone=True) as s:
            call(self._library, "kk_session_logits", s, ctypes.byref(out))
            size = self._engine.info()["vocab"] * ctypes.sizeof(ctypes.c_float)
            return array.array("f", ctypes.string_at(out, size))

    def kv_bytes(self) -> int:
        """Of its cache, pages that it shares included."""
        use = _abi.kk_cache_use()
        with self._handle.use(alone=True) as s:
            self._library.kk_session_cache(s, ctypes.byref(use))
        return int(use.kv_bytes)

    def save(self, path: Path) -> None:
        """Writes history and caches to a file that `Engine.load` reads; replaces one that is there."""
        with self._handle.use(alone=True) as s:
            call(self._library, "kk_session_save", s, os.fsencode(path))

    def close(self) -> None:
        """Frees it; a second time this does nothing."""
        self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self._handle.close()


def _free_session(engine: Engine, pointer: int) -> None:
    engine._library.kk_session_free(pointer)
    engine._handle.release()


class _Callbacks:
    """Callbacks of C: what one raises ends the work, and is raised at the end of a `with`."""

    def __init__(self) -> None:
        self.raised: BaseException | None = None

    def guard_bool(self, function: Callable[..., object]) -> Callable[..., bool]:
        def guarded(*arguments: Any) -> bool:
            if self.raised is not None:
                return False
            try:
                return function(*arguments) is not False
            except BaseException as why:  # it must not pass through C
                self.raised = why
                return False
        return guarded

    def __enter__(self) -> _Callbacks:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self.raised is not None:
            raise self.raised


class _Generation:
    """One call of kk_generate: its options, its callbacks, and what came of it."""

    STOPS = {_abi.KK_STOP_LENGTH: StopReason.MAX_TOKENS, _abi.KK_STOP_EOS: StopReason.EOS,
             _abi.KK_STOP_CALLBACK: StopReason.CANCELLED,
             _abi.KK_STOP_CONTEXT: StopReason.CONTEXT_FULL}

    def __init__(self, session: Session, options: Mapping[str, Any]) -> None:
        self._library = session._library
        self._engine = session._engine
        self._given = {name: v for name, v in options.items() if v is not None}
        self._calls = _Callbacks()
        self._tokens: list[int] = []
        self._texts: list[str] = []
        self._answer: _Answer | None = None
        self._masks: list[Any] = []  # kept while C may read them
        self._dropped = 0

    def run(self, session: int, max_tokens: int) -> Completion:
        result, self._dropped = _abi.kk_result(), self._dropped_tokens(session)
        tok = self._library.kk_engine_tokenizer(self._engine._handle.acquire())
        try:
            if tok:
                stop = self._given.get("stop", ())
                self._answer = _Answer(self._library, tok, True, [stop] if isinstance(stop, str) else stop)
            elif "stop" in self._given or "on_text" in self._given:
                raise errors.make("UNIMPLEMENTED", "the model came without a tokenizer")
            opts = self._options(max_tokens)
            on_token = _abi.kk_on_token(self._calls.guard_bool(self._on_token))
            with self._calls:
                call(self._library, "kk_generate", session, ctypes.byref(opts), on_token, None,
                      ctypes.byref(result))
                if self._answer:
                    self._say(self._answer.finish())
            return self._completion(session, result)
        finally:
            if self._answer:
                self._answer.free()
            self._engine._handle.release()

    def _dropped_tokens(self, session: int) -> int:
        """Tokens that full layers under a window see no more, as the server counts them."""
        opts = _abi.kk_session_opts()
        self._library.kk_session_options(session, ctypes.byref(opts))
        if opts.kv_full != _abi.KK_KEEP_WINDOW or opts.chunk < 1:
            return 0
        length = self._library.kk_session_len(session)
        kept = max(opts.window, 0) + max(opts.sink, 0)
        return max(int(length) // int(opts.chunk) * int(opts.chunk) - int(kept), 0)

    def _on_token(self, _: Any, token: int) -> object:
        self._tokens.append(token)
        goes_on = self._given["on_token"](token) if "on_token" in self._given else True
        if self._answer:
            said = self._say(self._answer.push(token))
            goes_on = goes_on is not False and said and not self._answer.stopped
        return goes_on

    def _say(self, spans: list[Span]) -> bool:
        goes_on = True
        for text in (span.text for span in spans if span.text):
            self._texts.append(text)
            if "on_text" in self._given:
                goes_on &= self._given["on_text"](text) is not False
        return goes_on

    def _completion(self, session: int, r: _abi.kk_result) -> Completion:
        stop = self.STOPS.get(r.stop, StopReason.UNSPECIFIED)
        if self._answer and self._answer.stopped:
            stop = StopReason.STOP_TEXT
        length = self._library.kk_session_len(session)
        return Completion(self._tokens, "".join(self._texts), GenerateResult(
            stop_reason=stop, generated_token_count=r.n_tokens, prefill_duration_seconds=0.0,
            total_duration_seconds=r.decode_s, history_truncated_dropped=self._dropped,
            history_length=length,
            rounds=r.rounds, drafted_tokens=r.spec.drafted, accepted_tokens=r.spec.accepted,
            cached_tokens=length - r.n_tokens, evaluated_tokens=0,
            logits_hash=f"{r.logits_hash:016x}"))

    def _options(self, max_tokens: int) -> _abi.kk_generate_opts:
        g = self._given
        opts = _abi.kk_generate_opts(max_tokens=max_tokens, sampling=self._sampling(),
                                     ignore_eos=bool(g.get("ignore_eos", False)))
        stop_ids = list(g.get("stop_token_ids", ()))
        opts.stop_ids, opts.n_stop_ids = ids_array(stop_ids), len(stop_ids)
        bias = list(g.get("logit_bias", {}).items())
        opts.bias, opts.n_bias = (_abi.kk_logit_bias * len(bias))(*bias), len(bias)
        if "allowed" in g:
            opts.mask = self._mask(g["allowed"])
        if "allowed_at" in g:
            opts.mask_at = _abi.kk_mask_at(self._mask_at)
        if "on_logprobs" in g:
            opts.n_logprobs = g.get("n_logprobs", 0)
            opts.on_logprobs = _abi.kk_on_logprobs(self._on_logprobs)
        return opts

    def _sampling(self) -> _abi.kk_sampling:
        g = self._given
        return _abi.kk_sampling(
            temp=g.get("temperature", 0.0), top_k=g.get("top_k", 0), top_p=g.get("top_p", 0.0),
            min_p=g.get("min_p", 0.0), repeat_penalty=g.get("repeat_penalty", 0.0),
            presence_penalty=g.get("presence_penalty", 0.0),
            frequency_penalty=g.get("frequency_penalty", 0.0),
            penalty_last_n=g.get("repeat_last_n", 0), seed=g.get("seed", 0))

    def _mask(self, allowed: Iterable[int]) -> Any:
        """A bit for each id of the vocabulary."""
        vocab = int(self._engine.info()["vocab"])
        words = (ctypes.c_uint32 * ((vocab + 31) // 32))()
        for token in allowed:
            if not 0 <= token < vocab:
                raise errors.make("INVALID_ARGUMENT", f"{token!r} is no id of the vocabulary",
                                  param="allowed")
            words[token // 32] |= 1 << token % 32
        self._masks.append(words)
        return words

    def _mask_at(self, _: Any, tokens: Any, n: int) -> int | None:
        try:
            allowed = self._given["allowed_at"](tokens[:n])
            if allowed is None:
                return None
            words = self._mask(allowed)
            del self._masks[:-2]  # borrowed until the next call; `allowed` is held by its struct
            return ctypes.addressof(words)
        except BaseException as why:  # it must not pass through C
            self._calls.raised = self._calls.raised or why
            nothing = self._mask(())  # no id is allowed: the generation ends, nothing is appended
            return ctypes.addressof(nothing)

    def _on_logprobs(self, _: Any, of: Any) -> None:
        told = of.contents
        best = [(int(b.id), float(b.logprob)) for b in told.best[: told.n_best]]
        found = LogProbs(int(told.chosen.id), float(told.chosen.logprob), best)
        self._calls.guard_bool(self._given["on_logprobs"])(found)
