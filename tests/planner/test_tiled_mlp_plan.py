"""The plan of the MLP by tiles, against numbers derived by hand; tensor by tensor in test_against_engine.py."""

from __future__ import annotations

from typing import Any

import pytest

from planner.account import Account
from planner.types import Instant
from tests.planner.plans import QWEN_7B, account_of, catalog_model, codes, plan_of

D, F, N, T = 3584, 18944, 28, 8192
BF16: dict[str, Any] = {"lora": {"rank": 64, "adapter_dtype": "bfloat16"}, "fused_loss": {}}
LEAN: dict[str, Any] = {**BF16, "gradient_checkpointing": {}}


def bytes_of(result: Account, prefix: str, instant: Instant) -> int:
    return sum(s.bytes for s in result.combined.specs if s.key.startswith(prefix) and instant in s.instants)


def work_of(result: Account) -> dict[str, int]:
    return {item.key: item.amount for item in result.combined.work}


@pytest.mark.parametrize("tiles", [2, 8])
def test_a_tile_of_the_mlp_is_there_in_backward(tiles: int) -> None:
    whole, tiled = account_of(LEAN), account_of({**LEAN, "tiled_mlp": {"tiles": tiles}})
    for piece in ("layer.mlp", "layer_backward.mlp"):
        assert bytes_of(tiled, piece, "layer_backward") == bytes_of(whole, piece, "layer_backward") // tiles
    assert bytes_of(tiled, "layer.tiled_mlp.input", "layer_backward") == 2 * D * T
    assert bytes_of(tiled, "layer_backward.tiles", "layer_backward") == 4 * D * T - 2 * D * T // tiles


def test_without_checkpointing_a_layer_keeps_the_input_in_place_of_all_that_is_wide() -> None:
    whole, tiled = account_of(BF16), account_of({**BF16, "tiled_mlp": {"tiles": 8}})
    # stock code keeps gate, up, silu(gate), the MLP's input for two adapters and their narrow inputs, the product
    wide = (6 * F + 2 * D + 2 * F + 2 * 64 * 3) * T
    saved = bytes_of(whole, "other_layers", "forward_loss") - bytes_of(tiled, "other_layers", "forward_loss")
    assert saved == (N - 1) * (wide - 2 * D * T)
    assert bytes_of(tiled, "layer.mlp", "forward_loss") == 0


def test_it_costs_one_more_forward_of_the_mlp() -> None:
    more = work_of(account_of({**LEAN, "tiled_mlp": {}}))
    assert more["gemm.tiles"] == 2 * N * 3 * D * F * T
    assert more["gemm.tiles"] * QWEN_7B.num_linear_parameters == more["gemm.forward"] * N * 3 * D * F


def test_a_mixture_of_experts_is_refused() -> None:
    assert "tiled-mlp-experts" in codes(plan_of({"tiled_mlp": {}}, model=catalog_model("Qwen/Qwen3-30B-A3B")))


def test_dropout_is_refused() -> None:
    plan = plan_of({"lora": {"dropout": 0.1}, "tiled_mlp": {}})
    assert "tiled-mlp-dropout" in codes(plan)
    assert "tiled-mlp-dropout" not in codes(plan_of({"lora": {}, "tiled_mlp": {}}))


@pytest.mark.parametrize("method", ["full", "lora"])
def test_weight_gradients_of_a_layer_are_summed_in_float32(method: str) -> None:
    chosen: dict[str, Any] = {"gradient_checkpointing": {}, "tiled_mlp": {}}
    result = account_of(chosen if method == "full" else {**LEAN, **chosen})
    trained = 3 * D * F if method == "full" else 64 * 3 * (D + F)
    assert bytes_of(result, "layer_backward.tile_sums", "layer_backward") == (4 + 2) * trained
