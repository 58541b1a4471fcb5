"""_abi.py - include/kakeya.h for ctypes: its structs, its callbacks, its functions.

Names, order and types are the header's, so that the two can be read side by side; a test compiles a
program that prints the sizes and offsets of the header and compares.  What they mean is said there.
"""

from __future__ import annotations

import ctypes
from ctypes import (CFUNCTYPE, POINTER, Structure, c_bool, c_char, c_char_p, c_double, c_float, c_int,
                    c_int32, c_int64, c_size_t, c_uint, c_uint32, c_uint64, c_void_p)
from typing import Any

KK_MAX_LOGPROBS = 20
KK_MAX_DRAFT = 31
KK_MEM_CATEGORIES = 8
KK_ENCODE_BOS = 1
KK_ENCODE_SPECIAL = 2

(KK_OK, KK_EINVAL, KK_EIO, KK_EFORMAT, KK_ENOMEM, KK_ECONTEXT, KK_EDEVICE, KK_ESTOPPED, KK_EEXIST,
 KK_EBUSY, KK_ENUMERIC) = range(11)
KK_STOP_LENGTH, KK_STOP_EOS, KK_STOP_CALLBACK, KK_STOP_CONTEXT = range(4)
KK_KV_BF16, KK_KV_F32, KK_KV_Q8, KK_KV_Q4, KK_KV_S8, KK_KV_FORMATS = range(6)
KK_SPEC_AUTO, KK_SPEC_NONE, KK_SPEC_DFLASH, KK_SPEC_NGRAM = range(4)
KK_KEEP_ALL, KK_KEEP_WINDOW, KK_KEEP_RESTORED = range(3)
KK_ANSWER_TEXT, KK_ANSWER_THOUGHT, KK_ANSWER_CALL = range(3)

Enum = c_int  # of C, as gcc and clang have it


class kk_err(Structure):
    _fields_ = [("code", Enum), ("msg", c_char * 240)]


class kk_answer_span(Structure):
    _fields_ = [("kind", Enum), ("part", c_int32), ("text", c_void_p), ("len", c_size_t),
                ("name", c_char_p), ("arguments", c_char_p)]


class kk_answer_opts(Structure):
    _fields_ = [("tok", c_void_p), ("raw", c_bool), ("stops", POINTER(c_char_p)),
                ("n_stops", c_size_t)]


class kk_engine_opts(Structure):
    _fields_ = [
        ("model", c_char_p), ("synthetic", c_char_p), ("drafter", c_char_p),
        ("draft_type", c_char_p), ("draft_embed_scale", c_char_p), ("draft_vocab", c_char_p),
        ("draft_bidirectional", c_bool),
        ("projection", c_char_p), ("projection_type", c_char_p), ("device", c_char_p),
        ("isa", c_char_p), ("threads", c_int32), ("max_rows", c_int32), ("max_logits", c_int32),
        ("no_pin", c_bool), ("mlock", c_bool), ("huge_pages", c_bool), ("memory_limit", c_uint64),
        ("gpu_memory", c_uint64), ("key_cache", c_int64),
        ("ahead", c_int32), ("exact_rows", c_int32), ("exact_packed_rows", c_int32),
        ("exact_page_rows", c_int32), ("exact_measured", c_bool),
    ]


class kk_model_info(Structure):
    _fields_ = [
        ("name", c_char * 64), ("weight_type", c_char * 16), ("format", c_char * 16),
        ("layers", c_int32), ("sliding_layers", c_int32), ("full_layers", c_int32),
        ("vocab", c_int32), ("hidden", c_int32), ("heads", c_int32), ("window", c_int32),
        ("context", c_int32), ("experts", c_int32), ("experts_used", c_int32), ("k_eq_v", c_bool),
        ("params", c_int64), ("params_active", c_int64), ("weight_bytes", c_int64),
        ("token_bytes", c_int64), ("kv_full_per_token", c_int64), ("kv_sliding_max", c_int64),
    ]


class kk_drafter_info(Structure):
    _fields_ = [
        ("layers", c_int32), ("hidden", c_int32), ("block", c_int32), ("window", c_int32),
        ("short_rows", c_int32), ("n_taps", c_int32), ("taps", c_int32 * 16),
        ("embed_scale", c_char * 8),
        ("params", c_int64), ("weight_bytes", c_int64),
    ]


