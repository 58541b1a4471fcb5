"""The DFlash drafter over a flat table of parameters with z-lab's names.

A block is [anchor, mask x 7] at the anchor's position and after it; every position predicts the token
at its own place.  Context are the verifier's tapped layer outputs at positions before the anchor.
Sliding layers are causal in the block and see a window of context, the last layer sees all of both.
Many blocks of a packed sequence run in one pass; blocks do not see each other.
"""
import torch
import torch.nn.functional as F

from model import BF16, rms, rotate
from settings import BLOCK, DRAFTER, MASK, TAPS

NAMES = ("input_layernorm.weight", "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight",
         "self_attn.q_norm.weight", "self_attn.k_norm.weight", "self_attn.o_proj.weight",
         "post_attention_layernorm.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight")


def shapes(c=DRAFTER):
    h, d, i = c["hidden_size"], c["head_dim"], c["intermediate_size"]
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    out = {"fc.weight": (h, len(TAPS) * h), "hidden_norm.weight": (h,), "norm.weight": (h,)}
    layer = dict(zip(NAMES, ((h,), (q, h), (kv, h), (kv, h), (d,), (d,), (h, q), (h,), (i, h), (i, h), (h, i))))
    for n in range(c["num_hidden_layers"]):
        out.update({"layers.%d.%s" % (n, k): v for k, v in layer.items()})
    return out


def init(seed, device, c=DRAFTER):
    g = torch.Generator().manual_seed(seed)
    params = {}
    for name, shape in shapes(c).items():
        t = torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=g) * shape[-1] ** -0.5
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            t *= 0.3
        params[name] = t.to(device).requires_grad_(True)
    return params


def rope_table(positions, c=DRAFTER):
    i = torch.arange(c["head_dim"] // 2, device=positions.device, dtype=torch.float32)
    angle = positions.float()[:, None] * c["rope_theta"] ** (-2 * i / c["head_dim"])
    angle = torch.cat((angle, angle), -1)
    return angle.cos(), angle.sin()


def attend(q, k, v, mask):
    groups = q.shape[1] // k.shape[1]
    q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))
    scale = q.shape[-1] ** -0.5
    if isinstance(mask, torch.Tensor):
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    else:
        from torch.nn.attention.flex_attention import flex_attention
        o = flex_attention(q, k, v, block_mask=mask, scale=scale, enable_gqa=True)
    return o[0].transpose(0, 1).flatten(1)


def layer(x, context, w, table_q, table_k, mask):
    """x [Q, H] block rows, context [N, H]; keys are the context's, then the blocks'."""
    n_in, wq, wk, wv, n_q, n_k, wo, n_post, wg, wu, wd = w
    d, dt = n_q.shape[0], x.dtype
    z = rms(x, n_in).to(dt)
    both = torch.cat((context, z))
    q = rotate(rms(F.linear(z, wq.to(dt)).view(z.shape[0], -1, d), n_q), *table_q).to(dt)
    k = rotate(rms(F.linear(both, wk.to(dt)).view(both.shape[0], -1, d), n_k), *table_k).to(dt)
    v = F.linear(both, wv.to(dt)).view(both.shape[0], -1, d)
    x = x + F.linear(attend(q, k, v, mask), wo.to(dt))
    z = rms(x, n_post).to(dt)
    return x + F.linear(F.silu(F.linear(z, wg.to(dt))) * F.linear(z, wu.to(dt)), wd.to(dt))


def context(taps, fc, norm):
    return rms(F.linear(taps, fc.to(taps.dtype)), norm).to(taps.dtype)


def dense_masks(anchors, docs, c=DRAFTER):
    """Plain masks [A * BLOCK, N + A * BLOCK] for few blocks; anchors are indices into the sequence."""
    n, device = docs.shape[0], docs.device
    at = anchors.repeat_interleave(BLOCK)
    off = torch.arange(BLOCK, device=device).repeat(anchors.shape[0])
    key = torch.arange(n, device=device)
    before = (key[None] < at[:, None]) & (docs[None] == docs[at][:, None])
    block = torch.arange(at.shape[0], device=device) // BLOCK
    same = block[:, None] == block[None]
    near = (at + off)[:, None] - key[None] < c["sliding_window"]
    return {"full_attention": torch.cat((before, same), 1),
            "sliding_attention": torch.cat((before & near, same & (off[None] <= off[:, None])), 1)}


