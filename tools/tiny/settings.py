"""What the whole recipe agrees on: shapes, token ids, seeds, folders.

Every other file reads its numbers here, so that a change of shape or of seed is made once.
"""
import json
import os
import time

SEED = 20261115

# Token ids 0..106 mean what they mean in Gemma 4.
PAD, EOS, BOS, UNK, MASK = range(5)
TOOL_OPEN, TOOL_CLOSE, CALL_OPEN, CALL_CLOSE, RESPONSE_OPEN, RESPONSE_CLOSE, QUOTE = range(46, 53)
THINK, CHANNEL_OPEN, CHANNEL_CLOSE, TURN_OPEN, TURN_CLOSE = 98, 100, 101, 105, 106
STOPS = (EOS, RESPONSE_OPEN, TURN_CLOSE)
VOCAB = 4096

PATTERN = (["sliding_attention"] * 5 + ["full_attention"]) * 2
VERIFIER = dict(
    architectures=["Gemma4ForCausalLM"], model_type="gemma4_text", dtype="bfloat16",
    vocab_size=VOCAB, hidden_size=256, num_hidden_layers=12, intermediate_size=64,
    num_attention_heads=4, num_key_value_heads=4, head_dim=64,
    global_head_dim=128, num_global_key_value_heads=4, attention_k_eq_v=True,
    sliding_window=512, layer_types=PATTERN, max_position_embeddings=16384,
    enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=64,
    final_logit_softcapping=30.0, hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6,
    hidden_size_per_layer_input=0, vocab_size_per_layer_input=VOCAB, num_kv_shared_layers=0,
    use_double_wide_mlp=False, use_bidirectional_attention=None, tie_word_embeddings=True,
    attention_bias=False, attention_dropout=0.0, initializer_range=0.02, use_cache=True,
    pad_token_id=PAD, bos_token_id=BOS, eos_token_id=[EOS, TURN_CLOSE],
    rope_parameters={
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25,
                           "rope_theta": 1000000.0},
    },
)

BLOCK = 8
# Taps: near the embedding, and the inputs of the two full layers (outputs of layers 4 and 10), whose
# K/V a projection can then rebuild without crossing a layer.
TAPS = (1, 4, 10)
DRAFTER = dict(
    architectures=["DFlashDraftModel"], model_type="qwen3", dtype="bfloat16",
    vocab_size=VOCAB, hidden_size=256, num_hidden_layers=3, intermediate_size=1280,
    num_attention_heads=8, num_key_value_heads=4, head_dim=64, hidden_act="silu",
    rms_norm_eps=1e-6, rope_theta=1000000.0, rope_scaling=None,
    layer_types=["sliding_attention", "sliding_attention", "full_attention"],
    sliding_window=1024, use_sliding_window=True, max_window_layers=3,
    max_position_embeddings=16384, block_size=BLOCK, num_target_layers=12,
    dflash_config={"mask_token_id": MASK, "target_layer_ids": list(TAPS)},
    final_logit_softcapping=30.0, tie_word_embeddings=False, attention_bias=False,
    attention_dropout=0.0, initializer_range=0.02, use_cache=True,
    pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS,
)

START = time.time()


def log(*words):
    print("[%6.1f]" % (time.time() - START), *words, flush=True)


def work_folder():
    """Where data and checkpoints of a run lie; kept between the pieces of a run."""
    path = os.environ.get("TINY_WORK", "/tmp/tiny")
    os.makedirs(path, exist_ok=True)
    return path


def out_folder():
    """Where results go that leave the machine."""
    path = os.environ.get("OUT", os.path.join(work_folder(), "out"))
    os.makedirs(path, exist_ok=True)
    return path


def write_json(path, value):
    with open(path, "w") as f:
        json.dump(value, f, indent=1)
        f.write("\n")


def read_json(path):
    with open(path) as f:
        return json.load(f)
