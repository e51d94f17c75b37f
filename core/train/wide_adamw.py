"""AdamW of 16-bit parameters in float32, so that updates below half a unit in the last place are not lost.

`master_weights: fp32` keeps a float32 copy of each parameter; the parameter is that copy, rounded. `stochastic` keeps
none: a parameter is widened, updated, and rounded up or down by chance, in proportion to how near each is, so that
updates add up on average (arXiv 2010.06192). States are float32 either way. Tensors are updated one after another:
what is wide beside the states is one tensor's. Built by core/train/optimizer.py; planned in planner/parts/optimizer.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.adamw import adamw

_BITS_LOST = {torch.bfloat16: 16}  # of float32's 23 mantissa bits, when rounded to this dtype


class WideAdamW(torch.optim.Optimizer):
    """``master`` "fp32": parameters of any dtype; "stochastic": bfloat16. Otherwise as torch.optim.AdamW."""

    def __init__(
        self, groups: Iterable[dict[str, Any]], *, master: Literal["fp32", "stochastic"], fused: bool, seed: int,
        **defaults: Any,
    ) -> None:  # fmt: skip
        super().__init__(groups, {**defaults, "fused": fused})
        self.master = master
        self.fused = fused
        self.seed = seed

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        number = 0
        for group in self.param_groups:
            for parameter in group["params"]:
                number += 1
                if parameter.grad is None:
                    continue
                wide, state = self._updated(group, parameter)
                if self.master == "fp32":
                    parameter.copy_(wide)
                    continue
                # of the step and the tensor: equal on all ranks, after a resume, and whichever tensors are updated now
                chance = torch.Generator(parameter.device)  # on a CPU it takes the low 32 bits of its seed
                chance.manual_seed((1_000_003 * self.seed + int(state["step"])) * 65_537 + number)
                parameter.copy_(round_by_chance(wide, parameter.dtype, chance))

    def _updated(self, group: dict[str, Any], parameter: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The parameter after its update, in float32, and its state."""
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0, device=parameter.device if self.fused else "cpu")
            state["exp_avg"] = torch.zeros_like(parameter, dtype=torch.float32)
            state["exp_avg_sq"] = torch.zeros_like(parameter, dtype=torch.float32)
            if self.master == "fp32":
                state["master"] = parameter.float()
        wide = state["master"] if self.master == "fp32" else parameter.float()
        adamw(
            [wide], [parameter.grad.float()], [state["exp_avg"]], [state["exp_avg_sq"]], [], [state["step"]],
            foreach=False, fused=self.fused, amsgrad=False, beta1=group["betas"][0], beta2=group["betas"][1],
            lr=group["lr"], weight_decay=group["weight_decay"], eps=group["eps"], maximize=False,
        )  # fmt: skip
        return wide, state


def round_by_chance(x: Tensor, dtype: torch.dtype, chance: torch.Generator) -> Tensor:
    """float32 ``x`` on the grid of ``dtype``, still as float32: the upper neighbour with the share of the way to it.

    Random bits are added below the last one that is kept, and what is below it is cut off.
    """
    lost = _BITS_LOST[dtype]
    bits = torch.randint(0, 1 << lost, x.shape, dtype=torch.int32, device=x.device, generator=chance)
    return bits.add_(x.view(torch.int32)).bitwise_and_(-(1 << lost)).view(torch.float32)
