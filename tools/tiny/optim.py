"""Muon for matrices, AdamW for the rest.

Muon steps along the orthogonal part of the momentum.  Matrices of one shape are stepped together, so
that a step costs a few dozen launches and not thousands; an expert is a matrix like any other.
"""
import torch


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
    def __init__(self, params, lr, momentum=0.95, decay=0.1):
        self.lr, self.momentum, self.decay, self.groups = lr, momentum, decay, {}
        for p in params:
            self.groups.setdefault(tuple(p.shape[-2:]), []).append(p)
        self.state = {s: torch.cat([torch.zeros_like(p).view(-1, *s) for p in ps]) for s, ps in self.groups.items()}

    @torch.no_grad()
    def step(self):
        for shape, params in self.groups.items():
            grad = torch.cat([p.grad.view(-1, *shape) for p in params])
            kept = self.state[shape]
            kept.lerp_(grad, 1 - self.momentum)
            move = orthogonal(grad.lerp_(kept, self.momentum))
            rate = self.lr * max(1.0, shape[0] / shape[1]) ** 0.5
            parts = move.float().split([p.numel() // (shape[0] * shape[1]) for p in params])
            torch._foreach_mul_(params, 1 - self.lr * self.decay)
            torch._foreach_add_(params, [u.view_as(p) for u, p in zip(parts, params)], alpha=-rate)


class Both:
    """One optimiser to the outside; rates are given as a share of their peak."""

    def __init__(self, named, muon_lr, adam_lr, muon=True):
        matrix = lambda n, p: muon and p.dim() >= 2 and min(p.shape[-2:]) >= 32 and "embed" not in n
        self.matrices = [p for n, p in named.items() if matrix(n, p)]
        wide = [p for n, p in named.items() if not matrix(n, p) and p.dim() >= 2]
        small = [p for n, p in named.items() if not matrix(n, p) and p.dim() < 2]
        self.muon = Muon(self.matrices, muon_lr) if self.matrices else None
        self.rest = wide + small
        self.adam = torch.optim.AdamW([{"params": wide, "weight_decay": 0.05}, {"params": small, "weight_decay": 0.0}],
                                      lr=adam_lr, betas=(0.9, 0.95), fused=self.rest[0].is_cuda)
        self.peaks = muon_lr, adam_lr
        self.all = self.matrices + self.rest

    def step(self, share):
        norm = torch.nn.utils.clip_grad_norm_(self.all, 1.0, foreach=True)
        if self.muon:
            self.muon.lr = self.peaks[0] * share
            self.muon.step()
        for group in self.adam.param_groups:
            group["lr"] = self.peaks[1] * share
        self.adam.step()
        for p in self.all:
            p.grad = None
        return norm

    def state(self):
        return {"muon": self.muon.state if self.muon else None, "adam": self.adam.state_dict()}

    def load(self, state):
        if self.muon:
            self.muon.state = state["muon"]
        self.adam.load_state_dict(state["adam"])
