"""Muon for matrices, AdamW for the rest, and whole steps as CUDA graphs.

Muon steps along the orthogonal part of the momentum.  Matrices of one shape are stepped together, so
that a step costs a few dozen launches and not thousands; an expert is a matrix like any other.
Rates are tensors on the device, so that a captured step can be replayed with another rate.
"""
import torch

from settings import log


@torch.no_grad()
def orthogonal(g, steps=5):
    """Newton-Schulz: pushes all singular values of each matrix towards one."""
    x = g.bfloat16()
    flip = x.shape[-2] > x.shape[-1]
    x = x.mT if flip else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.mT
        b = torch.baddbmm(a, a, a, beta=-4.7750, alpha=2.0315)
        x = torch.baddbmm(x, b, x, beta=3.4445)
    return x.mT if flip else x


class Muon:
    def __init__(self, params, momentum=0.95, decay=0.1):
        self.momentum, self.decay, self.groups = momentum, decay, {}
        for p in params:
            self.groups.setdefault(tuple(p.shape[-2:]), []).append(p)
        self.state = {s: torch.cat([torch.zeros_like(p).view(-1, *s) for p in ps]).detach()
                      for s, ps in self.groups.items()}

    @torch.no_grad()
    def step(self, rate):
        for shape, params in self.groups.items():
            grad = torch.cat([p.grad.view(-1, *shape) for p in params])
            kept = self.state[shape]
            kept.lerp_(grad, 1 - self.momentum)
            move = orthogonal(grad.lerp_(kept, self.momentum)).float()
            move = move * (rate * -max(1.0, shape[0] / shape[1]) ** 0.5)
            parts = move.split([p.numel() // (shape[0] * shape[1]) for p in params])
            torch._foreach_mul_(params, 1 - rate * self.decay)
            torch._foreach_add_(params, [u.view_as(p) for u, p in zip(parts, params)])


class Both:
    """One optimiser to the outside; the rate is given as a share of the peaks."""

    def __init__(self, named, muon_lr, adam_lr, muon=True):
        matrix = lambda n, p: muon and p.dim() >= 2 and min(p.shape[-2:]) >= 32 and "embed" not in n
        matrices = [p for n, p in named.items() if matrix(n, p)]
        wide = [p for n, p in named.items() if not matrix(n, p) and p.dim() >= 2]
        small = [p for n, p in named.items() if not matrix(n, p) and p.dim() < 2]
        self.muon = Muon(matrices) if matrices else None
        self.all = matrices + wide + small
        device = self.all[0].device
        cuda = device.type == "cuda"
        self.peaks = muon_lr, adam_lr
        self.muon_rate = torch.zeros((), device=device)
        self.adam_rate = torch.zeros((), device=device)
        self.adam = torch.optim.AdamW([{"params": wide, "weight_decay": 0.05}, {"params": small, "weight_decay": 0.0}],
                                      lr=self.adam_rate if cuda else adam_lr, betas=(0.9, 0.95), fused=cuda,
                                      capturable=cuda)
        self.cuda = cuda

    def set_rate(self, share):
        self.muon_rate.fill_(self.peaks[0] * share)
        self.adam_rate.fill_(self.peaks[1] * share)
        if not self.cuda:
            for group in self.adam.param_groups:
                group["lr"] = self.peaks[1] * share

    def step(self):
        norm = torch.nn.utils.clip_grad_norm_(self.all, 1.0, foreach=True)
        if self.muon:
            self.muon.step(self.muon_rate)
        self.adam.step()
        self.clear()
        return norm

    def clear(self):
        for p in self.all:
            p.grad = None

    def state(self):
        return {"muon": self.muon.state if self.muon else None, "adam": self.adam.state_dict()}

    def load(self, state):
        if self.muon:
            for shape, kept in self.muon.state.items():
                kept.copy_(state["muon"][shape])
        self.adam.load_state_dict(state["adam"])
        for group in self.adam.param_groups:
            if self.cuda:
                group["lr"] = self.adam_rate


class Graphs:
    """Runs a step over fixed buffers: plainly the first two times, then captured and replayed.

    What takes a step its time here is not arithmetic but the thousand launches.  A step that cannot be
    captured goes on plainly.
    """

    def __init__(self, step, on):
        self.step, self.on, self.seen, self.kept = step, on, {}, {}

    def __call__(self, *key):
        if not self.on or self.seen.get(key, 0) < 2:
            self.seen[key] = self.seen.get(key, 0) + 1
            return self.step(*key)
        if key not in self.kept:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    out = self.step(*key)
            except Exception as e:  # noqa: BLE001 - any failure to capture means: without
                log("no graph:", type(e).__name__, str(e)[:300])
                self.on = False
                return self.step(*key)
            self.kept[key] = graph, out
        graph, out = self.kept[key]
        graph.replay()
        return out
