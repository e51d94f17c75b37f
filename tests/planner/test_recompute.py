"""The plan of layers that keep their tensors while the others are recomputed: bytes, work, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from planner.account import Account
from tests.planner.plans import LEAN_LORA, QWEN_7B, account_of, codes, issue_of, plan_of

N, T = QWEN_7B.num_layers, 8192
ONE_INPUT = 2 * QWEN_7B.hidden_size * T
BF16_LORA = {"lora": {"rank": 64, "adapter_dtype": "bfloat16"}, "fused_loss": {}}


def keeping(kept: int, **others: Any) -> Account:
    return account_of({**BF16_LORA, "gradient_checkpointing": {"kept_layers": kept}, **others})


def bytes_of(result: Account, prefix: str, instant: str) -> int:
    specs = result.combined.specs
    return sum(spec.bytes for spec in specs if spec.key.startswith(prefix) and instant in spec.instants)


@pytest.mark.parametrize("kept", [1, 10, N - 1])
def test_recomputed_layers_keep_their_input_and_kept_ones_what_a_layer_saves(kept: int) -> None:
    result = keeping(kept)
    assert bytes_of(result, "layer_inputs", "forward_loss") == (N - kept) * ONE_INPUT
    # stock code, bf16 adapters: two norms 4d + 4, q k v and output with log-sum-exp, gate up silu, the inputs of A
    # (normed input, that of the MLP, the product) and of B, 14r in all
    m = QWEN_7B
    d, f, q, kv, r = m.hidden_size, m.intermediate_size, m.q_width, m.kv_width, 64
    one = (8 * d + 8 + 4 * q + 4 * kv + 4 * m.num_attention_heads + 6 * f + 4 * d + 2 * f + 14 * r) * T
    assert bytes_of(result, "layer.", "forward_loss") == one
    assert bytes_of(result, "other_layers.", "forward_loss") == (kept - 1) * one
    assert bytes_of(result, "other_layers.", "backward_end") == 0


def test_each_kept_layer_adds_what_it_saves_less_its_input() -> None:
    sizes = [keeping(kept).combined.bytes_by_instant()["layer_backward"] for kept in (2, 3, 4)]
    one = bytes_of(keeping(1), "layer.", "forward_loss")
    assert sizes[1] - sizes[0] == sizes[2] - sizes[1] == one - ONE_INPUT


@pytest.mark.parametrize("kept", [0, 7, 14, 21])
def test_only_recomputed_layers_run_forward_again(kept: int) -> None:
    work = {item.key: item.amount for item in keeping(kept).combined.work}
    recomputed = N - kept
    assert work["gemm.recompute"] * N == work["gemm.forward"] * recomputed
    assert work["attention.recompute"] == pytest.approx(work["attention.forward"] * recomputed / N)
    adapters = 64 * sum(i + o for i, o in QWEN_7B.linears.values())
    assert work["gemm.adapters"] == 2 * (3 * N + recomputed) * adapters * T


def test_kept_layers_are_faster() -> None:
    speeds = [plan_of({**BF16_LORA, "gradient_checkpointing": {"kept_layers": kept}}).tokens_per_second
              for kept in (0, 9, 18, 27)]  # fmt: skip
    assert speeds == sorted(speeds)
    assert speeds[-1] < plan_of(BF16_LORA).tokens_per_second


def test_offload_and_kept_attention_count_recomputed_layers_only() -> None:
    offloaded = keeping(10, checkpoint_offload={"kept_layers": 3})
    assert bytes_of(offloaded, "layer_inputs", "layer_forward") == 4 * ONE_INPUT
    assert bytes_of(offloaded, "layer_inputs", "forward_loss") == 3 * ONE_INPUT
    assert {w.key: w.amount for w in offloaded.combined.work}["pcie.offload"] == 2 * (N - 10 - 3) * ONE_INPUT
    kept = account_of({**BF16_LORA, "gradient_checkpointing": {"kept_layers": 10, "save_attention": True}})
    one_output = (2 * QWEN_7B.q_width + 4 * QWEN_7B.num_attention_heads) * T
    assert bytes_of(kept, "kept_attention", "forward_loss") == (N - 10) * one_output
    assert bytes_of(kept, "kept_attention", "backward_end") == one_output  # the second layer has its own at work


def test_keeping_every_layer_is_refused_with_the_most_that_recomputes() -> None:
    plan = plan_of({**LEAN_LORA, "gradient_checkpointing": {"kept_layers": N}})
    issue = issue_of(plan, "checkpointing-nothing")
    assert issue.severity == "error"
    assert f"kept_layers: {N - 1}" in issue.fix
    assert "checkpointing-nothing" not in codes(
        plan_of({**LEAN_LORA, "gradient_checkpointing": {"kept_layers": N - 1}})
    )
