"""Why an alternative is recommended or not, in one sentence. Called by planner/search.py.

Labels of parts, instants and verdicts for tables are the faces' own (app/views/parts.py).
"""

from __future__ import annotations

from planner.types import Instant, RunConfig

GIB = 1024**3
INSTANT_PHRASES: dict[Instant, str] = {
    "load": "while the weights load",
    "layer_forward": "in the forward of the last layer",
    "forward_loss": "at the end of the forward pass",
    "loss_backward": "in the backward of the loss",
    "layer_backward": "in the backward of the last layer",
    "attention_backward": "in the backward of the last layer's attention",
    "backward_end": "in the backward of the lowest layers",
    "optimizer_step": "in the optimizer step",
    "evaluation_forward": "in the forward of an evaluation batch",
    "evaluation": "in the loss of an evaluation batch",
    "save": "while a checkpoint is saved",
}
COSTS = {
    "gradient_checkpointing": "recomputes layers",
    "checkpoint_offload": "sends what checkpointing keeps to host memory",
    "weight_streaming": "brings weights from host memory, layer by layer",
    "tiled_mlp": "computes the MLP by tiles",
    "fsdp": "gathers weights from the other GPUs",
    "fake_parallel": "recomputes attention by head groups",
    "qlora": "dequantises the base each time it is used",
    "ring": "passes K and V around",
    "ulysses": "exchanges tokens for heads",
}


def gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.1f} GiB"


def why_it_fits(used_bytes: int, usable_bytes: int, speed: float, config: RunConfig, own: RunConfig) -> str:
    """``speed``: tokens/s over the fastest one that fits; a tight one may exceed it. ``own``: what was asked for."""
    parts = [f"{gib(usable_bytes - used_bytes)} to spare"]
    parts.append("the fastest that fits" if speed == 1 else f"{speed:.2f} of the fastest that fits")
    costs = [COSTS[setting.name] for setting in config.optimizations if setting.name in COSTS]
    if speed < 1 and costs:
        parts.append(", ".join(costs))
    if config.update != own.update:
        parts.append("updates layers within the backward, which can neither clip nor accumulate")
    if config.method != own.method:
        quantised = config.method == "qlora"
        parts.append("keeps the base in 4 bits" if quantised else "trains adapters on a frozen base")
    return "; ".join(parts)


def why_not(wall: str, missing_bytes: int, instant: Instant) -> str:
    """``wall``: gpu, host or disk, where the bytes are missing."""
    if wall == "gpu":
        return f"{gib(missing_bytes)} are missing {INSTANT_PHRASES[instant]}"
    return f"{gib(missing_bytes)} of {'host memory' if wall == 'host' else 'disk'} are missing"