class Masks:
    """FlexAttention's masks for A sorted anchors over N packed tokens, rebuilt each step from buffers."""

    def __init__(self, n, anchors, device, c=DRAFTER, tile=128):
        self.n, self.tile, self.window = n, tile, c["sliding_window"]
        self.docs = torch.zeros(n, dtype=torch.int32, device=device)
        self.at = torch.zeros(anchors, dtype=torch.int32, device=device)
        docs, at, window = self.docs, self.at, self.window

        def seen(full):
            def mod(b, h, q, k):
                a = at[q // BLOCK]
                inside = torch.clamp(k, max=n - 1)
                here = (k < n) & (k < a) & (docs[inside] == docs[a])
                own = (k >= n) & ((k - n) // BLOCK == q // BLOCK)
                if full:
                    return here | own
                return (here & (a + q % BLOCK - k < window)) | (own & ((k - n) % BLOCK <= q % BLOCK))
            return mod
        self.seen = {"full_attention": seen(True), "sliding_attention": seen(False)}

    def of(self, docs, starts, anchors):
        from torch.nn.attention.flex_attention import BlockMask
        self.docs.copy_(docs)
        self.at.copy_(anchors)
        n, tile, queries = self.n, self.tile, anchors.shape[0] * BLOCK
        per = tile // BLOCK
        first, last = anchors[::per], anchors[per - 1::per]
        j = torch.arange(n // tile, device=docs.device)
        own = torch.eye(queries // tile, dtype=torch.bool, device=docs.device)
        out = {}
        for kind, seen in self.seen.items():
            low = starts[first]
            if kind == "sliding_attention":
                low = torch.maximum(low, first - self.window + 1)
            on = (j[None] >= low[:, None] // tile) & (j[None] <= (last - 1)[:, None] // tile)
            on = torch.cat((on, own), 1)
            index = on.to(torch.int32).argsort(dim=1, descending=True, stable=True).to(torch.int32)
            out[kind] = BlockMask.from_kv_blocks(on.sum(1, dtype=torch.int32)[None, None], index[None, None], None, None,
                                                 BLOCK_SIZE=tile, mask_mod=seen, seq_lengths=(queries, n + queries))
        return out


class Drafter:
    def __init__(self, params, c=DRAFTER, compiled=False):
        self.params, self.c = params, c
        self.layers = [tuple(params["layers.%d.%s" % (n, k)] for k in NAMES) for n in range(c["num_hidden_layers"])]
        wrap = (lambda f: torch.compile(f, dynamic=False)) if compiled else (lambda f: f)
        self.layer, self.context = wrap(layer), wrap(context)

    def features(self, kept):
        """The context rows c from the verifier's taps {layer: [N, H]}."""
        taps = torch.cat([kept[t] for t in TAPS], -1)
        return self.context(taps, self.params["fc.weight"], self.params["hidden_norm.weight"])

    def forward(self, net, ids, positions, c, anchors, masks):
        """Rows after the final norm, [A, BLOCK, H]."""
        block = torch.full((anchors.shape[0], BLOCK), MASK, device=ids.device)
        block[:, 0] = ids[anchors]
        at = (positions[anchors][:, None] + torch.arange(BLOCK, device=ids.device)).flatten()
        x = (F.embedding(block.flatten(), net.embed.detach()) * self.c["hidden_size"] ** 0.5).to(c.dtype)
        table_q, table_k = rope_table(at, self.c), rope_table(torch.cat((positions, at)), self.c)
        for kind, w in zip(self.c["layer_types"], self.layers):
            x = self.layer(x, c, w, table_q, table_k, masks[kind])
        return rms(x, self.params["norm.weight"]).to(x.dtype).view(-1, BLOCK, x.shape[-1])


def head(h, embed, cap=30.0):
    y = F.linear(h, embed.to(h.dtype)).float()
    return cap * torch.tanh(y / cap)


@torch.no_grad()
def accepted(net, draft, ids, first, dt=BF16):
    """For each anchor from ids[first] on: how many drafted tokens equal what the sequence goes on with."""
    from model import documents
    docs, positions = documents(ids)
    x, _, kept = net.forward(ids, dt=dt, taps=TAPS)
    c = draft.features({t: k.to(dt) for t, k in kept.items()})
    anchors = torch.arange(first, ids.shape[0] - 1, device=ids.device)
    found = []
    for part in anchors.split(256):
        h = draft.forward(net, ids, positions, c, part, dense_masks(part, docs))
        drafts = head(h[:, 1:], net.embed).argmax(-1)
        want = F.pad(ids, (0, BLOCK), value=-1)[part[:, None] + torch.arange(1, BLOCK, device=ids.device)]
        found.append((drafts == want).long().cumprod(1).sum(1))
    return torch.cat(found).tolist()


def rounds(lengths, limit):
    """Tokens each round of speculation gives when anchor i drafts lengths[i] right, over `limit` tokens."""
    out, at = [], 0
    while at < limit and at < len(lengths):
        out.append(min(lengths[at] + 1, len(lengths) - at))
        at += lengths[at] + 1
    return out
