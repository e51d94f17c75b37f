"""Ring, Ulysses, both and data parallelism against plain transformers on one process: loss and every gradient."""

from __future__ import annotations

import pytest
import torch

from planner.types import ParallelDegrees
from tests.core.model.tiny_models import (
    assert_same_gradients,
    loss_and_gradients,
    plain_loss_and_gradients,
    random_row,
    setting,
    tiny_model,
    tiny_setup,
)
from tests.distributed.rank_programs import attention_on_random_packs, train_step

RING_2, RING_4 = ParallelDegrees(ring=2), ParallelDegrees(ring=4)
ULYSSES_2, ULYSSES_4 = ParallelDegrees(ulysses=2), ParallelDegrees(ulysses=4)
HYBRID = ParallelDegrees(ring=2, ulysses=2)
DATA_2, DATA_2_RING_2 = ParallelDegrees(data=2), ParallelDegrees(data=2, ring=2)

NINE_THREE = {"heads": 9, "kv_heads": 3}
EIGHT_FOUR = {"heads": 8, "kv_heads": 4}
EIGHT_TWO = {"heads": 8, "kv_heads": 2}

CASES = {
    "ring 2": (RING_2, "llama", NINE_THREE),
    "ring 4": (RING_4, "qwen3", NINE_THREE),
    "ulysses 2": (ULYSSES_2, "qwen2", EIGHT_FOUR),
    "ulysses 2 with copied KV heads": (ULYSSES_2, "mistral", {"heads": 4, "kv_heads": 1}),
    "ulysses 4 with copied KV heads": (ULYSSES_4, "llama", EIGHT_TWO),
    "hybrid 2x2": (HYBRID, "qwen3", EIGHT_FOUR),
}
ROWS = {
    "dense of odd length": ((61,), 0),
    "samples across every border": ((3, 29, 7, 25), 0),
    # the last 5 tokens alone are targets: with zigzag they lie on one rank, the others have none
    "ranks without a target": ((61,), 57),
}


def degrees_to_settings(degrees: ParallelDegrees):
    return tuple(
        setting(axis, degree=getattr(degrees, axis)) for axis in ("ring", "ulysses") if getattr(degrees, axis) > 1
    )


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("case", CASES)
def test_a_shared_row_gives_the_loss_and_gradients_of_one_process(run_ranks, case, rows):
    degrees, family, shape = CASES[case]
    lengths, first_target = ROWS[rows]
    row = random_row(lengths, first_target=first_target)
    want_loss, want = plain_loss_and_gradients(tiny_model(family, attention="sdpa", **shape), row)
    answers = run_ranks(train_step, degrees.world, degrees, family, shape, [row], degrees_to_settings(degrees))
    assert abs(answers[0]["loss"] - want_loss) < 1e-9
    assert_same_gradients(answers[0]["gradients"], want, 1e-8)
    assert sum(answer["num_targets"] for answer in answers) == row.num_targets
    assert len({answer["num_tokens"] for answer in answers}) == 1
    if rows == "ranks without a target":
        assert min(answer["num_targets"] for answer in answers) == 0


@pytest.mark.parametrize("degrees", [DATA_2, DATA_2_RING_2], ids=["data 2", "data 2 x ring 2"])
@pytest.mark.parametrize("second", [(11, 20), (0,)], ids=["unequal rows", "an empty row"])
def test_replicas_with_unequal_rows_add_up_to_the_sum_over_all_rows(run_ranks, degrees, second):
    rows = [random_row((17, 31), seed=1, first_target=9), random_row(second, seed=2)]
    want_loss, want = torch.zeros((), dtype=torch.float64), {}
    for row in rows[: 2 if sum(second) else 1]:
        loss, grads = plain_loss_and_gradients(tiny_model(attention="sdpa"), row)
        want_loss += loss
        want = {name: gradient + want.get(name, 0) for name, gradient in grads.items()}
    answers = run_ranks(train_step, degrees.world, degrees, "llama", {}, rows, degrees_to_settings(degrees))
    assert abs(answers[0]["loss"] - want_loss) < 1e-9
    assert_same_gradients(answers[0]["gradients"], want, 1e-8)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("head_groups", [(), (setting("fake_parallel", groups=2),)], ids=["", "fake_parallel"])
