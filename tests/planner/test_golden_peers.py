"""Transformers' own step, with and without Liger, as measured on one H200 and as dry runs counted it.

Measured 2026-11-29: torch 2.11.0, transformers 5.17.0, peft 0.21.0, liger-kernel 0.8.5, Qwen2.5-7B shape, LoRA r64 on
all linears, batch 1, every token a label, torch AdamW, third step. GiB that torch had allocated at the peak. Nothing in
the planner was fitted to these rows: the instants come from the tensors that the modeling code saves and makes
(planner/parts/mlp_moments.py, compared tensor by tensor in test_mlp_moments.py and test_against_engine.py).
"""

from __future__ import annotations

import pytest

from planner.catalog.gpus import GPUS
from tests.planner.hf_recipe import hf_step
from tests.planner.plans import GIB, QWEN_7B, catalog_model

K = 1024
LLAMA_8B = catalog_model("meta-llama/Llama-3.1-8B")
LIGER = [  # adapters, autocast, length, allocated GiB
    ("bfloat16", True, 8, 18.49), ("bfloat16", True, 32, 28.48), ("bfloat16", True, 64, 41.80),
    ("bfloat16", True, 128, 68.45),
    ("float32", True, 8, 20.07), ("float32", True, 32, 32.08),
    ("float32", False, 8, 20.45), ("float32", False, 16, 24.84), ("float32", False, 32, 33.62),
    ("float32", False, 64, 51.19),
]  # fmt: skip
STOCK = [(8, 31.62), (16, 47.19), (32, 78.32)]  # fp32 adapters, no autocast

# c1 stock, fp32 adapters, autocast, outputs held; c2 the same, outputs dropped; c3 Liger, fp32 adapters; c4 Liger, bf16
# adapters; then c1, c3, c4 without checkpointing. Counted by dry runs or by the closed form that those confirmed.
TABLE = [
    (QWEN_7B, 8, (33.9, 31.6, 20.0, 18.5), (83.9, 57.6, 49.8)),
    (QWEN_7B, 16, (51.8, 47.1, 24.1, 21.9), (151.6, 97.7, 84.5)),
    (QWEN_7B, 32, (87.5, 78.3, 32.2, 28.6), (286.9, 179.3, 153.9)),
    (LLAMA_8B, 8, (32.7, 30.7, 21.1, 19.5), (84.1, 59.5, 50.6)),
    (LLAMA_8B, 16, (48.5, 44.6, 25.3, 23.0), (151.1, 102.2, 85.3)),
    (LLAMA_8B, 32, (80.1, 72.3, 33.8, 30.2), (285.0, 187.6, 154.7)),
]
COLUMNS = {
    "c1": {"liger": False, "holds_outputs": True, "adapter_dtype": "float32"},
    "c2": {"liger": False, "adapter_dtype": "float32"},
    "c3": {"adapter_dtype": "float32"},
    "c4": {"adapter_dtype": "bfloat16"},
}
# c3 without checkpointing, beyond 8K: that table's formula, no run; where it was run it came out 1.4 % too low
FORMULA_ONLY = 1.014


def gib(length: int, **values) -> float:
    return hf_step(length * K, **values).peak_bytes / GIB


@pytest.mark.parametrize(("adapters", "autocast", "length", "measured"), LIGER)
def test_liger_rows_within_two_thousandths(adapters: str, autocast: bool, length: int, measured: float) -> None:
    assert gib(length, adapter_dtype=adapters, autocast=autocast) == pytest.approx(measured, rel=0.002)


@pytest.mark.parametrize(("length", "measured"), STOCK)
def test_stock_rows_within_half_a_percent(length: int, measured: float) -> None:
    assert gib(length, adapter_dtype="float32", autocast=False, liger=False) == pytest.approx(measured, rel=0.005)


def test_the_row_without_checkpointing() -> None:
    planned = gib(8, adapter_dtype="float32", autocast=False, checkpointing=False)
    assert planned == pytest.approx(74.42, rel=0.005)


def test_slope_of_qlora_is_the_measured_one() -> None:
    """Llama-3.1-8B shape, NF4, r32 on all linears: 449 KiB a token."""
    short, long = (
        hf_step(n * K, method="qlora", rank=32, adapter_dtype="bfloat16", autocast=True, model=LLAMA_8B).peak_bytes
        for n in (32, 64)
    )
    assert (long - short) / (32 * K) / 1024 == pytest.approx(449, rel=0.005)


