"""A row of Phi-4 and GLM-4 shared by ranks: v, or gate and up, are slices of one tensor; loss and gradients of one."""

from __future__ import annotations

from typing import Any

import pytest

from planner.types import ParallelDegrees
from tests.core.model.tiny_models import (
    assert_same_gradients,
    plain_loss_and_gradients,
    random_row,
    setting,
    tiny_model,
)
from tests.distributed.rank_programs import train_step

SHAPE: dict[str, Any] = {"heads": 8, "kv_heads": 4, "pad_token_id": None}
FAMILIES: dict[str, dict[str, Any]] = {"phi3": {**SHAPE, "partial_rotary_factor": 0.7}, "glm4": SHAPE}
DEGREES = {"ring": ParallelDegrees(ring=2), "ulysses": ParallelDegrees(ulysses=2)}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("axis", DEGREES)
def test_a_shared_row_gives_the_loss_and_gradients_of_one_process(run_ranks: Any, axis: str, family: str) -> None:
    row, shape = random_row((3, 29, 7, 25)), FAMILIES[family]
    want_loss, want = plain_loss_and_gradients(tiny_model(family, attention="sdpa", **shape), row)
    settings = (setting(axis, degree=2), setting("gradient_checkpointing", save_attention=True))
    answers = run_ranks(train_step, 2, DEGREES[axis], family, shape, [row], settings)
    assert abs(answers[0]["loss"] - want_loss) < 1e-9
    assert_same_gradients(answers[0]["gradients"], want, 1e-8)
