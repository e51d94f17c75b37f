"""Shards of weights, gradients and states over ranks, as planned, against hand numbers."""

from __future__ import annotations

from typing import Any

import pytest

from planner.layer_policy import layer_engine_obstacle
from planner.time import STEP_OVERHEAD_S, STEP_TRAFFIC, micro_batch_seconds, rates_of, step_seconds
from planner.types import ParallelDegrees
from tests.planner.plans import GIB, QWEN_7B, account_of, bytes_of, cluster_of, issue_of, plan_of, run_config, work_of

D, N, V = 3584, 28, 152064
BF16: dict[str, Any] = {"lora": {"rank": 64, "adapter_dtype": "bfloat16"}, "fused_loss": {}}
LEAN: dict[str, Any] = {**BF16, "gradient_checkpointing": {}}
FULL: dict[str, Any] = {"gradient_checkpointing": {}, "fused_loss": {}}
LAYERS = 2 * (QWEN_7B.num_parameters - 2 * V * D - D)  # bf16 bytes of all decoder layers
ADAPTERS = 64 * N * sum(map(sum, QWEN_7B.linears.values()))


class TestFsdp:
    @pytest.mark.parametrize("ranks", [2, 8])
    def test_a_rank_has_its_share_of_weights_gradients_and_states(self, ranks: int) -> None:
        values: dict[str, Any] = {"parallel": ParallelDegrees(data=ranks), "optim": "adamw_torch_fused"}
        result = account_of({**FULL, "fsdp": {}}, **values)
        weights = 2 * QWEN_7B.num_parameters
        assert bytes_of(result, "weights", "load") == -(-weights // ranks)
        assert bytes_of(result, "optimizer", "forward_loss") == -(-2 * weights // ranks)
        assert bytes_of(result, "gradients.base.all", "optimizer_step") == -(-weights // ranks)

    def test_two_layers_and_the_root_are_gathered(self) -> None:
        result = account_of({**FULL, "fsdp": {}}, parallel=ParallelDegrees(data=4))
        layer = -(-LAYERS // N)
        for instant in ("layer_forward", "layer_backward", "attention_backward", "backward_end", "evaluation_forward"):
            assert bytes_of(result, "gathered.layers", instant) == 2 * layer
            assert bytes_of(result, "gathered.root", instant) == 2 * (2 * V * D + D)
        assert bytes_of(result, "gathered.waiting", "forward_loss") == layer
        assert bytes_of(result, "gathered", "load") == 2 * (2 * V * D + D)
        assert bytes_of(result, "gathered", "optimizer_step") == 0
        work = work_of(result)
        assert work["link.gathered"] == (2 * N * layer + 2 * (2 * V * D + D)) * 3 // 4
        assert work["link.reduced"] == 4 * (N * layer // 2 + 2 * V * D + D) * 3 // 4

    def test_adapters_are_gathered_with_their_layer(self) -> None:
        chosen = {**LEAN, "fsdp": {}}
        result = account_of(chosen, parallel=ParallelDegrees(data=2))
        layer = -(-LAYERS // N) + 2 * ADAPTERS // N
        assert bytes_of(result, "gathered.layers", "layer_backward") == 2 * layer
        assert bytes_of(result, "weights.adapters", "load") == ADAPTERS
        assert bytes_of(result, "reduced.layers", "backward_end") == 4 * ADAPTERS // N

    def test_gradients_are_whole_for_one_layer_and_in_float32_for_the_one_above(self) -> None:
        """By hand, of bfloat16 weights over 4 ranks; the head's waits for the embeddings'."""
        result = account_of({**FULL, "fsdp": {}}, parallel=ParallelDegrees(data=4), optim="adamw_torch_fused")
        layer, down = -(-LAYERS // N) // 2, 3584 * 18944
        upper = 3 * down + 3584 * 3584
        lowest = bytes_of(result, "reduced", "backward_end")
        activations = 6 * 2 * 18944 * 8192  # of the MLP, more than the rest of the layer's gradients
        assert activations > 2 * (layer - down)
        assert lowest == 4 * layer + 2 * V * D + 2 * down + (N - 2) * (2 * layer // 4)
        rest = 2 * (layer - upper) - 2 * (4 * 3584 + 4 * 512 + 3584) * 8192
        assert bytes_of(result, "reduced", "attention_backward") == 4 * layer + 2 * V * D + 2 * upper + max(0, rest)

    def test_a_step_begins_with_the_gradients_of_the_root(self) -> None:
        """Gathered embeddings, head and norm, both tables' gradients, that of the embeddings' output, and the lowest
        layer's in float32; the root's shards and an update in place are counted elsewhere."""
        result = account_of({**FULL, "fsdp": {}}, parallel=ParallelDegrees(data=4), optim="adamw_torch_fused")
        root, layer = 2 * V * D + D, -(-LAYERS // N) // 2
        formed = 2 * root + 2 * (2 * V * D) + 2 * D * 8192 + 4 * layer
        assert bytes_of(result, "reduced.root", "optimizer_step") == max(formed, (2 + 4) * root) - 2 * root // 4
        assert bytes_of(result, "step", "optimizer_step") == 0

    def test_rank_zero_puts_a_checkpoint_together_on_its_host(self) -> None:
        values: dict[str, Any] = {"parallel": ParallelDegrees(data=4), "optim": "adamw_torch_fused"}
        whole, shards = (plan_of(chosen, **values).host_bytes for chosen in (FULL, {**FULL, "fsdp": {}}))
        weights = 2 * QWEN_7B.num_parameters
        assert shards - whole == pytest.approx(3 * weights, rel=1e-6)

    def test_a_checkpoint_on_disk_is_whole(self) -> None:
        values: dict[str, Any] = {"parallel": ParallelDegrees(data=4), "save_total_limit": 1}
        whole, shards = (plan_of(chosen, **values).disk_bytes for chosen in (FULL, {**FULL, "fsdp": {}}))
        assert shards == pytest.approx(whole, rel=1e-6)

    def test_it_makes_full_training_of_7b_fit_where_it_did_not(self) -> None:
        cluster = cluster_of("A100-80G", 8)
        values: dict[str, Any] = {"parallel": ParallelDegrees(data=8), "cluster": cluster, "master_weights": "fp32"}
        assert plan_of(FULL, **values).verdict == "over"
        assert plan_of({**FULL, "fsdp": {}}, **values).worst_gpu.used_bytes < 40 * GIB

    def test_one_rank_has_nothing_to_share_and_galore_needs_whole_gradients(self) -> None:
        assert issue_of(plan_of({**FULL, "fsdp": {}}), "fsdp-one-rank").suggestion == (("fsdp", None),)
        both = plan_of({**FULL, "galore": {}, "fsdp": {}}, parallel=ParallelDegrees(data=2))
        assert "1 / 2" in issue_of(both, "fsdp-galore").why

    @pytest.mark.parametrize(
        ("chosen", "values", "code", "suggestion"),
        [
            ({"qlora": {}}, {}, "fsdp-qlora", ("fsdp", None)),
            ({}, {"optim": "adamw_8bit"}, "fsdp-8bit", ("optim", "adamw_torch_fused")),
            ({}, {"update": "layer", "max_grad_norm": 0.0}, "fsdp-update-layer", ("update", "step")),
        ],
    )  # fmt: skip
    def test_what_it_does_not_go_with_is_refused_by_name(
        self, chosen: dict[str, Any], values: dict[str, Any], code: str, suggestion: tuple[str, Any]
    ) -> None:
        plan = plan_of({**chosen, "fsdp": {}}, parallel=ParallelDegrees(data=4), **values)
        issue = issue_of(plan, code)
        assert (issue.severity, issue.suggestion) == ("error", (suggestion,))
        assert {"1 / 4", "shard"} & {word for word in ("1 / 4", "shard") if word in issue.why + issue.fix}

    def test_gradients_are_summed_within_the_backward_and_not_once_more(self) -> None:
        """Of the step nothing but the update and its fixed overhead is left beside the micro-batches."""
        result = account_of({**FULL, "fsdp": {}}, parallel=ParallelDegrees(data=4), optim="adamw_torch_fused")
        specs, work = result.combined.specs, result.combined.work
        rates = rates_of(result.ctx.cluster.gpu, result.ctx.model)
        states = 3 * -(-2 * QWEN_7B.num_parameters // 4)  # gradients, exp_avg, exp_avg_sq: a share of each
        update = STEP_TRAFFIC * states / rates.memory + STEP_OVERHEAD_S
        beside = step_seconds(result.ctx, work, specs) - micro_batch_seconds(rates, work)
        assert beside == pytest.approx(update, rel=1e-6)

    def test_modules_compute_the_layers(self) -> None:
        config = run_config({**LEAN, "fsdp": {}}, parallel=ParallelDegrees(data=2))
        assert "share" in (layer_engine_obstacle(config, QWEN_7B) or "")
        assert layer_engine_obstacle(run_config(LEAN), QWEN_7B) is None
