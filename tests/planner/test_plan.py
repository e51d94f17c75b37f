"""make_plan: readings, verdicts, host, disk, batch arithmetic, and what it objects to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.optimizations import REGISTRY
from planner.errors import ConfigError
from planner.host import PROCESS_BYTES
from planner.plan import judge, make_plan
from planner.types import OptimizationSetting, ParallelDegrees
from tests.planner.plans import (
    GIB,
    LEAN_LORA,
    QWEN_7B,
    SMOLLM2,
    catalog_model,
    cluster_of,
    codes,
    cpu_cluster,
    environment_of,
    issue_of,
    plan_of,
    run_config,
)


def test_a_7b_at_8k_fits_24_gb_because_of_fused_loss_and_checkpointing() -> None:
    card = cluster_of("RTX-4090")
    lean = plan_of(LEAN_LORA, cluster=card, autocast=True)
    assert lean.verdict in ("fits", "tight")
    assert 18 * GIB < lean.gpus[0].used_bytes < 22 * GIB
    stock = plan_of({k: v for k, v in LEAN_LORA.items() if k != "fused_loss"}, cluster=card, autocast=True)
    assert (stock.verdict, stock.peak_instant) == ("over", "loss_backward")


@pytest.mark.parametrize(
    ("used", "upper", "verdict"),
    [(900, 919, "fits"), (900, 920, "tight"), (1000, 1100, "tight"), (1001, 1002, "over")],
)
def test_verdict_words(used: int, upper: int, verdict: str) -> None:
    assert judge(used, upper, 1000) == verdict


def test_every_rank_has_its_gpu_and_a_sequence_degree_spreads_the_row() -> None:
    alone = plan_of(max_length=16384)
    spread = plan_of(max_length=16384, parallel=ParallelDegrees(ulysses=2), cluster=cluster_of(count=2))
    assert [gpu.index for gpu in spread.gpus] == [0, 1]
    assert spread.batch["tokens_per_rank"] == alone.batch["tokens_per_rank"] // 2 == 8192
    parts, halved = alone.gpus[0].allocated.by_part(), spread.gpus[0].allocated.by_part()
    assert halved["weights"] == parts["weights"]
    assert halved["checkpoints"] == parts["checkpoints"] / 2
    assert spread.tokens_per_second > 1.8 * alone.tokens_per_second


def test_batch_arithmetic() -> None:
    plan = plan_of(
        parallel=ParallelDegrees(data=2, ring=2, ulysses=2), cluster=cluster_of(count=8), max_length=1001,
        per_device_train_batch_size=3, gradient_accumulation_steps=4,
    )  # fmt: skip
    assert plan.batch == {
        "world": 8, "data": 2, "sequence": 4, "ring": 2, "ulysses": 2, "accumulation": 4, "rows_per_step": 24,
        "tokens_per_step": 24 * 1001, "tokens_per_rank": 752, "padding_tokens": 4 * 752 - 3003,
    }  # fmt: skip
    assert plan.tokens_per_second == pytest.approx(24 * 1001 / plan.seconds_per_step)


def test_replicated_kv_heads_cost_memory() -> None:
    """Ulysses 4 on 2 KV heads: each rank holds a whole head where half a head would be its share."""
    model = replace(QWEN_7B, num_attention_heads=16, num_kv_heads=2, head_dim=128)
    plan = plan_of(model=model, parallel=ParallelDegrees(ulysses=4), cluster=cluster_of(count=4))
    qkv = next(term for term in plan.gpus[0].allocated.terms if term.key == "layer.attention.qkv")
    tokens = plan.batch["tokens_per_rank"]
    assert qkv.bytes == 2 * (16 * 128 + 2 * (4 * 128)) * tokens


def test_nccl_is_planned_only_with_several_ranks() -> None:
    def keys(plan) -> set[str]:
        return {term.key for term in plan.gpus[0].context_terms}

    assert "nccl" not in keys(plan_of())
    spread = keys(plan_of(parallel=ParallelDegrees(ulysses=2), cluster=cluster_of(count=2)))
    assert {"nccl", "nccl_all_to_all"} <= spread


def test_accumulation_keeps_gradients_alive_through_later_forwards() -> None:
    once, four = (plan_of({}, gradient_accumulation_steps=steps).gpus[0].allocated for steps in (1, 4))
    assert "gradients" not in once.by_part("forward_loss")
    assert four.by_part("forward_loss")["gradients"] == 2 * QWEN_7B.num_parameters


def test_the_fused_optimizer_needs_no_copy_for_its_step() -> None:
    foreach, fused = (plan_of({}, optim=optim).gpus[0].allocated for optim in ("adamw_torch", "adamw_torch_fused"))
    hidden = 2 * 3584 * 8192  # there when the embeddings' gradient is formed, gone when the step begins
    saved = foreach.bytes_at("optimizer_step") - fused.bytes_at("optimizer_step")
    assert saved == 2 * QWEN_7B.num_parameters - hidden


def test_host_memory_and_disk_have_verdicts_that_reach_the_plan() -> None:
    fits = plan_of()
    assert (fits.host_verdict, fits.disk_verdict, fits.verdict) == ("fits", "unverified", "fits")
    small_host = plan_of(cluster=cluster_of(host_bytes_per_node=2 * GIB))
    assert (small_host.host_verdict, small_host.verdict) == ("over", "over")
    small_disk = plan_of(cluster=cluster_of(disk_free_bytes=GIB))
    assert (small_disk.disk_verdict, small_disk.verdict) == ("over", "over")


def test_host_and_disk_open_into_terms() -> None:
    optimizations = {**LEAN_LORA, "checkpoint_offload": {}}
    plan = plan_of(optimizations, parallel=ParallelDegrees(data=2), cluster=cluster_of(count=2), keep_best=True)
    assert sum(term.bytes for term in plan.host_terms) == plan.host_bytes
    assert sum(term.bytes for term in plan.disk_terms) == plan.disk_bytes
    host = {term.key: term.bytes for term in plan.host_terms}
    assert host["pageable.processes"] == 2 * PROCESS_BYTES
    assert host["pinned.checkpoints"] == 2 * 27 * 2 * 3584 * 8192  # all layers but one, of two processes
    disk = {term.key: term for term in plan.disk_terms}
    assert disk["cache.weights"].bytes == 2 * QWEN_7B.num_parameters
    assert disk["checkpoints"].formula.startswith("4 * ")


def test_weights_in_a_folder_need_no_room_for_a_download() -> None:
    cluster = cluster_of()
    to_come, there = (
        make_plan(
            config=replace(run_config(), model=where), model=QWEN_7B, cluster=cluster,
            environment=environment_of(cluster), registry=REGISTRY,
        ).disk_bytes
        for where in ("Qwen/Qwen2.5-7B", "/models/qwen")
    )  # fmt: skip
    assert to_come - there == 2 * QWEN_7B.num_parameters


def test_the_pages_of_a_checkpoint_are_one_copy_for_all_processes_of_a_node() -> None:
    one, eight = (
        plan_of(parallel=ParallelDegrees(data=count), cluster=cluster_of(count=count)).host_bytes for count in (1, 8)
    )
    assert eight - one == 7 * PROCESS_BYTES
    states = 2 * 4 * 161_480_704  # of the adapters, copied over while they are written
    assert one == 2 * QWEN_7B.num_parameters + PROCESS_BYTES + states


def test_a_full_checkpoint_passes_through_host_memory() -> None:
    plan = plan_of({"gradient_checkpointing": {}})
    copied = next(term for term in plan.host_terms if term.key == "pageable.checkpoint")
    assert copied.bytes == 2 * 2 * QWEN_7B.num_parameters  # the states, more than the weights
    assert copied.instants == {"save"}


def test_pages_of_a_checkpoint_are_no_wall() -> None:
    """They are given back when memory is short: shown as far as there is room, and not judged."""
    plan = plan_of(cluster=cluster_of(host_bytes_per_node=8 * GIB))
    assert plan.host_bytes == 8 * GIB
    assert plan.host_verdict == "fits"


def test_disk_counts_the_checkpoints_that_exist_together() -> None:
    two, five = plan_of(save_total_limit=2).disk_bytes, plan_of(save_total_limit=5).disk_bytes
    adapters = 4 * 161_480_704  # r64 on all linears of Qwen2.5-7B
    assert (five - two) == 3 * 3 * adapters  # weights and two moments


def test_cpu_processes_are_planned_by_their_resident_set() -> None:
    plan = plan_of(
        {"lora": {}, "gradient_checkpointing": {}, "fused_loss": {}}, model=SMOLLM2, cluster=cpu_cluster(2),
        dtype="float32", max_length=1024, parallel=ParallelDegrees(ring=2),
    )  # fmt: skip
    beside = {term.key for term in plan.gpus[0].context_terms}
    assert beside == {"process_baseline", "heap_holes"}
    assert {"libraries", "gloo"} <= {term.key for term in plan.gpus[0].allocated.terms}
    assert plan.host_bytes == 2 * plan.gpus[0].used_bytes
    assert plan.verdict == "fits"


def test_an_unknown_optimization_is_refused_with_the_known_ones() -> None:
    config = replace(run_config(), optimizations=(OptimizationSetting(name="warp"),))
    cluster = cluster_of()
    with pytest.raises(ConfigError, match="warp") as refused:
        make_plan(
            config=config, model=QWEN_7B, cluster=cluster, environment=environment_of(cluster),
            registry=REGISTRY,
        )  # fmt: skip
    assert all(name in refused.value.why for name in REGISTRY)


def test_packs_longer_than_rows_are_refused_and_shorter_ones_change_no_byte() -> None:
    issue = issue_of(plan_of({**LEAN_LORA, "packing": {"length": 8193}}), "packing-length")
    assert "8,193" in issue.what
    assert "8,192" in issue.what
    shorter, plain = plan_of({**LEAN_LORA, "packing": {"length": 4096}}), plan_of()
    assert shorter.worst_gpu.used_bytes == plain.worst_gpu.used_bytes


def test_length_beyond_the_model_is_refused_with_the_factor_that_would_do() -> None:
    issue = issue_of(plan_of(max_length=100_000), "length-beyond-model")
    assert "100000" in issue.what
    assert "32768" in issue.what
    assert "factor: 3.5" in issue.fix
    assert dict(issue.suggestion) == {"rope_scaling": {"type": "yarn", "factor": 3.5}}
    scaled = plan_of(max_length=100_000, rope_scaling=(("factor", 4.0), ("type", "yarn")))
    assert "length-beyond-model" not in codes(scaled)
    assert "rope-scaled" in codes(scaled)
    assert "length-beyond-model" in codes(plan_of(max_length=200_000, rope_scaling=(("factor", 4.0), ("type", "yarn"))))


def test_world_and_degrees_have_to_agree() -> None:
    plan = plan_of(parallel=ParallelDegrees(data=2), cluster=cluster_of(count=4))
    assert "2 ranks" in issue_of(plan, "world-mismatch").what


def test_dtype_against_the_card() -> None:
    assert "no bfloat16" in issue_of(plan_of(cluster=cluster_of("T4")), "dtype-bfloat16").what
    float32 = issue_of(plan_of({"lora": {}}, dtype="float32"), "no-flash-attention")
    assert str(4 * 28 * 8192**2) in float32.why
    assert "no-flash-attention" not in codes(plan_of({"lora": {}}, dtype="float32", max_length=4096))
    assert "dtype-float16-cpu" in codes(plan_of(model=SMOLLM2, cluster=cpu_cluster(), dtype="float16"))


def test_full_training_in_16_bit_warns_of_lost_updates() -> None:
    assert issue_of(plan_of({}), "adamw-16-bit").severity == "warning"
    assert "adamw-16-bit" not in codes(plan_of())


@pytest.mark.parametrize(
    "key",
    ["max_length", "per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"],
)
@pytest.mark.parametrize("value", [0, -1])
def test_counts_below_one_are_refused_by_name(key: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"{key} is {value}"):
        plan_of(**{key: value})


def test_a_sliding_window_refuses_the_ring() -> None:
    model = replace(catalog_model("mistralai/Mistral-7B-v0.3"), sliding_window=4096)
    plan = plan_of(model=model, parallel=ParallelDegrees(ring=2), cluster=cluster_of(count=2))
    assert "4096" in issue_of(plan, "ring-sliding-window").why


def test_evaluation_batches_are_planned() -> None:
    small, large = (plan_of(per_device_eval_batch_size=rows).gpus[0].allocated for rows in (1, 8))
    assert large.bytes_at("evaluation_forward") > small.bytes_at("evaluation_forward")
    assert large.bytes_at("layer_backward") == small.bytes_at("layer_backward")
