#!/usr/bin/env python3
"""Holds the engine against transformers at full width: a few layers of 26B-A4B, random weights.

usage: exact.py --program build-gpu/exact_gpu_test [--folder DIR] [--devices cuda,cpu]
                [--layers 6] [--rows 256] [--weights calm,init] [--report FILE.json]

Weights are made by transformers' own initialisation and saved in bf16; every arm reads those.
The reference is transformers in float32.  Arms against it, over the last --rows positions, all past
the sliding window:

  transformers   transformers in bf16 (sdpa, grouped_mm experts)
  rounded        the reference with the inputs of all products rounded to bf16, which is what the
                 engine's kernels do: it says what error that rounding alone must make
  cuda, cpu      the engine

The engine passes when the root mean square error of its logits is at most --limit times that of
transformers' bf16, on every kind of weights.  A router near a tie chooses other experts on the slightest rounding, and such
rows differ far more than others: medians of rows, and rows with other experts, are counted.

init:    the initialisation as it is: norms are 1, so that attention scores spread by 16 (22 in full
         layers) and softmaxes are nearly one-hot, and routers hardly prefer any expert.
calm:    norms vary around 1, scores and router logits spread by about 1, and a branch of a layer adds
         a quarter to the residual stream.  Errors grow little from layer to layer here, so that one
         of the engine's own would show.

On a machine without a GPU: --torch cpu --devices cpu --layers 1 --vocab 4096 --window 64 --rows 32.
"""
import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import time

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import Gemma4ForCausalLM, Gemma4TextConfig

SHAPES = dict(hidden_size=2816, intermediate_size=2112, num_attention_heads=16, num_key_value_heads=8,
              num_global_key_value_heads=2, head_dim=256, global_head_dim=512, attention_k_eq_v=True,
              hidden_size_per_layer_input=0, enable_moe_block=True, num_experts=128, top_k_experts=8,
              moe_intermediate_size=704, final_logit_softcapping=30.0, tie_word_embeddings=True,
              max_position_embeddings=262144)
BIG = 1 << 20  # tensors above this are the same for all kinds of weights and are saved once


def say(*what):
    print(*what, flush=True)


def fields(a):
    kinds = ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(a.layers)]
    return dict(SHAPES, num_hidden_layers=a.layers, layer_types=kinds, vocab_size=a.vocab, sliding_window=a.window)


def make(a, dtype):
    torch.manual_seed(7)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(a.torch):
            config = Gemma4TextConfig(**fields(a))
            config._attn_implementation = "sdpa"
            return Gemma4ForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)


def calm(model):
    """Changes the small tensors alone."""
    g = torch.Generator().manual_seed(11)
    for name, p in model.named_parameters():
        if p.numel() > BIG:
            continue
        noise = torch.randn(p.shape, generator=g)
        if name.endswith("router.proj.weight"):
            value = noise
        elif name.endswith("q_norm.weight"):
            value = (1 + 0.1 * noise) / math.sqrt(p.numel())
        elif name.endswith(("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")):
            value = (1 + 0.1 * noise) / 4
        else:
            value = 1 + 0.1 * noise
        p.data.copy_(value)
    for layer in model.model.layers:
        layer.layer_scalar.fill_(0.9)


def tensors(model, big):
    found = {name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()
             if name != "lm_head.weight" and (t.numel() > BIG) == big and "rotary" not in name}
    return found


def save(a, model, folder, with_big):
    parts = {"small.safetensors": tensors(model, False)}
    if with_big:
        parts["big.safetensors"] = tensors(model, True)
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(dict(fields(a), architectures=["Gemma4ForCausalLM"], model_type="gemma4_text"), f)
    for name, content in parts.items():
        save_file(content, os.path.join(folder, name))
    if with_big:
        where = {t: name for name, content in parts.items() for t in content}
        with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f:
            json.dump({"metadata": {}, "weight_map": where}, f)