class kk_projection_info(Structure):
    _fields_ = [
        ("source", c_char * 16), ("n_taps", c_int32), ("taps", c_int32 * 16), ("rank", c_int32),
        ("sliding_layers", c_int32), ("full_layers", c_int32), ("params", c_int64),
        ("weight_bytes", c_int64), ("other_weights", c_bool), ("checked", c_bool),
    ]


class kk_fingerprints(Structure):
    _fields_ = [("model", c_uint64), ("drafter", c_uint64), ("projection", c_uint64),
                ("source", c_uint64), ("identity", c_uint64)]


class kk_device_info(Structure):
    _fields_ = [("device", c_char * 16), ("isa", c_char * 64), ("threads", c_int32),
                ("exact_rows", c_int32), ("exact_packed", c_bool), ("page_kernel", c_bool),
                ("exact_by", c_char * 12), ("choices", c_int64), ("near_ties", c_int64),
                ("why", c_char * 256)]


class kk_fused(Structure):
    _fields_ = [("layers_fused", c_int64), ("layers_by_ops", c_int64), ("heads_fused", c_int64),
                ("heads_by_ops", c_int64)]


class kk_offload(Structure):
    _fields_ = [("limit", c_int64), ("on_gpu", c_int64), ("on_host", c_int64), ("hits", c_int64),
                ("misses", c_int64), ("gpu_bytes", c_int64), ("host_bytes", c_int64),
                ("swaps", c_int64), ("evicted", c_int64)]


class kk_sharing(Structure):
    _fields_ = [("rounds", c_int64), ("shared", c_int64), ("sessions", c_int64), ("most", c_int32),
                ("retried", c_int64), ("chunks", c_int64), ("chunk_rows", c_int64), ("cut", c_int64),
                ("ahead", c_int64)]


class kk_session_opts(Structure):
    _fields_ = [
        ("ctx", c_int32), ("kv_format", Enum), ("spec", Enum), ("draft_max", c_int32),
        ("draft_fixed", c_bool), ("draft_ctx", c_int32), ("checkpoint_bytes", c_int64),
        ("kv_sliding", Enum), ("kv_full", Enum), ("sink", c_int32), ("window", c_int32),
        ("chunk", c_int32), ("latents", Enum),
    ]


class kk_key_counts(Structure):
    _fields_ = [("queries", c_int64), ("keys_stored", c_int64), ("keys_rebuilt", c_int64),
                ("rows_rebuilt", c_int64)]


class kk_cache_use(Structure):
    _fields_ = [("rows", c_int64), ("kv_bytes", c_int64)]


class kk_sampling(Structure):
    _fields_ = [
        ("temp", c_float), ("top_k", c_int32), ("top_p", c_float), ("min_p", c_float),
        ("repeat_penalty", c_float), ("presence_penalty", c_float), ("frequency_penalty", c_float),
        ("penalty_last_n", c_int32), ("seed", c_uint64),
    ]


class kk_logit_bias(Structure):
    _fields_ = [("id", c_int32), ("bias", c_float)]


class kk_logprob(Structure):
    _fields_ = [("id", c_int32), ("logprob", c_float)]


class kk_logprobs(Structure):
    _fields_ = [("chosen", kk_logprob), ("n_best", c_int32), ("best", kk_logprob * KK_MAX_LOGPROBS)]


kk_progress = CFUNCTYPE(c_bool, c_void_p, c_int64, c_int64)
# A callback that returns a pointer may only return an integer to ctypes.
kk_mask_at = CFUNCTYPE(c_void_p, c_void_p, POINTER(c_int32), c_int32)
kk_on_logprobs = CFUNCTYPE(None, c_void_p, POINTER(kk_logprobs))
kk_on_round = CFUNCTYPE(None, c_void_p, POINTER(c_int32), c_int32, c_int32)
kk_on_token = CFUNCTYPE(c_bool, c_void_p, c_int32)
on_bad_tensor = CFUNCTYPE(None, c_void_p, c_char_p, c_int64)


class kk_generate_opts(Structure):
    _fields_ = [
        ("max_tokens", c_int32), ("sampling", kk_sampling), ("stop_ids", POINTER(c_int32)),
        ("n_stop_ids", c_size_t), ("ignore_eos", c_bool), ("bias", POINTER(kk_logit_bias)),
        ("n_bias", c_size_t), ("mask", POINTER(c_uint32)), ("mask_at", kk_mask_at),
        ("n_logprobs", c_int32), ("on_logprobs", kk_on_logprobs),
        ("on_round", kk_on_round),
    ]


