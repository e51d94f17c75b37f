"""Which planned instants lie in what a worker can tell apart. Read by views, rehearsals and post-mortems."""

from __future__ import annotations

from collections.abc import Mapping

from planner.types import Instant

MEASURED_INSTANTS: Mapping[str, tuple[Instant, ...]] = {
    "load": ("load",),
    "forward": ("layer_forward", "forward_loss"),
    "backward": ("loss_backward", "layer_backward", "attention_backward", "backward_end"),
    "step": ("optimizer_step",),
    "evaluation": ("evaluation_forward", "evaluation"),
    "save": ("save",),
}