def test_everything_at_once_equals_the_same_on_one_process(run_ranks, dtype, head_groups):
    """Hybrid ranks, packing, LoRA, checkpointing and chunked loss, proven active on every rank."""
    together = (
        setting("lora", rank=3, alpha=6),
        setting("packing"),
        setting("gradient_checkpointing"),
        setting("fused_loss", chunk_tokens=7),
    )
    shape = {**EIGHT_FOUR, "dtype": dtype}
    row = random_row((19, 2, 33, 8), first_target=lambda sample: 5 * sample)
    [alone] = run_ranks(train_step, 1, ParallelDegrees(), "qwen3", shape, [row], together)
    on_ranks = (*together, *head_groups, *degrees_to_settings(HYBRID))
    answers = run_ranks(train_step, 4, HYBRID, "qwen3", shape, [row], on_ranks)
    loss_tolerance, gradient_tolerance = (1e-9, 1e-8) if dtype == torch.float64 else (1e-3, 2e-4)
    assert abs(answers[0]["loss"] - alone["loss"]) < loss_tolerance
    assert_same_gradients(answers[0]["gradients"], alone["gradients"], gradient_tolerance)
    assert all("lora_" in name for name in answers[0]["gradients"])
    for answer in answers:
        assert "2 of 2 decoder layers recompute in backward" in answer["claims"]
        assert any(claim.startswith("2 ranks passed K and V around") for claim in answer["claims"])
        assert any(claim.startswith("2 ranks exchanged tokens for heads") for claim in answer["claims"])


@pytest.mark.parametrize("head_groups", [(), (setting("fake_parallel", groups=2),)], ids=["", "fake_parallel"])
def test_kept_attention_outputs_of_a_shared_row_keep_the_gradients(run_ranks, head_groups):
    """The recompute of a ring passes no K and V around, and still ends in the same gradients on every rank."""
    row = random_row((19, 2, 33, 8))
    want_loss, want = plain_loss_and_gradients(tiny_model("qwen3", attention="sdpa", **EIGHT_FOUR), row)
    keeping = (setting("gradient_checkpointing", save_attention=True), *head_groups, *degrees_to_settings(HYBRID))
    answers = run_ranks(train_step, 4, HYBRID, "qwen3", EIGHT_FOUR, [row], keeping)
    assert abs(answers[0]["loss"] - want_loss) < 1e-9
    assert_same_gradients(answers[0]["gradients"], want, 1e-8)
    for answer in answers:
        assert any("attention outputs were kept" in claim for claim in answer["claims"])


def test_inputs_and_outputs_in_host_memory_change_no_bit_of_a_shared_row(run_ranks):
    row, shape = random_row((19, 2, 33, 8)), {**EIGHT_FOUR, "dtype": torch.float32, "layers": 3}
    keeping = (setting("gradient_checkpointing", save_attention=True, kept_layers=0), *degrees_to_settings(HYBRID))
    plain = run_ranks(train_step, 4, HYBRID, "qwen3", shape, [row], keeping)
    offload = setting("checkpoint_offload", kept_layers=1)
    for answer, want in zip(run_ranks(train_step, 4, HYBRID, "qwen3", shape, [row], (*keeping, offload)), plain):
        assert answer["loss"] == want["loss"]
        assert all(torch.equal(got, want["gradients"][name]) for name, got in answer["gradients"].items())
        assert any("inputs and attention outputs of 2 of 3 layers" in claim for claim in answer["claims"])


@pytest.mark.parametrize("lengths", [(19, 2, 33, 8), (1,)], ids=["a pack", "ranks without a token"])
def test_the_mlp_by_tiles_of_a_shared_row_keeps_the_gradients(run_ranks, lengths):
    row = random_row(lengths)
    want_loss, want = plain_loss_and_gradients(tiny_model("qwen3", attention="sdpa", **EIGHT_FOUR), row)
    tiled = (setting("gradient_checkpointing"), setting("tiled_mlp", tiles=3), *degrees_to_settings(HYBRID))
    answers = run_ranks(train_step, 4, HYBRID, "qwen3", EIGHT_FOUR, [row], tiled)
    assert abs(answers[0]["loss"] - want_loss) < 1e-9
    assert_same_gradients(answers[0]["gradients"], want, 1e-8)
    assert all("2 of 2 MLPs work in 3 tiles" in answer["claims"] for answer in answers)


@pytest.mark.parametrize(
    "degrees", [RING_2, RING_4, ULYSSES_2, HYBRID], ids=["ring 2", "ring 4", "ulysses 2", "hybrid 2x2"]
)
def test_random_packs_attend_exactly_as_on_one_process(run_ranks, degrees):
    assert max(run_ranks(attention_on_random_packs, degrees.world, degrees, 40)) < 1e-12


def test_a_ring_of_one_row_equals_the_engine_without_ring_in_float32(run_ranks):
    row = random_row((40, 23))
    shape = {"dtype": torch.float32}
    want_loss, want = loss_and_gradients(tiny_setup(tiny_model(**shape)), row)
    answers = run_ranks(train_step, 2, RING_2, "llama", shape, [row], degrees_to_settings(RING_2))
    assert abs(answers[0]["loss"] - want_loss) < 1e-5 * want_loss
    assert_same_gradients(answers[0]["gradients"], want, 2e-4)