class kk_spec_part(Structure):
    _fields_ = [("rounds", c_int64), ("drafted", c_int64), ("accepted", c_int64),
                ("drafts", c_int64 * (KK_MAX_DRAFT + 1))]


class kk_spec_stats(Structure):
    _fields_ = [
        ("rounds", c_int64), ("rows", c_int64), ("drafted", c_int64), ("accepted", c_int64),
        ("histogram", c_int64 * (KK_MAX_DRAFT + 1)), ("chosen", c_int64 * (KK_MAX_DRAFT + 1)),
        ("drafts", c_int64 * (KK_MAX_DRAFT + 1)), ("looking", c_int64), ("ahead", c_int64),
        ("short_rounds", c_int64), ("short_missed", c_int64),
        ("by", kk_spec_part * (KK_SPEC_NGRAM + 1)), ("draft_s", c_double), ("verify_s", c_double),
        ("choose_s", c_double), ("commit_s", c_double),
    ]


class kk_result(Structure):
    _fields_ = [("stop", Enum), ("n_tokens", c_int32), ("decode_s", c_double), ("rounds", c_int32),
                ("logits_hash", c_uint64), ("syncs", c_int64), ("near_ties", c_int32),
                ("spec", kk_spec_stats)]


class kk_writer_opts(Structure):
    _fields_ = [("replace", c_bool), ("owner_only", c_bool), ("inputs", POINTER(c_char_p)),
                ("n_inputs", c_size_t)]


class kk_saved_info(Structure):
    _fields_ = [
        ("model", c_char * 64), ("device", c_char * 16), ("build", c_char * 64),
        ("fingerprint", c_uint64), ("identity", c_uint64), ("kv_format", Enum), ("spec", Enum),
        ("tokens", c_int32), ("ctx", c_int32), ("bytes", c_int64), ("kv_sliding", c_char * 16),
        ("kv_full", c_char * 16), ("sink", c_int32), ("window", c_int32), ("chunk", c_int32),
        ("projection", c_uint64), ("format", c_int32), ("checkpoints", c_int32),
        ("other_weights", c_bool),
    ]


class kk_machine(Structure):
    _fields_ = [("name", c_char * 64), ("features", c_char * 160), ("best_isa", c_char * 16),
                ("cores", c_int32), ("memory", c_int64), ("memory_free", c_int64)]


_err = POINTER(kk_err)
_out = POINTER(c_void_p)
_ids = POINTER(c_int32)
_spans = POINTER(POINTER(kk_answer_span))
_size = POINTER(c_size_t)

