"""Gemma 4's text model over a flat table of parameters with Hugging Face's names.

Written for training speed: the tokens of a step are one packed sequence, a layer is one compiled
function, attention is FlexAttention over the blocks a row can see, and all experts are computed and
weighted (there are four).  In float32 it equals transformers' Gemma4ForCausalLM; evaluate.py checks it.
"""
import torch
import torch.nn.functional as F

from settings import BOS, VERIFIER

BF16 = torch.bfloat16
ATTENTION = ("input_layernorm.weight", "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight",
             "self_attn.q_norm.weight", "self_attn.k_norm.weight", "self_attn.o_proj.weight",
             "post_attention_layernorm.weight")
FEED = ("pre_feedforward_layernorm.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight",
        "post_feedforward_layernorm_1.weight", "pre_feedforward_layernorm_2.weight", "router.scale",
        "router.proj.weight", "router.per_expert_scale", "experts.gate_up_proj", "experts.down_proj",
        "post_feedforward_layernorm_2.weight", "post_feedforward_layernorm.weight", "layer_scalar")


# ---- parameters -----------------------------------------------------------------------------------

def shapes(c=VERIFIER):
    """Name and shape of every tensor, as transformers stores them."""
    h, i, e, ie, nh = (c["hidden_size"], c["intermediate_size"], c["num_experts"], c["moe_intermediate_size"],
                       c["num_attention_heads"])
    out = {"model.embed_tokens.weight": (c["vocab_size"], h), "model.norm.weight": (h,)}
    for n, kind in enumerate(c["layer_types"]):
        full = kind == "full_attention"
        d = c["global_head_dim"] if full else c["head_dim"]
        kv = (c["num_global_key_value_heads"] if full else c["num_key_value_heads"]) * d
        layer = {"self_attn.q_proj.weight": (nh * d, h), "self_attn.k_proj.weight": (kv, h),
                 "self_attn.o_proj.weight": (h, nh * d), "self_attn.q_norm.weight": (d,), "self_attn.k_norm.weight": (d,),
                 "mlp.gate_proj.weight": (i, h), "mlp.up_proj.weight": (i, h), "mlp.down_proj.weight": (h, i),
                 "router.scale": (h,), "router.proj.weight": (e, h), "router.per_expert_scale": (e,),
                 "experts.gate_up_proj": (e, 2 * ie, h), "experts.down_proj": (e, h, ie), "layer_scalar": (1,)}
        if not full:
            layer["self_attn.v_proj.weight"] = (kv, h)
        for name in ATTENTION + FEED:
            if name.endswith("norm.weight") or "layernorm" in name:
                layer.setdefault(name, (h,))
        out.update({"model.layers.%d.%s" % (n, k): v for k, v in layer.items()})
    return out


def init(seed, device, c=VERIFIER):
    """Starts where this architecture trains well: unit embeddings, soft attention, small post norms."""
    g = torch.Generator().manual_seed(seed)
    h, params = c["hidden_size"], {}
    for name, shape in shapes(c).items():
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            t = torch.full(shape, (2.0 / shape[0] ** 0.5) ** 0.5)  # scores start with a spread of two
        elif name.endswith(("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")):
            t = torch.full(shape, 0.3)
        elif name.endswith("router.scale"):
            t = torch.full(shape, h ** 0.5)
        elif len(shape) == 1:
            t = torch.ones(shape)
        else:
            t = torch.randn(shape, generator=g) * (h if "embed" in name else shape[-1]) ** -0.5
        params[name] = t.to(device).requires_grad_(True)
    return params


def layer_weights(params, c=VERIFIER):
    return [tuple(params.get("model.layers.%d.%s" % (n, k)) for k in ATTENTION + FEED)
            for n in range(c["num_hidden_layers"])]


# ---- the layer --------------------------------------------------------------------------------------

def rms(x, w=None):
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
    return y if w is None else y * w.float()


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * cos[:, None] + turned * sin[:, None]


def attend(q, k, v, mask):
    """q, k, v [N, heads, d]; mask is FlexAttention's block mask, or a plain [N, N] of booleans."""
    q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))
    if isinstance(mask, torch.Tensor):
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)
    else:
        from torch.nn.attention.flex_attention import flex_attention
        o = flex_attention(q, k, v, block_mask=mask, scale=1.0)
    return o[0].transpose(0, 1).flatten(1)


