#!/usr/bin/env python3
"""Holds the engine on a GPU against the reference cases of tests/data/parity.

usage: goldens.py --program build-gpu/kakeya [--data tests/data/parity] [--verifier models/tiny/verifier]

The cases are float32 runs of transformers.  A GPU rounds what it multiplies to bf16, and how far that
moves a result is a property of the weights: those of most cases are random, and multiply errors.  So
the measure of a case is what transformers itself makes of it in bf16, computed here: root mean square
errors of logits and of every layer's output may be --limit times that.  The shipped verifier, which is
trained, is held against a float32 run made here, over texts of its own cases that reach past its window,
and must keep to --trained of it as well.
"""
import argparse
import glob
import json
import os
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma4ForCausalLM, Gemma4TextConfig

WHERE = "cuda" if torch.cuda.is_available() else "cpu"
NOT_FIELDS = ("architectures", "model_type", "dtype", "torch_dtype", "transformers_version")


def load(folder, dtype=torch.bfloat16):
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    config = {k: v for k, v in config.get("text_config", config).items() if k not in NOT_FIELDS}
    state = {}
    for shard in sorted(glob.glob(os.path.join(folder, "model*.safetensors"))):
        state.update(load_file(shard))
    state = {k.replace("model.language_model.", "model."): v for k, v in state.items()
             if "vision" not in k and "audio" not in k}
    model = Gemma4ForCausalLM(Gemma4TextConfig(**config)).to(dtype).to(WHERE).eval()
    missing = [k for k in model.load_state_dict(state, strict=False).missing_keys if "lm_head" not in k]
    assert not missing, missing
    return model


def relative(got, want):
    return float(((got.double() - want.double()) ** 2).sum().sqrt() / (want.double() ** 2).sum().sqrt())


@torch.no_grad()
def error_in_bf16(model, expect):
    out = model(expect["tokens"].long()[None].to(WHERE), output_hidden_states=True, use_cache=False)
    hidden = [relative(h[0].float().cpu(), expect[f"hidden.{i}"]) for i, h in enumerate(out.hidden_states)
              if f"hidden.{i}" in expect]
    return max([relative(out.logits[0].float().cpu(), expect["logits"])] + hidden)


@torch.no_grad()
def make_expect(model, tokens, greedy=32):
    """What transformers computes in float32, in the shape of a case."""
    out = model(tokens[None].to(WHERE), output_hidden_states=True, use_cache=True)
    expect = {"tokens": tokens.int(), "logits": out.logits[0].cpu().contiguous()}
    for i, h in enumerate(out.hidden_states):
        expect[f"hidden.{i}"] = h[0].cpu().contiguous()
    chosen, cache = [out.logits[0, -1].argmax()], out.past_key_values
    while len(chosen) < greedy:
        out = model(chosen[-1][None, None], past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        chosen.append(out.logits[0, -1].argmax())
    expect["greedy"] = torch.stack(chosen).int().cpu()
    return expect


def trained_case(a, wide, folder, work):
    """A case of the shipped verifier over the first tokens of the folder's text."""
    tokens = load_file(os.path.join(folder, "expect.safetensors"))["tokens"].long()[:a.tokens]
    expect = make_expect(wide, tokens)
    for file in glob.glob(os.path.join(a.verifier, "*")):
        os.symlink(os.path.abspath(file), os.path.join(work, os.path.basename(file)))
    save_file(expect, os.path.join(work, "expect.safetensors"))
    return expect


def ours(a, folder, tolerance):
    r = subprocess.run([a.program, "parity", folder, "--device", a.device, "--tol-rms", str(tolerance), "--json"],
                       capture_output=True, text=True, timeout=120)
    try:
        return json.loads(r.stdout)
    except ValueError:
        return {"ok": False, "said": (r.stdout + r.stderr).strip()}


def report(name, theirs, tolerance, got):
    if "ways" not in got:
        print(f"{name}: {got['said']}")
        return
    logits = max(w["logits_rms"] for w in got["ways"])
    hidden = max(w["hidden_rms"] for w in got["ways"])
    same = all(w["same_bits"] for w in got["ways"])
    drafter = got["drafter"]
    print(f"{name}: logits {logits:.2e}, layers {hidden:.2e}, transformers in bf16 {theirs:.2e} (at most {tolerance:.2e}); "
          f"bits {'equal' if same else 'DIFFER'} in {len(got['ways'])} ways; greedy {got['greedy_equal']} of {got['greedy']}"
          f" and {got['greedy_near']} near ties" + (f"; dflash {drafter['drafts_equal']} of {drafter['drafts']}" if drafter else "")
          + ("" if got["ok"] else "  DOES NOT AGREE"), flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--program", required=True)
    p.add_argument("--data", default="tests/data/parity")
    p.add_argument("--verifier", default="models/tiny/verifier")
    p.add_argument("--device", default="cuda")
    p.add_argument("--limit", type=float, default=1.1)
    p.add_argument("--trained", type=float, default=0.03)
    p.add_argument("--tokens", type=int, default=640)
    a = p.parse_args()
    bad, n = 0, 0
    torch.set_float32_matmul_precision("highest")
    tiny, wide = load(a.verifier), load(a.verifier, torch.float32)
    wide.model.embed_tokens.embed_scale = tiny.model.embed_tokens.embed_scale.bfloat16().float()
    for case in sorted(os.listdir(a.data)):
        folder = os.path.join(a.data, case)
        trained = not os.path.exists(os.path.join(folder, "config.json"))
        if trained and "drafter" in case:
            continue
        with tempfile.TemporaryDirectory() as work:
            if trained:
                expect = trained_case(a, wide, folder, work)
                theirs = error_in_bf16(tiny, expect)
                tolerance = min(a.limit * theirs, a.trained)
            else:
                theirs = error_in_bf16(load(folder), load_file(os.path.join(folder, "expect.safetensors")))
                tolerance = a.limit * theirs
            got = ours(a, work if trained else folder, tolerance)
        report(case, theirs, tolerance, got)
        bad += not got["ok"]
        n += 1
    print(f"{n - bad} of {n} cases agree")
    sys.exit(1 if bad or n == 0 else 0)


if __name__ == "__main__":
    main()
