"""Dumps reference cases for `kakeya parity` with Hugging Face transformers.

usage: dump_gemma4.py OUT_FOLDER          (needs torch, transformers >= 5.17, safetensors)

Each case is a small Gemma 4 text model with random bf16 weights, run in float32 with eager
attention.  They cover what tests/data/parity/{moe,dense,perlayer} do not:

  layout  K = V on full layers with two K/V heads; names under model.language_model., fields in
          text_config in the released style, three shards with an index, vision tensors that a
          text engine must ignore; 150 tokens over a window of 24, so that rows cross pages
  shared  E2B's kind with the unused K/V tensors of shared layers in the file, filled with large
          numbers: an engine that reads them is far off
  scale   a hidden size whose square root is not exact in bfloat16: the embedding scale is rounded;
          `logits_bf16` is the same model run wholly in bfloat16
"""
import json
import os
import sys

import torch
from safetensors.torch import save_file
from transformers import Gemma4ForCausalLM, Gemma4TextConfig

PATTERN = ["sliding_attention"] * 5 + ["full_attention"]
ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
}
COMMON = dict(
    vocab_size=320, hidden_size=64, intermediate_size=96, num_hidden_layers=6, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, global_head_dim=32, sliding_window=24, layer_types=PATTERN,
    max_position_embeddings=512, rope_parameters=ROPE, final_logit_softcapping=30.0, rms_norm_eps=1e-6,
    hidden_size_per_layer_input=0, vocab_size_per_layer_input=320, attention_k_eq_v=True,
    num_global_key_value_heads=2, num_kv_shared_layers=0, enable_moe_block=False,
    use_double_wide_mlp=False, tie_word_embeddings=True, pad_token_id=0, eos_token_id=1, bos_token_id=2,
    hidden_activation="gelu_pytorch_tanh", attention_bias=False, attention_dropout=0.0,
)


def make(config, seed):
    """A model with weights that make every part matter, exact in bf16."""
    torch.manual_seed(seed)
    model = Gemma4ForCausalLM(Gemma4TextConfig(**config)).float().eval()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        for name, p in list(model.named_parameters()) + list(model.named_buffers()):
            if not p.is_floating_point() or "inv_freq" in name or "embed_scale" in name:
                continue
            if "layer_scalar" in name:
                p.uniform_(0.7, 1.1)
            elif "norm" in name or "scale" in name:
                p.normal_(1.0, 0.2)
            else:
                p.normal_(0.0, 1.0 / p.shape[-1] ** 0.5)
            p.copy_(p.bfloat16().float())
    return model


def expect(model, tokens, n_greedy=32):
    with torch.no_grad():
        out = model(tokens[None], output_hidden_states=True, use_cache=False)
        found = {"tokens": tokens.int(), "logits": out.logits[0].float().contiguous()}
        for i, h in enumerate(out.hidden_states):
            found[f"hidden.{i}"] = h[0].float().contiguous()
        ids = tokens.tolist()
        for _ in range(n_greedy):
            ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        found["greedy"] = torch.tensor(ids[len(tokens):], dtype=torch.int32)
    return found


def weights(model):
    state = {k: v for k, v in model.state_dict().items() if k != "lm_head.weight" and "embed_scale" not in k}
    return {k: v.bfloat16().contiguous().clone() for k, v in state.items()}


def write_config(folder, fields):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(fields, f, indent=1)


def layout(out):
    config = dict(COMMON, enable_moe_block=True, num_experts=8, top_k_experts=2, moe_intermediate_size=40)
    model = make(config, 11)
    folder = os.path.join(out, "layout")
    write_config(folder, {
        "architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "eos_token_id": [1, 106],
        "text_config": dict(config, model_type="gemma4_text"), "vision_config": {"model_type": "gemma4_vision"},
    })
    state = {k.replace("model.", "model.language_model.", 1): v for k, v in weights(model).items()}
    state["model.vision_tower.patch.weight"] = torch.ones(4, 4, dtype=torch.bfloat16)
    state["model.embed_vision.embedding_projection.weight"] = torch.ones(4, dtype=torch.bfloat16)
    names, index = sorted(state), {}
    for i in range(3):
        shard = f"model-{i + 1:05d}-of-00003.safetensors"
        part = {k: state[k] for k in names[i::3]}
        save_file(part, os.path.join(folder, shard))
        index.update({k: shard for k in part})
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {}, "weight_map": index}, f)
    save_file(expect(model, torch.randint(5, 320, (150,))), os.path.join(folder, "expect.safetensors"))


def shared(out):
    pattern = ["sliding_attention", "sliding_attention", "full_attention"] * 3
    config = dict(COMMON, num_hidden_layers=9, layer_types=pattern, num_key_value_heads=1, attention_k_eq_v=False,
                  num_global_key_value_heads=None, num_kv_shared_layers=3, use_double_wide_mlp=True,
                  hidden_size_per_layer_input=16, sliding_window=9)
    model = make(config, 12)
    folder = os.path.join(out, "shared")
    write_config(folder, dict(config, architectures=["Gemma4ForCausalLM"], model_type="gemma4_text"))
    state = weights(model)
    for i in range(6, 9):
        d = 32 if pattern[i] == "full_attention" else 16
        at = f"model.layers.{i}.self_attn."
        for name, shape in (("k_proj.weight", (d, 64)), ("v_proj.weight", (d, 64)), ("k_norm.weight", (d,))):
            state[at + name] = torch.full(shape, 100.0, dtype=torch.bfloat16)
    save_file(state, os.path.join(folder, "model.safetensors"))
    save_file(expect(model, torch.randint(5, 320, (90,))), os.path.join(folder, "expect.safetensors"))


def scale(out):
    config = dict(COMMON, hidden_size=80, num_key_value_heads=4, num_global_key_value_heads=1)
    model = make(config, 13)
    rounded = torch.tensor(80 ** 0.5).bfloat16().float()
    embed = model.model.embed_tokens
    for name in ("embed_scale", "scalar_embed_scale"):
        if hasattr(embed, name):
            old = getattr(embed, name)
            setattr(embed, name, rounded.clone() if torch.is_tensor(old) else float(rounded))
    folder = os.path.join(out, "scale")
    write_config(folder, dict(config, architectures=None, model_type="gemma4_text"))
    save_file(weights(model), os.path.join(folder, "model.safetensors"))
    tokens = torch.randint(5, 320, (70,))
    found = expect(model, tokens)
    got = found["hidden.0"]
    want = embed.weight[tokens] * rounded
    assert torch.equal(got, want), "the reference did not use the rounded scale"
    half = model.bfloat16()
    with torch.no_grad():
        found["logits_bf16"] = half(tokens[None], use_cache=False).logits[0].float().contiguous()
    save_file(found, os.path.join(folder, "expect.safetensors"))
    print("bf16 against float32, largest logit difference:", float((found["logits_bf16"] - found["logits"]).abs().max()))


if __name__ == "__main__":
    import transformers

    print("torch", torch.__version__, "transformers", transformers.__version__)
    layout(sys.argv[1])
    shared(sys.argv[1])
    scale(sys.argv[1])
