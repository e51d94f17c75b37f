"""Mixtures of experts: every parameter in memory, the active ones in time, and a plan that says what it covers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.services.planning import refuse_planned_only
from planner.errors import ConfigError
from planner.model_spec import model_spec_from_config
from planner.types import ParallelDegrees
from tests.planner.plans import (
    QWEN_7B,
    account_of,
    catalog_model,
    cluster_of,
    codes,
    cpu_cluster,
    issue_of,
    plan_of,
)

DATA = Path(__file__).parent.parent / "data"
QWEN3: dict[str, Any] = json.loads((DATA / "k10_cfg_moe.json").read_text())
MIXTRAL: dict[str, Any] = json.loads((DATA / "k10_cfg_moe_mixtral.json").read_text())
LEAN = {"lora": {"rank": 64}, "gradient_checkpointing": {}, "fused_loss": {}}


def spec(config: dict[str, Any] = QWEN3, **changes: Any):
    return model_spec_from_config("test", {**config, **changes})


@pytest.mark.parametrize("config", [QWEN3, MIXTRAL], ids=["qwen3_moe", "mixtral"])
def test_all_experts_count_in_memory(config: dict[str, Any]) -> None:
    model = spec(config)
    assert model.num_parameters == config["expect_params_total"]
    assert model.num_parameters != config["wrong_dense"]
    terms = {term.key: term.bytes for term in plan_of(LEAN, model=model, max_length=4096).worst_gpu.allocated.terms}
    assert terms["weights.base"] == 2 * config["expect_params_total"]


def test_active_parameters_are_those_a_token_meets() -> None:
    assert spec().num_active_parameters == QWEN3["expect_params_active"]
    assert QWEN_7B.num_active_parameters == QWEN_7B.num_parameters


def test_active_experts_count_in_time() -> None:
    model = spec()
    work = {item.key: item.amount for item in account_of(LEAN, model=model, max_length=4096).combined.work}
    router, experts = 2048 * 128, 8 * 3 * 2048 * 768
    attention = 2 * 2048 * (4096 + 512)
    assert model.num_active_linear_parameters == 48 * (attention + router + experts)
    assert work["gemm.forward"] == 2 * model.num_active_linear_parameters * 4096


def test_copies_of_tokens_for_their_experts_count_in_time() -> None:
    """Eleven reads or writes of each of 8 rows of 2,048, four of gate and up, three times a layer, in 2 bytes."""

    def bytes_per_token(model: Any) -> int:
        work = {item.key: item.amount for item in account_of(LEAN, model=model, max_length=4096).combined.work}
        return work["memory.layers"] // 4096

    sparse, dense = spec(), spec(mlp_only_layers=list(range(48)), intermediate_size=8 * 768)
    assert bytes_per_token(sparse) - bytes_per_token(dense) == 3 * 48 * 2 * 8 * (11 * 2048 + 4 * 768)


def test_experts_are_put_together_in_host_memory_by_every_process() -> None:
    experts = 48 * 128 * 3 * 2048 * 768
    for ranks in (1, 2):
        values: dict[str, Any] = {"model": spec(), "cluster": cluster_of("H200", ranks), "max_length": 4096}
        plan = plan_of(LEAN, parallel=ParallelDegrees(data=ranks), **values)
        terms = {term.key: term.bytes for term in plan.host_terms}
        assert terms["pageable.experts"] == ranks * 2 * experts - terms["pageable.checkpoint"]
        assert plan.host_bytes >= ranks * 2 * experts
    assert "pageable.experts" not in {term.key for term in plan_of(LEAN).host_terms}
    streamed = plan_of({**LEAN, "weight_streaming": {}}, model=spec())  # they become the pinned weights, layer by layer
    assert "pageable.experts" not in {term.key for term in streamed.host_terms}


def test_a_cpu_maps_a_checkpoint_of_experts_and_holds_them_beside_it() -> None:
    values: dict[str, Any] = {"cluster": cpu_cluster(), "max_length": 512, "dtype": "bfloat16"}
    model = spec(num_hidden_layers=2)
    terms = {t.key: t.instants for t in plan_of({"lora": {}}, model=model, **values).worst_gpu.allocated.terms}
    assert "load" in terms["weights.base"]
    assert "load.file_pages" in terms


def test_dense_layers_between_sparse_ones_count_as_dense() -> None:
    every = spec(num_hidden_layers=4)
    half = spec(num_hidden_layers=4, decoder_sparse_step=2)
    listed = spec(num_hidden_layers=4, mlp_only_layers=[0, 2])
    assert half.experts is not None
    assert (half.experts.num_layers, half.num_parameters) == (2, listed.num_parameters)
    sparse, dense = 128 * (3 * 2048 * 768 + 2048), 3 * 2048 * 6144
    assert every.num_parameters - half.num_parameters == 2 * (sparse - dense)
    assert spec(num_hidden_layers=4, mlp_only_layers=[0, 1, 2, 3]).experts is None


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_experts": None}, "num_experts"),
        ({"num_experts": 0}, "num_experts"),
        ({"num_experts_per_tok": 129}, "num_experts_per_tok 129 exceeds the 128 experts"),
        ({"moe_intermediate_size": None}, "moe_intermediate_size"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step"),
        ({"mlp_only_layers": [48]}, "mlp_only_layers"),
        ({"mlp_only_layers": "0"}, "mlp_only_layers"),
        ({"model_type": "qwen2_moe"}, "shared_expert_intermediate_size"),
    ],
)
def test_impossible_experts_name_their_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        spec(**changes)


def test_adapters_reach_the_linears_that_a_layer_has_and_the_plan_says_so() -> None:
    assert set(spec().linears) == {"q_proj", "k_proj", "v_proj", "o_proj"}
    shared = catalog_model("Qwen/Qwen1.5-MoE-A2.7B")
    assert {"gate_proj", "up_proj", "down_proj", "shared_expert_gate"} < set(shared.linears)
    plan = plan_of(LEAN, model=spec(), max_length=4096)
    adapters = next(term for term in plan.worst_gpu.allocated.terms if term.key == "weights.adapters")
    assert adapters.bytes == 4 * 48 * 64 * (2 * (2048 + 4096) + 2 * (2048 + 512))
    assert "lora-targets" not in codes(plan)
    assert "Adapters cover q_proj, k_proj, v_proj, o_proj:" in issue_of(plan, "experts-frozen").why


def test_four_bit_storage_leaves_experts_in_16_bits() -> None:
    model = spec()
    terms = {t.key: t.bytes for t in plan_of({"qlora": {}}, model=model, max_length=1024).worst_gpu.allocated.terms}
    assert terms["weights.unquantised"] == 2 * (model.num_parameters - model.num_linear_parameters)
    assert terms["weights.unquantised"] > 0.95 * 2 * model.num_parameters


def test_adapters_train_and_the_whole_model_does_not() -> None:
    assert "planned-only" not in codes(plan_of(LEAN, model=spec(), max_length=4096))
    assert "planned-only" not in codes(plan_of({"qlora": {}}, model=spec(MIXTRAL), max_length=1024))
    plan = plan_of({}, model=catalog_model("Qwen/Qwen3-30B-A3B"), max_length=4096)
    with pytest.raises(ConfigError, match=r"Qwen/Qwen3-30B-A3B has 128 experts .* full fine-tuning") as refused:
        refuse_planned_only(plan)
    assert "no balancing loss" in refused.value.why


def test_dense_layers_between_sparse_ones_are_planned_only() -> None:
    issue = issue_of(plan_of(LEAN, model=spec(decoder_sparse_step=2), max_length=4096), "planned-only")
    assert "experts in 24 of 48 layers" in issue.what


@pytest.mark.parametrize(
    ("chosen", "code", "suggestion"),
    [
        ({"liger": {}}, "liger-experts", (("liger", {"swiglu": False}),)),
        ({"tiled_mlp": {}}, "tiled-mlp-experts", (("tiled_mlp", None),)),
    ],
)
@pytest.mark.parametrize("config", [QWEN3, MIXTRAL], ids=["qwen3_moe", "mixtral"])
def test_what_does_not_reach_experts_is_refused_by_name(
    config: dict[str, Any], chosen: dict[str, Any], code: str, suggestion: Any
) -> None:
    issue = issue_of(plan_of({**LEAN, **chosen}, model=spec(config), max_length=4096), code)
    assert (issue.severity, issue.suggestion) == ("error", suggestion)


def test_head_groups_and_the_other_kernels_of_liger_are_not_refused() -> None:
    chosen = {**LEAN, "liger": {"swiglu": False}, "fake_parallel": {"groups": 4}}
    plan = plan_of(chosen, model=spec(), max_length=4096)
    assert [issue.code for issue in plan.issues if issue.severity == "error"] == []


@pytest.mark.parametrize("changes", [{"hidden_size": 2052}, {"moe_intermediate_size": 764}], ids=["hidden", "expert"])
def test_widths_that_no_grouped_product_takes_are_planned_only(changes: dict[str, Any]) -> None:
    issue = issue_of(plan_of(LEAN, model=spec(**changes), max_length=4096), "planned-only")
    assert "multiples of 8" in issue.why


def test_gpus_without_grouped_products_are_refused() -> None:
    values: dict[str, Any] = {"model": spec(), "max_length": 1024, "dtype": "float16"}
    old = plan_of({"qlora": {}, "gradient_checkpointing": {}}, cluster=cluster_of("T4"), **values)
    assert issue_of(old, "experts-device").severity == "error"
    assert "experts-device" not in codes(plan_of({"qlora": {}}, cluster=cluster_of("A100-80G"), **values))
