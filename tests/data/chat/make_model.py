"""Writes config.json and model.safetensors of a small model with random weights, whose
vocabulary is that of the test tokenizer, so that text can go in and come out.

usage: make_model.py FOLDER      (plain Python)"""
import json, os, random, struct, sys

V, H, FF, NH = 2600, 32, 64, 2
layers = ["sliding_attention", "sliding_attention", "full_attention"]
config = {
    "model_type": "gemma4_text", "vocab_size": V, "hidden_size": H, "intermediate_size": FF,
    "num_hidden_layers": len(layers), "num_attention_heads": NH, "num_key_value_heads": 1,
    "head_dim": 16, "global_head_dim": 32, "num_global_key_value_heads": 1,
    "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6, "pad_token_id": 0, "eos_token_id": [1, 106], "bos_token_id": 2,
    "tie_word_embeddings": True, "sliding_window": 32, "layer_types": layers,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25,
                           "rope_theta": 1000000.0}},
    "final_logit_softcapping": 30.0, "attention_k_eq_v": True, "enable_moe_block": False,
    "num_kv_shared_layers": 0, "use_double_wide_mlp": False, "hidden_size_per_layer_input": 0,
}

rng = random.Random(5)
tensors = {"model.embed_tokens.weight": [V, H], "model.norm.weight": [H]}
for i, kind in enumerate(layers):
    full, p = kind == "full_attention", f"model.layers.{i}."
    d = 32 if full else 16
    for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
        tensors[p + name + "_layernorm.weight"] = [H]
    tensors |= {p + "layer_scalar": [1], p + "self_attn.q_norm.weight": [d],
                p + "self_attn.k_norm.weight": [d], p + "self_attn.q_proj.weight": [NH * d, H],
                p + "self_attn.k_proj.weight": [d, H], p + "self_attn.o_proj.weight": [H, NH * d],
                p + "mlp.gate_proj.weight": [FF, H], p + "mlp.up_proj.weight": [FF, H],
                p + "mlp.down_proj.weight": [H, FF]}
    if not full:
        tensors[p + "self_attn.v_proj.weight"] = [d, H]

header, data = {}, b""
for name, dims in sorted(tensors.items()):
    n = dims[0] * (dims[1] if len(dims) > 1 else 1)
    mean, spread = (1, 0.1) if len(dims) == 1 else (0, 0.1)
    values = (rng.gauss(mean, spread) for _ in range(n))
    raw = b"".join(struct.pack("<f", v)[2:] for v in values)
    header[name] = {"dtype": "BF16", "shape": dims, "data_offsets": [len(data), len(data) + len(raw)]}
    data += raw
head = json.dumps(header).encode()
head += b" " * (-len(head) % 8)
with open(os.path.join(sys.argv[1], "config.json"), "w") as f:
    json.dump(config, f, indent=1)
    f.write("\n")
with open(os.path.join(sys.argv[1], "model.safetensors"), "wb") as f:
    f.write(struct.pack("<Q", len(head)) + head + data)