def rounding_hooks(model):
    """Inputs of every product in bf16, everything else in float32."""
    def round_input(_, args):
        return (args[0].bfloat16().float(),) + args[1:]
    handles = [m.register_forward_pre_hook(round_input) for m in model.modules() if isinstance(m, torch.nn.Linear)]
    for layer in model.model.layers:
        experts = layer.experts
        handles.append(experts.register_forward_pre_hook(round_input))
        experts.act_fn = RoundedGate(experts.act_fn)
    return handles


class RoundedGate(torch.nn.Module):
    """The gate's activation, of which the engine rounds the product with the other half: rounding
    here is a rounding of the same size at the same place."""
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x).bfloat16().float()


@torch.no_grad()
def run(a, model, ids):
    chosen = []
    handles = [layer.router.register_forward_hook(lambda _m, _i, out: chosen.append(out[2][-a.rows:].cpu().numpy()))
               for layer in model.model.layers]
    inputs = []
    handles += [model.model.norm.register_forward_pre_hook(lambda _m, args: inputs.append(args[0]))]
    out = model(torch.tensor(ids[None], device=a.torch).long(), output_hidden_states=True, logits_to_keep=a.rows,
                use_cache=False)
    for h in handles:
        h.remove()
    states = list(out.hidden_states[:-1]) + [inputs[0], out.hidden_states[-1]]
    hidden = torch.stack([h[0, -a.rows:].float() for h in states]).cpu().numpy()
    return {"hidden": hidden, "logits": out.logits[0].float().cpu().numpy(), "experts": np.stack(chosen)}


def ours(a, folder, tokens, device, group):
    out = os.path.join(folder, "ours-" + device)
    r = subprocess.run([a.program, folder, tokens, out, device, str(a.rows), str(group)],
                       capture_output=True, text=True, timeout=a.timeout)
    say("   ", (r.stdout + r.stderr).strip())
    if r.returncode not in (0, 3):
        return None

    def read(what, kind, width):
        return np.fromfile(out + "." + what, kind).reshape(-1, a.rows, width)
    return {"hidden": read("hidden", np.float32, SHAPES["hidden_size"]),
            "logits": read("logits", np.float32, a.vocab)[0], "experts": read("experts", np.int32, 8),
            "same_bits": r.returncode == 0}


def distances(got, want):
    """Relative root mean square error: of everything, and of rows."""
    got, want = torch.from_numpy(got).double(), torch.from_numpy(want).double()
    d, w = ((got - want) ** 2).sum(-1), (want ** 2).sum(-1)
    rows = (d / w).sqrt()
    return {"rms": float((d.sum() / w.sum()).sqrt()), "median": float(rows.median()), "worst": float(rows.max())}


def other_experts(got, want):
    return [int((np.sort(g, -1) != np.sort(w, -1)).any(-1).sum()) for g, w in zip(got["experts"], want["experts"])]


def judge(name, got, want):
    layers = [distances(g, w) for g, w in zip(got["hidden"], want["hidden"])]
    flips = other_experts(got, want)
    same = (np.sort(got["experts"], -1) == np.sort(want["experts"], -1)).all((0, 2))
    row = {"arm": name, "logits": distances(got["logits"], want["logits"]), "layers": layers,
           "rows_with_other_experts": flips, "rows_with_the_same_experts": int(same.sum())}
    if same.any():
        row["logits_of_these"] = distances(got["logits"][same], want["logits"][same])
    l = row["logits"]
    say(f"  {name:13s} logits rms {l['rms']:.3e} median row {l['median']:.3e} worst {l['worst']:.3e}; rows with other "
        f"experts by layer {flips}, in none {same.sum()}"
        + (f" (rms of these {row['logits_of_these']['rms']:.3e})" if same.any() else ""))
    say("    layers: " + " ".join(f"{x['rms']:.1e}/{x['median']:.1e}" for x in layers))
    return row


