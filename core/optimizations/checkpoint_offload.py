"""Checkpoint offload: what checkpointing keeps of a layer waits in host memory. Listed in the registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from core.optimizations.evidence import Evidence, NotActive
from planner.effects import Effect
from planner.optimization import PlanContext, RankShape, knob
from planner.parts.offload import (
    num_offloaded_layers,
    offload_effect,
    offload_slot_bytes,
    output_slot_bytes,
    outputs_leave,
)
from planner.parts.recompute import num_recomputed_layers
from planner.types import Issue

if TYPE_CHECKING:
    from core.offload.host_tensors import HostTensors
    from core.train.setup import TrainingSetup


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOffload:
    name: ClassVar[str] = "checkpoint_offload"
    title: ClassVar[str] = "Checkpoint offload"
    summary: ClassVar[str] = (
        "Sends what each checkpointed layer keeps, its input and the attention output, to pinned host memory beside "
        "the compute, and brings it back one layer ahead: GPU memory for host memory, at next to no time."
    )
    main_knob: ClassVar[str | None] = "kept_layers"
    stage: ClassVar[int] = 51
    available: ClassVar[bool] = True
    searched: ClassVar[tuple[Mapping[str, Any], ...]] = ({},)

    kept_layers: int = knob(1, help="recomputed layers, the last ones, whose tensors stay on the GPU", minimum=1)

    def check(self, ctx: PlanContext) -> tuple[Issue, ...]:
        if ctx.config.optimization("gradient_checkpointing") is None:
            return (
                Issue(
                    code="offload-without-checkpointing", severity="error",
                    what="checkpoint_offload is on and gradient_checkpointing is not.",
                    why="It moves what gradient checkpointing keeps.", fix="Add gradient_checkpointing: true.",
                    suggestion=(("gradient_checkpointing", True),),
                ),
            )  # fmt: skip
        if ctx.cluster.gpu.kind == "cpu":
            return (
                Issue(
                    code="offload-on-cpu", severity="warning", what="checkpoint_offload saves nothing on a CPU.",
                    why="What it moves is in host memory already, and there twice while it is in use.",
                    fix="Remove checkpoint_offload.",
                    suggestion=(("checkpoint_offload", None),),
                ),
            )  # fmt: skip
        return ()

    def reshape(self, shape: RankShape) -> RankShape:
        return shape

    def effect(self, ctx: PlanContext) -> Effect:
        return offload_effect(ctx, kept_layers=self.kept_layers)

    def apply(self, setup: TrainingSetup) -> None:
        from core.offload.layer_inputs import checkpoint_with

        num_recomputed = num_recomputed_layers(setup.config, setup.spec)
        layers = setup.causal_lm.get_decoder().layers[:num_recomputed]
        inputs = setup.layer_inputs = self._host_tensors(setup, offload_slot_bytes(setup.config, setup.spec))
        for index, layer in enumerate(layers):
            stock = layer._gradient_checkpointing_func
            layer._gradient_checkpointing_func = checkpoint_with(inputs, index)
            setup.undo.append(lambda layer=layer, stock=stock: setattr(layer, "_gradient_checkpointing_func", stock))
        if setup.keeper is not None and outputs_leave(setup.config, setup.spec):
            setup.keeper.host = self._host_tensors(setup, output_slot_bytes(setup.config, setup.spec))

    def _host_tensors(self, setup: TrainingSetup, slot_bytes: int) -> HostTensors:
        from core.offload.host_tensors import HostTensors

        tensors = HostTensors(
            num_recomputed_layers(setup.config, setup.spec), kept_layers=self.kept_layers, slot_bytes=slot_bytes,
            device=setup.device,
        )  # fmt: skip
        setup.undo.append(tensors.slots.free)
        return tensors

    def verify(self, setup: TrainingSetup) -> Evidence:
        inputs = setup.layer_inputs
        wanted = num_offloaded_layers(setup.config, setup.spec, self.kept_layers)
        if inputs is None or wanted != inputs.num_offloaded:
            raise NotActive("checkpoint_offload: layer inputs do not wait in host memory as planned")
        outputs = None if setup.keeper is None else setup.keeper.host
        moved = [inputs] if outputs is None else [inputs, outputs]
        if any(tensors.num_in != tensors.num_out for tensors in moved):
            raise NotActive("checkpoint_offload: what went out did not come back")
        if wanted and any(tensors.num_out == 0 for tensors in moved):
            raise NotActive("checkpoint_offload: nothing went to host memory")
        num_bytes = sum(tensors.num_bytes_out for tensors in moved)
        return Evidence(
            optimization=self.name,
            claim=f"inputs{' and attention outputs' * (outputs is not None)} of {wanted} of {setup.spec.num_layers} "
            f"layers waited in host memory, {num_bytes:,} bytes so far",
            counts=(("layers", wanted), ("bytes", num_bytes)),
        )
