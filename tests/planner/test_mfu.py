"""MFU: one convention, whatever is recomputed."""

from __future__ import annotations

import pytest

from planner.catalog.gpus import GPUS
from planner.catalog.peaks import PEAK_TFLOPS
from planner.mfu import model_flops
from planner.plan_json import plan_to_dict
from tests.planner.plans import LEAN_LORA, QWEN_7B, account_of, cpu_cluster, plan_of

K = 1024


@pytest.mark.parametrize(("method", "passes"), [("lora", 4), ("full", 6)])
def test_flops_are_those_the_model_needs(method: str, passes: int) -> None:
    ctx = account_of({} if method == "full" else LEAN_LORA, max_length=32 * K).ctx
    weights = QWEN_7B.num_linear_parameters + QWEN_7B.vocab_size * QWEN_7B.hidden_size
    attention = 2 * QWEN_7B.num_layers * QWEN_7B.q_width * (32 * K) ** 2
    assert model_flops(ctx) == passes * weights * 32 * K + 3.5 * attention


def test_recompute_lowers_it_and_does_not_count_as_progress() -> None:
    kept = plan_of({"lora": {}, "fused_loss": {}}, max_length=8 * K)
    recomputed = plan_of({"lora": {}, "fused_loss": {}, "gradient_checkpointing": {}}, max_length=8 * K)
    assert kept.mfu_causal is not None
    assert recomputed.mfu_causal == pytest.approx(kept.mfu_causal * kept.seconds_per_step / recomputed.seconds_per_step)
    assert 0.2 < recomputed.mfu_causal < kept.mfu_causal < 0.6


def test_accumulation_and_ranks_leave_it_much_as_it_is() -> None:
    one, four = (plan_of(LEAN_LORA, gradient_accumulation_steps=n).mfu_causal for n in (1, 4))
    assert one is not None
    assert four == pytest.approx(one, rel=0.1)


def test_a_cpu_has_no_datasheet_peak_and_the_json_says_null() -> None:
    plan = plan_of({"lora": {}}, cluster=cpu_cluster(), dtype="float32", max_length=512)
    assert plan.mfu_causal is None
    assert plan_to_dict(plan)["mfu_causal"] is None


def test_every_gpu_has_a_peak_above_what_it_sustains() -> None:
    assert set(PEAK_TFLOPS) == set(GPUS)
    for gpu in GPUS.values():
        assert gpu.peak_flops is not None
        assert gpu.gemm_flops < gpu.peak_flops
