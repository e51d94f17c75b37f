"""Seconds of a step: measured rows, and what has to move them in which direction."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from app.services.hardware import parse_cluster
from app.services.resolve import resolve
from core.optimizations import REGISTRY
from planner.catalog.gpus import GPUS
from planner.effects import Work
from planner.plan import make_plan
from planner.time import Rates, micro_batch_seconds, rates_of
from planner.types import ParallelDegrees, Preset
from tests.planner.plans import LEAN_LORA, QWEN_7B, account_of, catalog_model, cluster_of, cpu_cluster, plan_of

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "2026-11-29-h200-plan-against-measured.csv"
ROWS = list(csv.DictReader(RESULTS.open()))
H200 = GPUS["H200"]


RATES = Rates(gemm=100.0, gemm_fp32=10.0, attention=50.0, memory=20.0, pcie=5.0, link=8.0)


def work(kind: str, amount: int, overlapped: bool = False) -> Work:
    return Work(key=kind, kind=kind, amount=amount, formula="", overlapped=overlapped)  # type: ignore[arg-type]


def test_overlapped_work_costs_only_what_sticks_out() -> None:
    one_second = work("gemm", 100)
    assert micro_batch_seconds(RATES, [one_second]) == pytest.approx(1)
    assert micro_batch_seconds(RATES, [one_second, work("link", 4, True)]) == pytest.approx(1)
    assert micro_batch_seconds(RATES, [one_second, work("link", 24, True)]) == pytest.approx(3)
    assert micro_batch_seconds(RATES, [one_second, work("link", 8)]) == pytest.approx(2)


def test_copies_for_the_forward_hide_behind_the_forward_only() -> None:
    """Three seconds of compute, one of them forward: a second and a half of copies each way."""
    copies = [
        Work(key=name, kind="pcie", amount=7.5, formula="", overlapped=True, window=window)  # type: ignore[arg-type]
        for name, window in (("forward", 1 / 3), ("backward", 2 / 3))
    ]
    assert micro_batch_seconds(RATES, [work("gemm", 300), *copies]) == pytest.approx(3.5)
    beside = work("pcie", 10, True)  # all of it hides somewhere, but not beside the others
    assert micro_batch_seconds(RATES, [work("gemm", 300), beside]) == pytest.approx(3)
    assert micro_batch_seconds(RATES, [work("gemm", 300), beside, *copies]) == pytest.approx(5)


def test_thin_models_reach_less_of_a_large_card_and_all_of_a_cpu() -> None:
    wide, thin = QWEN_7B, catalog_model("Qwen/Qwen2.5-0.5B")
    assert rates_of(H200, wide).gemm == pytest.approx(H200.gemm_flops)
    assert rates_of(H200, thin).gemm < 0.75 * H200.gemm_flops
    assert rates_of(GPUS["L4"], thin).gemm > 0.9 * GPUS["L4"].gemm_flops
    cpu = cpu_cluster().gpu
    assert rates_of(cpu, thin).gemm == cpu.gemm_flops


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["row"])
def test_longfit_on_one_h200_is_predicted_within_five_percent(row: dict[str, str]) -> None:
    """Rows of benchmarks/results, measured with torch's flash kernel."""
    values = {
        "model": row["model"], "max_length": int(row["length"]), "data": {"train": ["random"]}, "engine": "module",
    }  # fmt: skip
    preset = Preset(name=row["row"], description="", values={**values, **json.loads(row["values"])})
    resolved = resolve(preset, cluster=parse_cluster("H200"))
    registry = {name: entry for name, entry in REGISTRY.items() if name != "flash_attention"}
    plan = make_plan(
        config=resolved.config, model=resolved.model, cluster=resolved.cluster, environment=resolved.environment,
        registry=registry,
    )  # fmt: skip
    assert plan.tokens_per_second == pytest.approx(float(row["measured_tokens_per_second"]), rel=0.05)


def test_flops_are_those_of_the_recompute_policy() -> None:
    """LoRA with full recompute executes 6NS + 4HS + 4.5a (notes on long context, section 5), adapters aside."""
    ampere = cluster_of("A100-80G")  # on Hopper a faster kernel is written as less work
    work = {item.key: item.amount for item in account_of(max_length=32768, cluster=ampere).combined.work}
    model, length = account_of().ctx.model, 32768
    causal = 2 * model.num_layers * model.q_width * length**2
    products = sum(v for k, v in work.items() if k.startswith("gemm.") and k != "gemm.adapters")
    head = model.vocab_size * model.hidden_size
    assert products == (6 * model.num_linear_parameters + 4 * head) * length
    assert sum(v for k, v in work.items() if k.startswith("attention.")) == 4.5 * causal
    full = {item.key: item.amount for item in account_of({}, max_length=32768, cluster=ampere).combined.work}
    assert sum(v for k, v in full.items() if k.startswith("gemm.")) == (
        (6 * model.num_linear_parameters + 6 * head) * length
    )
    assert sum(v for k, v in full.items() if k.startswith("attention.")) == 3.5 * causal


def test_checkpointing_costs_about_a_forward_and_sequence_ranks_pay_for_their_link() -> None:
    lean = plan_of(LEAN_LORA)
    kept = plan_of({k: v for k, v in LEAN_LORA.items() if k != "gradient_checkpointing"})
    assert 1.2 < lean.seconds_per_step / kept.seconds_per_step < 1.5
    two = cluster_of(count=2)
    spread = plan_of(LEAN_LORA, parallel=ParallelDegrees(ulysses=2), cluster=two, max_length=65536)
    slow_link = cluster_of(replace(H200, link_bytes_per_s=10e9), 2)
    slower = plan_of(LEAN_LORA, parallel=ParallelDegrees(ulysses=2), cluster=slow_link, max_length=65536)
    assert spread.seconds_per_step < slower.seconds_per_step


def test_accumulation_repeats_micro_batches_and_not_the_update() -> None:
    once, four = (plan_of({}, gradient_accumulation_steps=n).seconds_per_step for n in (1, 4))
    assert 3 * once < four < 4 * once
