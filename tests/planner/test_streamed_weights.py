"""Weights that wait in host memory, as planned, against hand numbers."""

from __future__ import annotations

from typing import Any

import pytest

from planner.parts.nf4 import nf4_linear_bytes
from planner.types import INSTANTS, ParallelDegrees
from tests.planner.plans import QWEN_7B, SMOLLM2, account_of, bytes_of, cpu_cluster, issue_of, plan_of, work_of

D, N, V, T = 3584, 28, 152064, 8192
BF16: dict[str, Any] = {"lora": {"rank": 64, "adapter_dtype": "bfloat16"}, "fused_loss": {}}
LEAN: dict[str, Any] = {**BF16, "gradient_checkpointing": {}}
STREAMED: dict[str, Any] = {**LEAN, "weight_streaming": {"embeddings": "streamed"}}
LAYERS = 2 * (QWEN_7B.num_parameters - 2 * V * D - D)  # bf16 bytes of all decoder layers
ADAPTERS = 64 * N * sum(map(sum, QWEN_7B.linears.values()))


class TestWeightStreaming:
    def test_two_layers_are_on_the_gpu_and_the_rest_on_the_host(self) -> None:
        resident, streamed = account_of(LEAN), account_of({**LEAN, "weight_streaming": {}})
        assert bytes_of(streamed, "weights", "load") == 2 * LAYERS // N + 4 * V * D + 2 * D + 2 * ADAPTERS
        hosts = [plan_of(chosen).host_bytes for chosen in (LEAN, {**LEAN, "weight_streaming": {}})]
        assert hosts[1] - hosts[0] == LAYERS
        assert bytes_of(resident, "weights", "load") - bytes_of(streamed, "weights", "load") == LAYERS - 2 * LAYERS // N

    def test_streamed_embeddings_leave_the_head_while_the_loss_is_formed(self) -> None:
        result = account_of(STREAMED)
        assert bytes_of(result, "weights.head", "forward_loss") == 2 * V * D
        assert bytes_of(result, "weights.head", "layer_backward") == 0
        work = work_of(result)
        assert work["pcie.weights.forward"] == work["pcie.weights.backward"] == (N - 2) * LAYERS // N
        assert work["pcie.tables"] == 2 * D * T + 2 * V * D

    def test_tied_embeddings_are_one_table(self) -> None:
        result = account_of({"lora": {}, "weight_streaming": {}}, model=SMOLLM2)
        assert bytes_of(result, "weights.embeddings", "load") == 2 * SMOLLM2.vocab_size * SMOLLM2.hidden_size

    def test_4_bit_layers_travel_as_4_bit(self) -> None:
        quantised = {"qlora": {"rank": 64}, **{k: v for k, v in STREAMED.items() if k != "lora"}}
        result = account_of(quantised)
        linears = QWEN_7B.num_linear_parameters
        vectors = 2 * (QWEN_7B.num_parameters - linears - 2 * V * D - D)
        layer = -(-(nf4_linear_bytes(linears, double_quant=True) + vectors) // N)
        assert bytes_of(result, "weights.held_layers", "load") == 2 * layer
        assert bytes_of(result, "weights.nf4", "load") == bytes_of(result, "weights.unquantised", "load") == 0
        four, sixteen = (work_of(each)["pcie.weights.forward"] for each in (result, account_of(STREAMED)))
        assert four < sixteen / 3

    def test_long_rows_hide_the_copies_and_short_ones_do_not(self) -> None:
        def share(length: int) -> float:
            resident, streamed = (plan_of(chosen, max_length=length) for chosen in (LEAN, STREAMED))
            return resident.seconds_per_step / streamed.seconds_per_step

        assert share(32768) > 0.98
        assert 0.9 < share(8192) < 0.99
        assert share(512) < 0.3

    def test_the_8k_row_of_qwen_7b_goes_below_5_8_gb(self) -> None:
        lean = {
            **STREAMED, "liger": {}, "checkpoint_offload": {}, "packing": {}, "fake_parallel": {"groups": 4},
            "tiled_mlp": {"tiles": 8}, "fused_loss": {"chunk_tokens": 512},
        }  # fmt: skip
        plan = plan_of(lean)
        assert plan.worst_gpu.used_bytes < 5.8e9
        assert plan_of({k: v for k, v in lean.items() if k != "weight_streaming"}).worst_gpu.used_bytes > 15.2e9

    @pytest.mark.parametrize(
        ("optimizations", "values", "code", "suggestion"),
        [
            ({"weight_streaming": {}}, {}, "streaming-trains-weights", (("lora", 16),)),
            ({"lora": {}, "weight_streaming": {}, "fsdp": {}}, {"parallel": ParallelDegrees(data=2)}, "streaming-fsdp",
             (("fsdp", None),)),
            ({"lora": {}, "weight_streaming": {}}, {"cluster": cpu_cluster(), "dtype": "float32"}, "streaming-on-cpu",
             (("weight_streaming", None),)),
        ],
    )  # fmt: skip
    def test_contradictions(self, optimizations: Any, values: Any, code: str, suggestion: Any) -> None:
        issue = issue_of(plan_of(optimizations, **values), code)
        assert (issue.severity, issue.suggestion) == ("error", suggestion)


def test_no_instant_is_left_out() -> None:
    for chosen in ({**LEAN, "weight_streaming": {}}, {**LEAN, "tiled_mlp": {}}):
        by_instant = account_of(chosen).combined.bytes_by_instant()
        assert all(by_instant[instant] > 0 for instant in INSTANTS)
