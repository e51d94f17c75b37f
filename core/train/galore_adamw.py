"""AdamW whose states of matrices live in a subspace of their gradients: GaLore (arXiv 2403.03507), algorithm 2.

    every gap steps   U, S, V = svd(gradient)     left = U[:, :r], right = V[:r]
    every step        low = left^T @ gradient     (or gradient @ right^T, or both sides)
                      parameter += scale * left @ AdamW(low)

Built by core/train/optimizer.py; planned in planner/parts/galore.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from planner.parts.galore import is_projected


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    rank: int
    update_proj_gap: int
    scale: float
    proj_type: str

    def sides(self, rows: int, columns: int) -> tuple[str, ...]:
        """Which sides of a gradient (rows x columns) are projected; () when the rank is not below both."""
        if not is_projected(rows, columns, self.rank):
            return ()
        match self.proj_type:
            case "full":
                return "left", "right"
            case "left" | "right":
                return (self.proj_type,)
            case _:
                return ("right",) if (rows >= columns) == (self.proj_type == "std") else ("left",)


class GaloreAdamW(torch.optim.Optimizer):
    """Groups with ``projected`` True get their states in the subspace; the others, and matrices that are too small,
    are updated as torch.optim.AdamW does. A state has its parameter's dtype."""

    def __init__(
        self, groups: Iterable[dict[str, Any]], *, projection: Projection, fused: bool, **defaults: Any
    ) -> None:
        super().__init__(groups, {**defaults, "projected": False, "fused": fused})
        self.projection = projection
        self.fused = fused

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(group, parameter)

    def _update(self, group: dict[str, Any], parameter: Tensor) -> None:
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        if not state:
            state["step"] = torch.tensor(0.0, device=parameter.device if self.fused else "cpu")
            state["num_steps"] = 0  # the same without asking the device
        sides = self.projection.sides(*parameter.shape) if group["projected"] else ()
        if sides and state["num_steps"] % self.projection.update_proj_gap == 0:
            state.update(_subspace(gradient, sides, self.projection.rank))
        state["num_steps"] += 1
        low = _project(gradient, state, sides)
        for name in ("exp_avg", "exp_avg_sq"):
            if name not in state:
                state[name] = torch.zeros_like(low)
        change = torch.zeros_like(low) if sides else parameter
        adamw(
            [change], [low], [state["exp_avg"]], [state["exp_avg_sq"]], [], [state["step"]], foreach=False,
            fused=self.fused, amsgrad=False, beta1=group["betas"][0], beta2=group["betas"][1], lr=group["lr"],
            weight_decay=0.0 if sides else group["weight_decay"], eps=group["eps"], maximize=False,
        )  # fmt: skip
        if sides:
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.add_(_project_back(change, state, sides), alpha=self.projection.scale)


def _subspace(gradient: Tensor, sides: tuple[str, ...], rank: int) -> dict[str, Tensor]:
    """The leading singular vectors: "left" (rows x r), "right" (r x columns), in the gradient's dtype."""
    u, _, vh = torch.linalg.svd(gradient.float(), full_matrices=False)
    vectors = {"left": u[:, :rank], "right": vh[:rank]}
    # a copy: a slice would keep all vectors alive
    return {side: vectors[side].to(gradient.dtype, copy=True, memory_format=torch.contiguous_format) for side in sides}


def _project(gradient: Tensor, state: dict[str, Any], sides: tuple[str, ...]) -> Tensor:
    if "left" in sides:
        gradient = state["left"].T @ gradient
    return gradient @ state["right"].T if "right" in sides else gradient


def _project_back(low: Tensor, state: dict[str, Any], sides: tuple[str, ...]) -> Tensor:
    if "left" in sides:
        low = state["left"] @ low
    return low @ state["right"] if "right" in sides else low
