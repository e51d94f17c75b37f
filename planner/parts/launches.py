"""What it costs a host to start the operators of a layer one by one, which bounds small models on large cards.

Used by the parts that add work. Counts are of transformers' decoder layer and peft's adapters as torch dispatches them,
kernels and views apart (tests/planner/test_launches.py counts again); the time of one is modelled: Python, autograd and
the launch, on a host of an H200. Launches run beside the GPU: they cost only what sticks out (planner/time.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.effects import Work

KERNEL_NS = 7_000
VIEW_NS = 2_000  # operators that start nothing on the GPU
TENSOR_STEP_NS = 10_000  # of one trained tensor in a step: its norm, clipping, step counter, hook


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    kernels: int
    views: int

    @property
    def ns(self) -> int:
        return KERNEL_NS * self.kernels + VIEW_NS * self.views


LAYER_FORWARD = Launches(kernels=39, views=39)
LAYER_BACKWARD = Launches(kernels=73, views=79)
LAYER_RECOMPUTE = Launches(kernels=37, views=98)  # with what checkpointing packs and unpacks
# of one adapted linear; casts: of fp32 adapters on a 16-bit base
ADAPTER_FORWARD = Launches(kernels=4, views=6)
ADAPTER_BACKWARD = Launches(kernels=5, views=9)
ADAPTER_RECOMPUTE = Launches(kernels=4, views=9)
CASTS = Launches(kernels=4, views=0)  # of each of the three
HEAD_GROUP_FORWARD = Launches(kernels=30, views=42)  # of one group of heads in one layer
HEAD_GROUP_BACKWARD = Launches(kernels=134, views=167)  # with the group's recompute


def launch_work(key: str, ns: int, formula: str) -> Work:
    """``formula``: what is started."""
    return Work(key=key, kind="overhead", amount=ns, overlapped=True, formula=f"{ns} ns: {formula}, one by one")