def project(x, w, cos, sin):
    """q, k, v as they enter attention, and the raw projections behind k and v."""
    n_in, wq, wk, wv, n_q, n_k = w[:6]
    d, rows, dt = n_q.shape[0], x.shape[0], x.dtype
    z = rms(x, n_in).to(dt)
    q = F.linear(z, wq.to(dt)).view(rows, -1, d)
    k_raw = F.linear(z, wk.to(dt)).view(rows, -1, d)
    v_raw = k_raw if wv is None else F.linear(z, wv.to(dt)).view(rows, -1, d)
    return (rotate(rms(q, n_q), cos, sin).to(dt), rotate(rms(k_raw, n_k), cos, sin).to(dt), rms(v_raw).to(dt),
            k_raw, v_raw)


def experts(x_unit, w, dt, top_k):
    """The weighted sum of the chosen experts, and how uneven the choice is."""
    n_pre, scale, proj, each, gate_up, down = w
    rows, h = x_unit.shape
    e, twice, _ = gate_up.shape
    p = torch.softmax(F.linear(x_unit * scale * h ** -0.5, proj), -1)
    rest, chosen = p.detach(), torch.zeros_like(p, dtype=torch.bool)
    for _ in range(top_k):
        best = torch.arange(e, device=p.device) == rest.argmax(-1, keepdim=True)
        chosen, rest = chosen | best, rest.masked_fill(best, -1.0)
    weight = torch.where(chosen, p, 0.0)
    weight = weight / weight.sum(-1, keepdim=True) * each
    gu = F.linear((x_unit * n_pre).to(dt), gate_up.to(dt).reshape(e * twice, h)).view(rows, e, 2, twice // 2)
    a = F.gelu(gu[:, :, 0], approximate="tanh") * gu[:, :, 1] * weight.to(dt)[:, :, None]
    y = F.linear(a.reshape(rows, -1), down.to(dt).permute(1, 0, 2).reshape(h, -1))
    uneven = e * (chosen.float().mean(0) / top_k * p.mean(0)).sum()
    return y, uneven


def finish(x, o, w, top_k):
    """Everything after attention."""
    (wo, n_attn, n_ff, wg, wu, wd, n_post1, n_pre2, r_scale, r_proj, r_each, e_gu, e_down, n_post2, n_post,
     scalar) = w[6:]
    dt = x.dtype
    x = x + rms(F.linear(o, wo.to(dt)), n_attn).to(dt)
    unit = rms(x)
    z = (unit * n_ff).to(dt)
    dense = F.linear(F.gelu(F.linear(z, wg.to(dt)), approximate="tanh") * F.linear(z, wu.to(dt)), wd.to(dt))
    sparse, uneven = experts(unit, (n_pre2, r_scale, r_proj, r_each, e_gu, e_down), dt, top_k)
    x = x + rms(rms(dense, n_post1) + rms(sparse, n_post2), n_post).to(dt)
    return x * scalar.to(dt), uneven


def layer(x, w, cos, sin, mask, top_k):
    q, k, v, _, _ = project(x, w, cos, sin)
    return finish(x, attend(q, k, v, mask), w, top_k)


def head(x, norm, embed, cap=30.0):
    y = F.linear(rms(x, norm).to(x.dtype), embed.to(x.dtype)).float()
    return cap * torch.tanh(y / cap)


def head_loss(x, norm, embed, labels, weights):
    ce = F.cross_entropy(head(x, norm, embed), labels, reduction="none")
    return (ce * weights).sum() / weights.sum(), ce.detach()


# ---- positions and masks --------------------------------------------------------------------------------

def rope_table(positions, kind, c=VERIFIER):
    full = kind == "full_attention"
    d = c["global_head_dim"] if full else c["head_dim"]
    i = torch.arange(d // 2, device=positions.device, dtype=torch.float32)
    inv = (1e6 if full else 1e4) ** (-2 * i / d)
    if full:
        inv = torch.where(i < int(0.25 * d // 2), inv, 0.0)
    angle = positions.float()[:, None] * inv
    angle = torch.cat((angle, angle), -1)
    return angle.cos(), angle.sin()


def documents(ids):
    """Document number and position of each token; a document begins at <bos>."""
    at = torch.arange(ids.shape[0], device=ids.device)
    begins = ids == BOS
    return begins.cumsum(0), at - torch.where(begins, at, 0).cummax(0).values


def dense_masks(docs, positions, c=VERIFIER):
    back = positions[:, None] - positions[None]
    seen = (docs[:, None] == docs[None]) & (back >= 0)
    return {"full_attention": seen, "sliding_attention": seen & (back < c["sliding_window"])}


class Masks:
    """FlexAttention's masks for N packed tokens in rows of one length.

    Blocks are chosen by row and window alone; which document a token is of is looked up inside the
    kernel, in a buffer that each step overwrites.  So nothing is compiled twice.
    """

    def __init__(self, n, device, c=VERIFIER, block=128):
        from torch.nn.attention.flex_attention import BlockMask
        self.make, self.n, self.block, self.window = BlockMask.from_kv_blocks, n, block, c["sliding_window"]
        self.docs = torch.zeros(n, dtype=torch.int32, device=device)
        self.kept = {}
        docs, window = self.docs, self.window
        self.seen = {
            "full_attention": lambda b, h, q, k: (docs[q] == docs[k]) & (k <= q),
            "sliding_attention": lambda b, h, q, k: (docs[q] == docs[k]) & (k <= q) & (q - k < window),
        }

    def of(self, width):
        if width not in self.kept:
            i = torch.arange(self.n // self.block, device=self.docs.device)
            per_row = width // self.block
            near = (i[:, None] // per_row == i[None] // per_row) & (i[None] <= i[:, None])
            found = {}
            for kind, seen in self.seen.items():
                on = near if kind == "full_attention" else near & (i[:, None] - i[None] <= self.window // self.block)
                count = on.sum(1, dtype=torch.int32)
                index = on.to(torch.int32).argsort(dim=1, descending=True, stable=True).to(torch.int32)
                found[kind] = self.make(count[None, None], index[None, None], None, None, BLOCK_SIZE=self.block,
                                        mask_mod=seen, seq_lengths=(self.n, self.n))
            self.kept[width] = found
        return self.kept[width]


class Net:
    """The model over its parameters: compiled on a GPU, plain elsewhere."""

    def __init__(self, params, c=VERIFIER, compiled=False):
        self.params, self.c = params, c
        self.layers = layer_weights(params, c)
        self.embed, self.norm = params["model.embed_tokens.weight"], params["model.norm.weight"]
        wrap = (lambda f: torch.compile(f, dynamic=False)) if compiled else (lambda f: f)
        self.layer, self.head_loss, self.head = wrap(layer), wrap(head_loss), wrap(head)

    def embedded(self, ids, dt):
        return (F.embedding(ids, self.embed) * self.c["hidden_size"] ** 0.5).to(dt)

    def forward(self, ids, dt=BF16, masks=None, taps=()):
        """ids [N] packed -> the last layer's output, unevenness, {layer: output} of the taps."""
        docs, positions = documents(ids)
        masks = masks if masks is not None else dense_masks(docs, positions, self.c)
        tables = {k: rope_table(positions, k, self.c) for k in set(self.c["layer_types"])}
        x, uneven, kept = self.embedded(ids, dt), 0.0, {}
        for n, (kind, w) in enumerate(zip(self.c["layer_types"], self.layers)):
            x, u = self.layer(x, w, *tables[kind], masks[kind], self.c["top_k_experts"])
            uneven = uneven + u
            if n in taps:
                kept[n] = x
        return x, uneven / len(self.layers), kept

    def logits(self, x):
        return head(x, self.norm, self.embed)


# ---- files -----------------------------------------------------------------------------------------------

def save(params, path):
    from safetensors.torch import save_file
    save_file({k: v.detach().to(BF16).cpu().contiguous() for k, v in params.items()}, path, metadata={"format": "pt"})


def load(path, device, dtype=torch.float32):
    from safetensors.torch import load_file
    return {k: v.to(device, dtype) for k, v in load_file(path).items()}
