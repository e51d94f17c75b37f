"""A row of a mixture of experts shared by ranks: each routes its own tokens, loss and gradients are those of one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from planner.types import ParallelDegrees
from tests.core.model.tiny_models import (
    assert_same_gradients,
    plain_loss_and_gradients,
    random_row,
    setting,
    tiny_model,
)
from tests.distributed.rank_programs import train_step

SHAPE: dict[str, Any] = {
    "heads": 8, "kv_heads": 4, "dtype": torch.float32, "num_experts": 8, "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
}  # fmt: skip
CASES = {
    "ring 2": (ParallelDegrees(ring=2), (setting("ring", degree=2),)),
    "ulysses 2": (ParallelDegrees(ulysses=2), (setting("ulysses", degree=2),)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_shared_row_gives_the_loss_and_gradients_of_one_process(run_ranks: Any, case: str) -> None:
    degrees, settings = CASES[case]
    row = random_row((3, 29, 7, 25))
    plain = tiny_model("qwen3_moe", attention="sdpa", experts_implementation="eager", **SHAPE)
    want_loss, want = plain_loss_and_gradients(plain, row)
    shape = {**SHAPE, "experts_implementation": "grouped_mm"}
    answers = run_ranks(train_step, degrees.world, degrees, "qwen3_moe", shape, [row], settings)
    assert abs(answers[0]["loss"] - want_loss) < 1e-5 * want_loss
    assert_same_gradients(answers[0]["gradients"], want, 2e-4)
