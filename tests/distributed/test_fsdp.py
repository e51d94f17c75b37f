"""Weights as shards over ranks: loss, all gradients and the weights after a step are those of one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from core.optimizations.evidence import NotActive
from core.optimizations.fsdp import Fsdp
from planner.types import ParallelDegrees
from tests.core.model.tiny_models import assert_same_gradients, random_row, setting, tiny_model, tiny_setup
from tests.distributed.sharded_programs import MAX_NORM, sharded_step, whole_step

SHAPE: dict[str, Any] = {"heads": 8, "kv_heads": 4, "dtype": torch.float32}
TIED, UNTIED = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
DATA_2, RING_2, ULYSSES_2 = ParallelDegrees(data=2), ParallelDegrees(ring=2), ParallelDegrees(ulysses=2)
HYBRID = ParallelDegrees(ring=2, ulysses=2)
LORA = setting("lora", rank=3, alpha=6)
KEYS = {"learning_rate": 1e-2, "adam_epsilon": 1e-3}  # where a gradient is zero but for rounding, so is the update
RECOMPUTE, CHUNKS = setting("gradient_checkpointing"), setting("fused_loss", chunk_tokens=7)
KEEPING = setting("gradient_checkpointing", save_attention=True)
# degrees, family, shape, optimizations, micro-batches a rank
CASES: dict[str, tuple[ParallelDegrees, str, dict[str, Any], tuple[Any, ...], int]] = {
    "data 2, tied": (DATA_2, "llama", TIED, (), 2),
    "data 2, untied, chunked": (DATA_2, "qwen3", UNTIED, (RECOMPUTE, CHUNKS), 2),
    "data 2, tied, chunked, tiles": (DATA_2, "qwen3", TIED, (RECOMPUTE, CHUNKS, setting("tiled_mlp", tiles=3)), 2),
    "data 2, lora": (DATA_2, "llama", UNTIED, (LORA, RECOMPUTE, setting("tiled_mlp", tiles=3)), 2),
    "ulysses 2": (ULYSSES_2, "llama", TIED, (KEEPING, CHUNKS), 1),
    "ulysses 2, lora": (ULYSSES_2, "qwen3", TIED, (LORA, KEEPING), 2),
    "ring 2": (RING_2, "qwen3", UNTIED, (RECOMPUTE,), 1),
    "ring 2, lora": (RING_2, "llama", TIED, (LORA, CHUNKS), 1),
    "hybrid 4": (HYBRID, "qwen3", TIED, (KEEPING, CHUNKS, setting("packing")), 2),
}
MORE: dict[str, tuple[ParallelDegrees, str, dict[str, Any], tuple[Any, ...], int]] = {
    "data 3, rows left over": (ParallelDegrees(data=3), "qwen2", TIED, (RECOMPUTE, CHUNKS), 1),
    "data 2, head groups": (DATA_2, "qwen3", TIED, (KEEPING, setting("fake_parallel", groups=2)), 1),
    "data 2, offload": (DATA_2, "llama", TIED, (RECOMPUTE, setting("checkpoint_offload", kept_layers=1)), 1),
    "data 2, gemma 3": (DATA_2, "gemma3_text", {**TIED, "pad_token_id": 0}, (RECOMPUTE, CHUNKS), 2),
    "data 2, fused gate and up": (DATA_2, "phi3", {**UNTIED, "pad_token_id": None}, (RECOMPUTE,), 2),
    "data 2, experts": (
        DATA_2, "qwen3_moe",
        {
            "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
            "experts_implementation": "grouped_mm",
        },
        (LORA, RECOMPUTE, CHUNKS), 2,
    ),
}  # fmt: skip


def degrees_to_settings(degrees: ParallelDegrees) -> tuple[Any, ...]:
    of = {"ring": degrees.ring, "ulysses": degrees.ulysses}
    return tuple(setting(name, degree=degree) for name, degree in of.items() if degree > 1)


def windows_of(degrees: ParallelDegrees, micro_batches: int) -> list[list[Any]]:
    """By data rank; unequal rows, and targets that begin elsewhere in each."""

    def row(data: int, batch: int) -> Any:
        return random_row((17 + 4 * batch, 31 - 7 * data), seed=10 * data + batch, first_target=5)

    return [[row(data, batch) for batch in range(micro_batches)] for data in range(degrees.data)]


@pytest.mark.parametrize("case", [*CASES, *(pytest.param(case, marks=pytest.mark.soak) for case in MORE)])
def test_a_step_on_shards_is_that_of_one_process(run_ranks: Any, case: str) -> None:
    degrees, family, tied, optimizations, micro_batches = {**CASES, **MORE}[case]
    shape = {**SHAPE, **tied}
    windows = windows_of(degrees, micro_batches)
    rows = [row for window in windows for row in window]
    want_loss, want, want_norm, want_weights = whole_step(family, shape, rows, optimizations, KEYS)
    on_ranks = (*optimizations, *degrees_to_settings(degrees))
    answers = run_ranks(sharded_step, degrees.world, degrees, family, shape, windows, on_ranks, KEYS)
    assert want_norm > MAX_NORM
    assert answers[0]["loss"] == pytest.approx(want_loss, rel=1e-5)
    assert_same_gradients(answers[0]["gradients"], want, 2e-4)
    for answer in answers:
        assert answer["norm"] == pytest.approx(want_norm, rel=1e-5)
        assert answer["whole_left"] == 0  # parameters that something still holds whole
    for name, weight in want_weights.items():
        assert torch.allclose(answers[0]["weights"][name], weight, rtol=0, atol=1e-5), name


def test_whole_parameters_are_no_shards() -> None:
    setup = tiny_setup(tiny_model(**SHAPE))
    with pytest.raises(NotActive, match="21 parameters are whole on this rank"):
        Fsdp().verify(setup)
