"""The MLP of a decoder layer by tiles of tokens: what is as wide as the MLP exists for one tile. `tiled_mlp` uses it.

    forward    x ----- tile 0, tile 1, ... without a graph -----> out            x is kept, nothing else
    backward   for each tile: forward again with a graph, then its backward       dx fills up, weight gradients add up

Weight gradients are outputs of the function, so that each is counted once, whatever hooks look at it. Idea: ALST
(arXiv 2506.13996). Sums over tiles are float32 or wider.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from core.attention.kernel import wide_dtype


def tile_forward(module: nn.Module, num_tiles: int) -> Callable[[], None]:
    """Put a TiledForward in place of the module's forward, which `liger` may have replaced; how to take it back."""
    before = module.__dict__.get("forward")
    module.forward = TiledForward(module, num_tiles)  # type: ignore[method-assign]

    def undo() -> None:
        del module.forward
        if before is not None:
            module.forward = before  # type: ignore[method-assign]

    return undo


class TiledForward:
    """In place of the forward of one MLP module, adapters in it included: (1, L, d) -> (1, L, d)."""

    def __init__(self, module: nn.Module, num_tiles: int) -> None:
        self.num_tiles = num_tiles
        self.num_calls = 0
        self._forward: Callable[[Tensor], Tensor] = module.forward
        self._module = module

    def __call__(self, x: Tensor) -> Tensor:
        self.num_calls += 1
        trained = [p for p in self._module.parameters() if p.requires_grad]  # as they are now: `fsdp` exchanges them
        out: Tensor = _Tiled.apply(x, self._forward, self.num_tiles, *trained)
        return out


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, forward: Callable[[Tensor], Tensor], num_tiles: int, *trained: Tensor
    ) -> Tensor:  # fmt: skip
        out: Tensor | None = None
        for rows in tiles_of(x.shape[1], num_tiles):
            part = forward(x[:, rows])
            out = x.new_empty(*x.shape[:2], part.shape[2], dtype=part.dtype) if out is None else out
            out[:, rows] = part
            del part
        ctx.save_for_backward(x)
        ctx.run, ctx.num_tiles, ctx.trained = forward, num_tiles, trained
        device_type = x.device.type
        ctx.autocast = {
            "device_type": device_type,
            "enabled": torch.is_autocast_enabled(device_type),
            "dtype": torch.get_autocast_dtype(device_type),
        }
        assert out is not None
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        wants_x = ctx.needs_input_grad[0]
        dx = torch.empty_like(x) if wants_x else None
        sums: list[Tensor | None] = [None] * len(ctx.trained)
        for rows in tiles_of(x.shape[1], ctx.num_tiles):
            leaf = x[:, rows].detach().requires_grad_(wants_x)
            with torch.enable_grad(), torch.autocast(**ctx.autocast):
                part = ctx.run(leaf)
            inputs = ([leaf] if wants_x else []) + list(ctx.trained)
            grads = list(torch.autograd.grad(part, inputs, dout[:, rows]))
            del part
            if dx is not None:
                dx[:, rows] = grads.pop(0)
            for index, grad in enumerate(grads):
                so_far = sums[index]
                sums[index] = grad.to(wide_dtype(grad.dtype)) if so_far is None else so_far.add_(grad)
        dtrained = [None if total is None else total.to(parameter.dtype) for total, parameter in zip(sums, ctx.trained)]
        return dx, None, None, *dtrained


def tiles_of(num_tokens: int, num_tiles: int) -> list[slice]:
    """Of equal size but the last; fewer than ``num_tiles`` where there are fewer tokens, and an empty one for none."""
    size = max(1, -(-num_tokens // num_tiles))
    return [slice(start, min(start + size, num_tokens)) for start in range(0, max(1, num_tokens), size)]
