"""Reference numbers from the trained models, for the engine's parity tests.

usage: goldens.py --held held.npz [--to tests/data/parity]     (runs on a CPU in a few minutes)

tiny-code, tiny-needle, tiny-chat: `tokens` [T] int32, `rows` [n] int32 (which positions), `logits` [n, V]
and `hidden.N` [n, H] (N = 0 the scaled embedding, N the output of layer N - 1, the last after the final
norm) at these rows, and `greedy` [32], what follows the prompt; all by transformers in float32.
tiny-drafter: `tokens`, and for blocks 0..3 `block.N.start`, `block.N.hidden` [8, H] after the final norm and
`block.N.logits` [8, V]; the drafter is put together from transformers' Qwen3 parts over the taps of the same
model, and drafter.py must agree with it.  Nothing of model.safetensors is repeated: these cases are run
over models/tiny.
"""
import argparse
import os

import numpy as np
import torch
from safetensors.torch import save_file

import drafter
import evaluate
import model
import needle
import tasks
from settings import BLOCK, BOS, DRAFTER, EOS, MASK, TAPS, log
from tokenizer import Text

ROWS = 14
LAYERS = (0, 2, 5, 6, 11, 12)


def prompts(text, stream):
    """Three prompts, each longer than two windows; held-out code, a needle, a long chat."""
    begins = np.flatnonzero(stream == BOS)
    at = next(int(b) for b in begins if not np.isin(stream[b + 1:b + 1300], (BOS, EOS)).any())
    code = [BOS] + stream[at + 1:at + 1210].tolist()
    found = evaluate.chat_ids(text, needle.render(*needle.samples(7, 1, 60, 60)[0]))
    source, chat = tasks.Source("golden", [text.text(code[1:])], held=True), []
    for kind in ("pairs", "json", "edit", "tools", "chat", "edit", "json", "pairs", "varied"):
        ids, marks = tasks.encode(source.make(kind, 260), text)
        end = max(i for i, m in enumerate(marks) if m == tasks.PROMPT) + 1
        chat += ids[:end] if kind == "varied" else ids
    return {"tiny-code": code, "tiny-needle": found, "tiny-chat": chat}


def reference(hf, ids):
    tokens = torch.tensor(ids)
    with torch.no_grad():
        out = hf(tokens[None], output_hidden_states=True, use_cache=False)
        new = hf.generate(tokens[None], max_new_tokens=32, do_sample=False, eos_token_id=None, pad_token_id=0,
                          output_logits=True, return_dict_in_generate=True)
    n = len(ids)
    rows = torch.cat((torch.linspace(0, n - 9, ROWS - 4).long(), torch.tensor([n - 7, n - 4, n - 2, n - 1])))
    best = torch.stack([l[0].float().topk(2).values for l in new.logits])
    log("prompt of %d tokens; smallest gap of the two best logits: %.4f" % (n, (best[:, 0] - best[:, 1]).min()))
    found = {"tokens": tokens.int(), "rows": rows.int(), "logits": out.logits[0, rows].float(),
             "greedy": new.sequences[0, n:].int()}
    for i in LAYERS:
        found["hidden.%d" % i] = out.hidden_states[i][0, rows].float()
    return found, out.hidden_states


class Parts:
    """One drafter layer's modules, transformers' own, with our weights."""

    def __init__(self, params, n, config):
        from transformers.models.qwen3 import modeling_qwen3 as q3
        self.mlp = q3.Qwen3MLP(config)
        self.norms = {}
        at = "layers.%d." % n
        self.mlp.load_state_dict({k: params[at + "mlp." + k] for k in ("gate_proj.weight", "up_proj.weight", "down_proj.weight")})
        for name in ("input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm"):
            weight = params[at + name + ".weight"]
            norm = q3.Qwen3RMSNorm(weight.shape[0], eps=1e-6)
            norm.load_state_dict({"weight": weight})
            self.norms[name] = norm
        self.w = {k: params[at + "self_attn.%s_proj.weight" % k] for k in "qkvo"}