# Name: what it returns, and its arguments.  Objects are opaque pointers.
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "kk_status_name": (c_char_p, [Enum]),
    "kk_version": (c_char_p, []),
    "kk_tokenizer_open": (Enum, [_out, c_char_p, _err]),
    "kk_tokenizer_close": (None, [c_void_p]),
    "kk_tokenizer_size": (c_int32, [c_void_p]),
    "kk_tokenizer_special": (c_int32, [c_void_p, c_char_p]),
    "kk_encode": (Enum, [c_void_p, c_char_p, c_size_t, c_uint, POINTER(_ids), _size, _err]),
    "kk_decode": (Enum, [c_void_p, _ids, c_size_t, c_bool, _out, _size, _err]),
    "kk_encode_least": (c_size_t, [c_void_p, c_size_t]),
    "kk_free": (None, [c_void_p]),
    "kk_chat_render": (Enum, [c_char_p, c_size_t, _out, _size, _err]),
    "kk_chat_encode": (Enum, [c_void_p, c_char_p, c_size_t, POINTER(_ids), _size, _err]),
    "kk_answer_new": (Enum, [_out, POINTER(kk_answer_opts), _err]),
    "kk_answer_free": (None, [c_void_p]),
    "kk_answer_push": (Enum, [c_void_p, c_int32, _spans, _size, _err]),
    "kk_answer_push_text": (Enum, [c_void_p, c_char_p, c_size_t, _spans, _size, _err]),
    "kk_answer_finish": (Enum, [c_void_p, _spans, _size, _err]),
    "kk_answer_stopped": (c_bool, [c_void_p]),
    "kk_kv_format_name": (c_char_p, [Enum]),
    "kk_kv_format_named": (c_bool, [c_char_p, POINTER(Enum)]),
    "kk_engine_open": (Enum, [_out, POINTER(kk_engine_opts), _err]),
    "kk_engine_close": (None, [c_void_p]),
    "kk_engine_tokenizer": (c_void_p, [c_void_p]),
    "kk_engine_stop_ids": (_ids, [c_void_p, _size]),
    "kk_engine_info": (None, [c_void_p, POINTER(kk_model_info)]),
    "kk_model_inspect": (Enum, [c_char_p, POINTER(kk_model_info), _err]),
    "kk_engine_drafter": (c_bool, [c_void_p, POINTER(kk_drafter_info)]),
    "kk_engine_projection": (c_bool, [c_void_p, POINTER(kk_projection_info)]),
    "kk_engine_fingerprints": (None, [c_void_p, POINTER(kk_fingerprints)]),
    "kk_model_check": (Enum, [c_char_p, on_bad_tensor, c_void_p, POINTER(c_int64), _err]),
    "kk_engine_device": (None, [c_void_p, POINTER(kk_device_info)]),
    "kk_engine_fused": (None, [c_void_p, POINTER(kk_fused)]),
    "kk_engine_offload": (None, [c_void_p, POINTER(kk_offload)]),
    "kk_mem_category_name": (c_char_p, [Enum]),
    "kk_engine_memory": (None, [c_void_p, POINTER(c_int64)]),
    "kk_engine_sharing": (None, [c_void_p, POINTER(kk_sharing)]),
    "kk_spec_name": (c_char_p, [Enum]),
    "kk_session_new": (Enum, [_out, c_void_p, POINTER(kk_session_opts), _err]),
    "kk_session_free": (None, [c_void_p]),
    "kk_session_fork": (Enum, [_out, c_void_p, _err]),
    "kk_session_fork_at": (Enum, [_out, c_void_p, c_int32, _ids, _err]),
    "kk_session_len": (c_int32, [c_void_p]),
    "kk_session_tokens": (_ids, [c_void_p]),
    "kk_session_ctx": (c_int32, [c_void_p]),
    "kk_session_spec": (Enum, [c_void_p]),
    "kk_session_options": (None, [c_void_p, POINTER(kk_session_opts)]),
    "kk_session_key_counts": (None, [c_void_p, POINTER(kk_key_counts)]),
    "kk_session_cache": (None, [c_void_p, POINTER(kk_cache_use)]),
    "kk_session_append": (Enum, [c_void_p, _ids, c_size_t, kk_progress, c_void_p, _err]),
    "kk_session_rewind": (Enum, [c_void_p, c_int32, _ids, _err]),
    "kk_session_checkpoint": (Enum, [c_void_p, _err]),
    "kk_session_checkpoints": (c_int32, [c_void_p, _ids, c_int32]),
    "kk_session_logits": (Enum, [c_void_p, POINTER(POINTER(c_float)), _err]),
    "kk_generate": (Enum, [c_void_p, POINTER(kk_generate_opts), kk_on_token, c_void_p,
                           POINTER(kk_result), _err]),
    "kk_writer_open": (Enum, [_out, c_char_p, POINTER(kk_writer_opts), _err]),
    "kk_writer_close": (None, [c_void_p]),
    "kk_writer_temp": (c_char_p, [c_void_p]),
    "kk_session_save": (Enum, [c_void_p, c_char_p, _err]),
    "kk_session_save_to": (Enum, [c_void_p, c_void_p, _err]),
    "kk_session_load": (Enum, [_out, c_void_p, c_char_p, POINTER(kk_session_opts), POINTER(c_bool),
                               _err]),
    "kk_session_other_weights": (c_bool, [c_void_p]),
    "kk_session_sampling": (c_bool, [c_void_p, POINTER(kk_sampling)]),
    "kk_saved_inspect": (Enum, [c_char_p, POINTER(kk_saved_info), _err]),
    "kk_quantize": (Enum, [c_char_p, c_char_p, c_char_p, kk_progress, c_void_p, _err]),
    "kk_quantize_to": (Enum, [c_char_p, c_void_p, c_char_p, kk_progress, c_void_p, _err]),
    "kk_machine_info": (None, [POINTER(kk_machine)]),
    "kk_measure_bandwidth": (Enum, [c_int32, c_double, POINTER(c_double), _err]),
}

STRUCTS: dict[str, type[Structure]] = {
    name: value for name, value in list(globals().items())
    if isinstance(value, type) and issubclass(value, Structure) and value is not Structure
}


def declare(library: ctypes.CDLL) -> None:
    """Tells ctypes the types of all functions."""
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
