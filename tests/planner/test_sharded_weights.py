"""Shards of weights, gradients and states over ranks, as planned, against hand numbers."""

from __future__ import annotations

from typing import Any

import pytest

from planner.account import Account
from planner.types import Instant, ParallelDegrees
from tests.planner.plans import GIB, QWEN_7B, account_of, cluster_of, issue_of, plan_of

D, N, V = 3584, 28, 152064
BF16: dict[str, Any] = {"lora": {"rank": 64, "adapter_dtype": "bfloat16"}, "fused_loss": {}}
LEAN: dict[str, Any] = {**BF16, "gradient_checkpointing": {}}
FULL: dict[str, Any] = {"gradient_checkpointing": {}, "fused_loss": {}}
LAYERS = 2 * (QWEN_7B.num_parameters - 2 * V * D - D)  # bf16 bytes of all decoder layers
ADAPTERS = 64 * N * sum(map(sum, QWEN_7B.linears.values()))


def bytes_of(result: Account, prefix: str, instant: Instant) -> int:
    return sum(s.bytes for s in result.combined.specs if s.key.startswith(prefix) and instant in s.instants)


def work_of(result: Account) -> dict[str, int]:
    return {item.key: item.amount for item in result.combined.work}


class TestFsdp:
    @pytest.mark.parametrize("ranks", [2, 8])
    def test_a_rank_has_its_share_of_weights_gradients_and_states(self, ranks: int) -> None:
        values: dict[str, Any] = {"parallel": ParallelDegrees(data=ranks), "optim": "adamw_torch_fused"}
        result = account_of({**FULL, "fsdp": {}}, **values)
        weights = 2 * QWEN_7B.num_parameters
        assert bytes_of(result, "weights", "load") == -(-weights // ranks)
        assert bytes_of(result, "optimizer", "forward_loss") == -(-2 * weights // ranks)
        assert bytes_of(result, "gradients.base.all", "optimizer_step") == -(-weights // ranks)
        hidden = 2 * 3584 * 8192  # while the embeddings' gradient is formed
        assert bytes_of(result, "step", "optimizer_step") == hidden // ranks

    def test_two_layers_and_the_root_are_gathered(self) -> None:
        result = account_of({**FULL, "fsdp": {}}, parallel=ParallelDegrees(data=4))
        layer = -(-LAYERS // N)
        assert bytes_of(result, "gathered.layers", "layer_backward") == 2 * layer + layer // 4
        assert bytes_of(result, "gathered.root", "layer_backward") == 2 * (2 * V * D + D)
        assert bytes_of(result, "reduced.layers", "layer_backward") == (2 + 2 * 4) * layer // 2
        work = work_of(result)
        assert work["link.gathered"] == (2 * N * layer + 2 * (2 * V * D + D)) * 3 // 4
        assert work["link.reduced"] == 4 * (N * layer // 2 + 2 * V * D + D) * 3 // 4

    def test_adapters_are_gathered_with_their_layer(self) -> None:
        chosen = {**LEAN, "fsdp": {}}
        result = account_of(chosen, parallel=ParallelDegrees(data=2))
        layer = -(-LAYERS // N) + 2 * ADAPTERS // N
        assert bytes_of(result, "gathered.layers", "layer_backward") == 2 * layer + layer // 2
        assert bytes_of(result, "weights.adapters", "load") == ADAPTERS

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