def test_longest_row_on_24_gb_is_the_measured_edge() -> None:
    """The same with 8-bit AdamW and torch's allocator held to 23.2 GB: 36,864 tokens passed, 37,888 did not."""
    passed, failed = (
        hf_step(
            n * K, method="qlora", rank=32, adapter_dtype="bfloat16", autocast=True, model=LLAMA_8B, optim="adamw_8bit"
        ).peak_bytes
        for n in (36, 37)
    )
    assert passed < 24e9 - 0.8e9 < failed


def test_slope_above_layer_inputs_with_fp32_adapters_is_that_of_the_saved_tensors() -> None:
    """375 KB a token measured: 12f of the MLP being recomputed, and the fp32 copies of what adapters read."""
    short, long = (gib(n, adapter_dtype="float32", autocast=False) * GIB for n in (32, 64))
    inputs = 2 * QWEN_7B.num_layers * QWEN_7B.hidden_size
    assert (long - short) / (32 * K) - inputs == pytest.approx(374_890, rel=0.002)


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0].name}-{row[1]}K")
def test_table_with_checkpointing(row, column: str) -> None:
    model, length, expected, _ = row
    planned = gib(length, model=model, autocast=True, **COLUMNS[column])
    assert planned == pytest.approx(expected[list(COLUMNS).index(column)], rel=0.015)


@pytest.mark.parametrize("column", ["c1", "c3", "c4"])
@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0].name}-{row[1]}K")
def test_table_without_checkpointing(row, column: str) -> None:
    model, length, _, expected = row
    planned = gib(length, model=model, autocast=True, checkpointing=False, **COLUMNS[column])
    wanted = expected[["c1", "c3", "c4"].index(column)]
    was_run = column != "c3" or (model, length) == (QWEN_7B, 8)
    assert planned == pytest.approx(wanted if was_run else FORMULA_ONLY * wanted, rel=0.015)


@pytest.mark.parametrize(
    ("adapters", "autocast", "length", "kernel", "measured"),
    [
        ("bfloat16", True, 8, "cudnn", 10227), ("bfloat16", True, 32, "cudnn", 7446),
        ("bfloat16", True, 64, "cudnn", 5374), ("bfloat16", True, 128, "cudnn", 3260),
        ("bfloat16", True, 8, "torch", 9032), ("bfloat16", True, 32, "torch", 5631),
        ("float32", True, 8, "cudnn", 8743), ("float32", True, 32, "cudnn", 6620),
        ("float32", False, 8, "cudnn", 6611), ("float32", False, 16, "cudnn", 6224),
        ("float32", False, 32, "cudnn", 5366), ("float32", False, 64, "cudnn", 4190),
    ],
)  # fmt: skip
def test_speed_tells_adapter_dtype_autocast_and_kernel_apart(
    adapters: str, autocast: bool, length: int, kernel: str, measured: float
) -> None:
    step = hf_step(length * K, adapter_dtype=adapters, autocast=autocast, kernel=kernel)
    assert step.tokens_per_second == pytest.approx(measured, rel=0.10)


@pytest.mark.parametrize(("length", "measured"), [(8, 6038), (16, 5685), (32, 4945)])
def test_speed_of_stock_rows(length: int, measured: float) -> None:
    step = hf_step(length * K, adapter_dtype="float32", autocast=False, liger=False)
    assert step.tokens_per_second == pytest.approx(measured, rel=0.10)


def test_speed_without_checkpointing_and_of_qlora() -> None:
    kept = hf_step(8 * K, adapter_dtype="float32", autocast=False, checkpointing=False)
    assert kept.tokens_per_second == pytest.approx(9287, rel=0.10)
    quantised = hf_step(36 * K, method="qlora", rank=32, adapter_dtype="bfloat16", autocast=True, model=LLAMA_8B)
    assert quantised.tokens_per_second == pytest.approx(6037, rel=0.15)


def test_the_rows_are_of_a_card_that_the_catalog_has() -> None:
    assert GPUS["H200"].memory_bytes == 143_771 * 1024**2
