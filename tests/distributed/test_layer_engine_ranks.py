"""The layer engine where a row is spread over ranks: loss and gradients of one process, by ring, Ulysses and both."""

from __future__ import annotations

import pytest
import torch

from planner.types import ParallelDegrees
from tests.core.model.tiny_models import (
    assert_same_gradients,
    loss_and_gradients,
    random_row,
    setting,
    tiny_model,
    tiny_setup,
)
from tests.distributed.rank_programs import train_step

LORA = setting("lora", rank=3, alpha=7, targets="all-linear", dropout=0.0, adapter_dtype="float32")
KEEP = setting("gradient_checkpointing", save_attention=True, kept_layers=0)
RECOMPUTE = setting("gradient_checkpointing", save_attention=False, kept_layers=0)
OFFLOAD, GROUPS = setting("checkpoint_offload", kept_layers=1), setting("fake_parallel", groups=2)
SHAPE = {"heads": 8, "kv_heads": 4, "layers": 3}
CASES = {
    "ring 2": (ParallelDegrees(ring=2), "llama", (KEEP,)),
    "ring 2, two groups, all recomputed": (ParallelDegrees(ring=2), "qwen3", (RECOMPUTE, GROUPS)),
    "ulysses 2": (ParallelDegrees(ulysses=2), "qwen2", (KEEP, OFFLOAD)),
    "ulysses 2, two groups": (ParallelDegrees(ulysses=2), "qwen3", (KEEP, GROUPS)),
    "ulysses 2, nothing recomputed": (ParallelDegrees(ulysses=2), "mistral", ()),
    "hybrid 2x2": (ParallelDegrees(ring=2, ulysses=2), "qwen3", (KEEP, OFFLOAD)),
}


@pytest.mark.parametrize("lengths", [(61,), (3, 29, 7, 25)], ids=["odd length", "packed"])
@pytest.mark.parametrize("case", CASES)
def test_a_shared_row(run_ranks, case, lengths):
    degrees, family, optimizations = CASES[case]
    row = random_row(lengths)
    setup = tiny_setup(tiny_model(family, **SHAPE), LORA, engine="layer")
    for name, parameter in setup.model.named_parameters():
        if ".lora_B." in name:
            parameter.data += torch.linspace(-0.1, 0.1, parameter.numel(), dtype=parameter.dtype).view_as(parameter)
    want_loss, want = loss_and_gradients(setup, row)
    spread = tuple(setting(axis, degree=n) for axis in ("ring", "ulysses") if (n := getattr(degrees, axis)) > 1)
    answers = run_ranks(
        train_step, degrees.world, degrees, family, SHAPE, [row], (LORA, *optimizations, *spread), "layer"
    )
    assert abs(answers[0]["loss"] - want_loss) <= 1e-9 * abs(want_loss)
    assert_same_gradients(answers[0]["gradients"], want, 1e-8)
    assert any("ran forward and backward in the layer engine" in claim for claim in answers[0]["claims"])