def compare(a, kind, folder, tokens, ids, first):
    t = time.time()
    small = make(a, torch.bfloat16)
    if kind == "calm":
        calm(small)
    save(a, small, folder, first)
    say(f"{kind}: made and saved in {time.time() - t:.1f} s")
    slow = None
    if "cpu" in a.devices:  # beside the rest
        import concurrent.futures
        slow = concurrent.futures.ThreadPoolExecutor(1).submit(ours, a, folder, tokens, "cpu", a.rows)
    t = time.time()
    wide = make(a, torch.float32)
    wide.load_state_dict(small.state_dict())
    scale = small.model.embed_tokens.embed_scale.bfloat16().float()  # the model's scale is this one
    wide.model.embed_tokens.embed_scale = scale
    wide.config._experts_implementation = "eager"
    want = run(a, wide, ids)
    arms = {"transformers": run(a, small, ids)}
    del small
    rounding_hooks(wide)
    arms["rounded"] = run(a, wide, ids)
    del wide
    say(f"  transformers in {time.time() - t:.1f} s")
    for device in a.devices:
        arms[device] = slow.result() if device == "cpu" else ours(a, folder, tokens, device, a.group)
    rows = [judge(name, got, want) for name, got in arms.items() if got]
    limit = rows[0]["logits"]["rms"]
    result = {"weights": kind, "arms": rows,
              "failed": [n for n, got in arms.items() if not got or not got.get("same_bits", True)]}
    for row in rows[1:]:
        row["ratio"] = row["logits"]["rms"] / limit
        row["median_ratio"] = row["logits"]["median"] / rows[0]["logits"]["median"]
        say(f"  {row['arm']}: error over transformers' bf16 error {row['ratio']:.3f}, of median rows "
            f"{row['median_ratio']:.3f}")
    return result


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--program", required=True)
    p.add_argument("--folder", default="/dev/shm/kakeya-exact")
    p.add_argument("--devices", default="cuda")
    p.add_argument("--torch", default="cuda")
    p.add_argument("--weights", default="calm,init")
    p.add_argument("--limit", type=float, default=1.1)
    p.add_argument("--report")
    for name, value in (("layers", 6), ("rows", 256), ("group", 16), ("vocab", 262144), ("window", 1024),
                        ("timeout", 120)):
        p.add_argument("--" + name, type=int, default=value)
    a = p.parse_args()
    a.devices = [d for d in a.devices.split(",") if d]
    torch.set_float32_matmul_precision("highest")
    os.makedirs(a.folder, exist_ok=True)
    n = (a.window + a.rows + 63) // 64 * 64 + 32
    ids = np.random.default_rng(5).integers(5, a.vocab, n).astype(np.int32)
    tokens = os.path.join(a.folder, "tokens")
    ids.tofile(tokens)
    say(f"{a.layers} layers of 26B-A4B, {a.vocab} ids, random weights; {n} tokens, the last {a.rows} compared; "
        f"torch {torch.__version__} on {a.torch}")
    results = []
    for i, kind in enumerate(a.weights.split(",")):
        results.append(compare(a, kind, a.folder, tokens, ids, i == 0))
    shutil.rmtree(a.folder)
    bad = [f"{r['weights']}: {name} failed, or passes differ" for r in results for name in r["failed"]]
    bad += [f"{r['weights']}: {row['arm']} has {row['ratio']:.3f} times the error of transformers in bf16"
            for r in results for row in r["arms"] if row["arm"] in a.devices and not row["ratio"] <= a.limit]
    if a.report:
        with open(a.report, "w") as f:
            json.dump({"tokens": n, "rows": a.rows, "layers": a.layers, "vocab": a.vocab, "limit": a.limit,
                       "results": results, "holds": not bad}, f, indent=1)
    say("\n".join(bad) if bad else f"at most {a.limit} times transformers' own error")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
