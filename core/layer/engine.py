"""The layer engine of a run: its decoder layers computed by hand-written forwards and backwards. `engine: layer`.

core/train/build.py installs it once adapters and kernel are in place. The model's own loop, embeddings and head stay;
each decoder layer's forward becomes one autograd Function, and so does the last norm. What gradient_checkpointing,
checkpoint_offload, fake_parallel, tiled_mlp and liger ask for is the engine's policy, so that their own ``apply`` is
not called, and their evidence is given here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from core.attention.register import RowAttention
from core.layer.decoder_layer import DecoderLayer, Kept, RowPart
from core.layer.row_ops import RowOps, TorchRowOps
from core.offload.host_tensors import HostTensors
from core.optimizations.evidence import Evidence, NotActive
from core.train.setup import TrainingSetup
from planner.layer_policy import CARRIED_OUT, layer_policies
from planner.parts.offload import offload_slot_bytes, output_slot_bytes, outputs_leave


class LayerEngine:
    """Installed in ``__init__``; ``setup.restore`` takes it out."""

    def __init__(self, setup: TrainingSetup) -> None:
        self.setup = setup
        self.ops = row_ops(setup.device)
        decoder = setup.causal_lm.get_decoder()
        config, spec = setup.config, setup.spec
        policies = layer_policies(config, spec)
        self.num_offloaded = sum(policy.offloads for policy in policies)
        self.inputs = self._host(offload_slot_bytes(config, spec))
        self.outputs = self._host(output_slot_bytes(config, spec)) if outputs_leave(config, spec) else None
        self.layers = [
            _InstalledLayer(self, index, DecoderLayer(module, policy, self.ops))
            for index, (module, policy) in enumerate(zip(decoder.layers, policies, strict=True))
        ]
        for module, layer in zip(decoder.layers, self.layers):
            self._replace_forward(module, layer)
        self._replace_forward(decoder.norm, lambda x: _LastNorm.apply(x, decoder.norm, self.ops))

    def _host(self, size_bytes: int) -> HostTensors | None:
        """Where one tensor of each offloaded layer waits in host memory; None: nothing goes there."""
        if not self.num_offloaded:
            return None
        num_layers = self.setup.spec.num_layers
        waiting = HostTensors(
            num_layers, kept_layers=num_layers - self.num_offloaded, slot_bytes=size_bytes, device=self.setup.device
        )
        self.setup.undo.append(waiting.slots.free)
        return waiting

    def _replace_forward(self, module: nn.Module, forward: Any) -> None:
        module.forward = forward
        self.setup.undo.append(lambda: module.__dict__.pop("forward"))

    def evidence(self) -> tuple[Evidence, ...]:
        """Of every enabled optimization that the engine carries out, and of the engine itself.

        Raises:
            NotActive: a layer did not run backward here, or what went to host memory did not come back.
        """
        ran = sum(layer.num_backwards > 0 for layer in self.layers)
        if ran != len(self.layers):
            raise NotActive(f"engine layer: {ran} of {len(self.layers)} layers ran backward in it")
        moved = [waiting for waiting in (self.inputs, self.outputs) if waiting is not None]
        if any(waiting.num_in != waiting.num_out or waiting.num_out == 0 for waiting in moved):
            raise NotActive("checkpoint_offload: what left for host memory did not come back")
        policies = [layer.layer.policy for layer in self.layers]
        first, num_kept = policies[0], sum(policy.keeps_products for policy in policies)
        claims = {
            "gradient_checkpointing": f"{len(policies) - num_kept} of {len(policies)} decoder layers recompute in "
            f"backward, {sum(policy.keeps_attention for policy in policies)} keep attention's output",
            "checkpoint_offload": f"{self.num_offloaded} layers waited in host memory, "
            f"{sum(waiting.num_bytes_out for waiting in moved):,} bytes so far",
            "fake_parallel": f"every layer attends in {first.head_groups} head groups",
            "tiled_mlp": f"every layer runs its MLP in {first.mlp_tiles} tiles",
            "liger": f"the layer engine computes norms, RoPE and SwiGLU itself, by its {self.ops.name} kernels",
        }
        enabled = [setting.name for setting in self.setup.config.optimizations if setting.name in CARRIED_OUT]
        own = Evidence(
            optimization="engine", counts=(("layers", ran),),
            claim=f"{ran} of {len(self.layers)} decoder layers ran forward and backward in the layer engine",
        )  # fmt: skip
        return own, *(Evidence(optimization=name, claim=claims[name], counts=(("layers", ran),)) for name in enabled)


class _InstalledLayer:
    """In place of the forward of a transformers decoder layer."""

    def __init__(self, engine: LayerEngine, index: int, layer: DecoderLayer) -> None:
        self.engine, self.index, self.layer = engine, index, layer
        self.num_backwards = 0

    def __call__(
        self, hidden_states: Tensor, *, position_embeddings: tuple[Tensor, Tensor], longfit_row: RowAttention, **_: Any
    ) -> Tensor:
        """hidden_states (1, L, d), cos and sin (1, L, h) -> (1, L, d)."""
        cos, sin = position_embeddings
        row = RowPart(cos=cos[0], sin=sin[0], layout=longfit_row.layout, attention=longfit_row.attention)
        with torch.autocast(hidden_states.device.type, enabled=False):
            return _Layer.apply(hidden_states, self, row, torch.is_grad_enabled(), *self.layer.parameters)

    def hold(self, x: Tensor, kept: Kept) -> Tensor | None:
        """Send away what waits in host memory. What stays of x."""
        inputs, outputs = self.engine.inputs, self.engine.outputs
        if inputs is None:
            return x
        inputs.put(self.index, x)
        if outputs is not None:
            outputs.put(self.index, kept.out)
            kept.out = None
        return None

    def fetch(self, x: Tensor | None, kept: Kept) -> Tensor:
        if x is not None:
            return x
        if self.engine.outputs is not None:
            kept.out = self.engine.outputs.get(self.index)
        return self.engine.inputs.get(self.index)


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, layer: _InstalledLayer, row: RowPart, is_training: bool, *adapters: nn.Parameter
    ) -> Tensor:
        rows = x[0].detach()
        y, kept = layer.layer.forward(rows, row, keeps=is_training)
        if is_training:
            # not save_for_backward: these are no one else's, and each is let go as soon as backward is done with it
            ctx.layer, ctx.row, ctx.kept, ctx.x = layer, row, kept, layer.hold(rows, kept)
        return y[None]

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        layer, kept = ctx.layer, ctx.kept
        if kept is None:
            raise RuntimeError("the layer engine keeps a forward for one backward only")
        x = layer.fetch(ctx.x, kept)
        ctx.x = ctx.kept = None
        layer.num_backwards += 1
        wants_dx = ctx.needs_input_grad[0]
        # dy belongs to this layer alone: it comes from the next layer's backward or from _LastNorm's
        with torch.autocast(dy.device.type, enabled=False):
            dx, grads = layer.layer.backward(dy[0].contiguous(), x, kept, ctx.row, wants_dx=wants_dx)
        return dx[None] if wants_dx else None, None, None, None, *grads


class _LastNorm(torch.autograd.Function):
    """The norm in front of the head, frozen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: nn.Module, ops: RowOps) -> Tensor:
        ctx.save_for_backward(x)
        ctx.norm, ctx.ops = norm, ops
        return ops.rms_norm(x[0].detach(), norm.weight, norm.variance_epsilon)[None]

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        rows = ctx.saved_tensors[0][0]
        dx = torch.zeros_like(rows)
        ctx.ops.rms_norm_backward_(dx, dy[0].contiguous(), rows, ctx.norm.weight, ctx.norm.variance_epsilon)
        return dx[None], None, None


def row_ops(device: torch.device) -> RowOps:
    """The fused kernels on a GPU with Triton, plain torch elsewhere."""
    if device.type != "cuda":
        return TorchRowOps()
    from core.layer.triton_ops import TritonRowOps  # Triton comes with torch for CUDA

    return TritonRowOps()