def draft_block(params, embed, taps, ids, start):
    """One block as z-lab's drafter computes it, by transformers' Qwen3 parts."""
    from transformers import Qwen3Config
    from transformers.models.qwen3 import modeling_qwen3 as q3
    config = Qwen3Config(**{k: v for k, v in DRAFTER.items() if k not in ("architectures", "dflash_config", "block_size")})
    rotary = q3.Qwen3RotaryEmbedding(config)
    unit = lambda x, w: w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
    c = unit(taps[:start] @ params["fc.weight"].T, params["hidden_norm.weight"])
    x = embed[torch.tensor([ids[start]] + [MASK] * (BLOCK - 1))] * DRAFTER["hidden_size"] ** 0.5
    key = torch.arange(start + BLOCK)
    query, d, heads = key[start:], DRAFTER["head_dim"], DRAFTER["num_attention_heads"]
    for n, kind in enumerate(DRAFTER["layer_types"]):
        part = Parts(params, n, config)
        z = part.norms["input_layernorm"](x)
        both = torch.cat((c, z))
        split = lambda t: t.view(t.shape[0], -1, d).transpose(0, 1)[None]
        q = part.norms["self_attn.q_norm"](split(z @ part.w["q"].T))
        k = part.norms["self_attn.k_norm"](split(both @ part.w["k"].T))
        v = split(both @ part.w["v"].T)
        cos, sin = rotary(x, key[None])
        q, _ = q3.apply_rotary_pos_emb(q, q, cos[:, start:], sin[:, start:])
        k, _ = q3.apply_rotary_pos_emb(k, k, cos, sin)
        groups = heads // DRAFTER["num_key_value_heads"]
        seen = torch.ones(BLOCK, start + BLOCK, dtype=torch.bool)
        if kind == "sliding_attention":
            back = query[:, None] - key[None]
            seen = (back >= 0) & (back < DRAFTER["sliding_window"])
        score = q @ q3.repeat_kv(k, groups).mT * d ** -0.5
        p = score.masked_fill(~seen, float("-inf")).softmax(-1)
        x = x + (p @ q3.repeat_kv(v, groups))[0].transpose(0, 1).flatten(1) @ part.w["o"].T
        x = x + part.mlp(part.norms["post_attention_layernorm"](x))
    h = unit(x, params["norm.weight"])
    return h, 30 * torch.tanh(h @ embed.T / 30)


@torch.no_grad()
def draft_case(hf, params, net_params, ids):
    hidden = hf(torch.tensor([ids]), output_hidden_states=True, use_cache=False).hidden_states
    taps = torch.cat([hidden[t + 1][0] for t in TAPS], -1)
    found, embed = {"tokens": torch.tensor(ids).int()}, net_params["model.embed_tokens.weight"]
    starts = [5, 600, DRAFTER["sliding_window"] + 3, len(ids) - BLOCK]
    for n, start in enumerate(starts):
        h, logits = draft_block(params, embed, taps, ids, start)
        found["block.%d.start" % n] = torch.tensor([start]).int()
        found["block.%d.hidden" % n], found["block.%d.logits" % n] = h, logits
    net, draft = model.Net(net_params), drafter.Drafter(params)
    sequence = torch.tensor(ids)
    docs, positions = torch.zeros_like(sequence), torch.arange(len(ids))
    c = draft.features({t: hidden[t + 1][0] for t in TAPS})
    anchors = torch.tensor(starts)
    mine = draft.forward(net, sequence, positions, c, anchors, drafter.dense_masks(anchors, docs))
    gap = max((mine[n] - found["block.%d.hidden" % n]).abs().max().item() for n in range(len(starts)))
    log("drafter: transformers' parts and ours differ by %.1e" % gap)
    assert gap < 5e-4
    return found


def write(folder, found):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "expect.safetensors")
    save_file({k: v.contiguous().clone() for k, v in found.items()}, path)
    log(path, os.path.getsize(path))


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("--held", required=True, help="npz with a stream of held-out code tokens")
    flags.add_argument("--models", default="models/tiny")
    flags.add_argument("--to", default="tests/data/parity")
    args = flags.parse_args()
    from transformers import Gemma4ForCausalLM
    verifier = os.path.join(args.models, "verifier")
    hf = Gemma4ForCausalLM.from_pretrained(verifier, dtype=torch.float32).eval()
    hf.set_attn_implementation("eager")
    text = Text(os.path.join(verifier, "tokenizer.json"))
    net_params = model.load(os.path.join(verifier, "model.safetensors"), "cpu")
    params = model.load(os.path.join(args.models, "drafter/model.safetensors"), "cpu")
    made = prompts(text, np.load(args.held)["held"])
    for name, ids in made.items():
        found, _ = reference(hf, ids)
        write(os.path.join(args.to, name), found)
        if name == "tiny-code":
            after = ids + found["greedy"].tolist()
    write(os.path.join(args.to, "tiny-drafter"), draft_case(hf, params, net_params, after))


if __name__ == "__main__":
    main()
