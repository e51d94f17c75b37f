"""Operators of a step, counted as torch dispatches them, against the counts that the time model has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from core.data.row import Row
from core.parallel.layout import shard_row
from core.train.forward import forward_loss
from core.verify.flash_allocations import FlashAllocations
from planner.catalog.models import MODELS
from planner.model_spec import model_spec_from_config
from planner.parts.launches import KERNEL_NS, VIEW_NS
from tests.planner.engine_bytes import CPU, build
from tests.planner.plans import account_of, plan_of, run_config

TOKENS = 96
SHAPE: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 72, "intermediate_size": 192, "num_attention_heads": 9,
    "num_key_value_heads": 3, "vocab_size": 300, "tie_word_embeddings": True,
}  # fmt: skip
VIEWS = (
    "view", "transpose", "detach", "expand", "slice", "select", "squeeze", "alias", "aten.t.", "as_strided", "permute",
    "split", "unbind",
)  # fmt: skip
HALF: dict[str, Any] = {"lora": {"rank": 8, "adapter_dtype": "bfloat16"}}
CASES: dict[str, tuple[dict[str, Any], bool]] = {
    "full": ({}, False),
    "full, recomputed": ({"gradient_checkpointing": {}}, False),
    "adapters": (HALF, False),
    "adapters, recomputed": ({**HALF, "gradient_checkpointing": {}}, False),
    "casts": ({"lora": {"rank": 8}, "gradient_checkpointing": {}}, True),
    "head groups": ({"lora": {"rank": 8}, "gradient_checkpointing": {}, "fake_parallel": {"groups": 3}}, True),
}


class Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ns = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ns += VIEW_NS if any(name in str(func) for name in VIEWS) else KERNEL_NS
        return func(*args, **(kwargs or {}))


def measured_ns(optimizations: dict[str, Any], autocast: bool, num_layers: int) -> int:
    config = run_config({**optimizations, "fused_loss": {"chunk_tokens": TOKENS}}, autocast=autocast, max_length=TOKENS)
    setup = build({**SHAPE, "num_hidden_layers": num_layers}, config, FlashAllocations())
    ids = torch.randint(0, SHAPE["vocab_size"], (TOKENS,))
    row = Row(
        input_ids=ids, labels=ids.roll(-1), position_ids=torch.arange(TOKENS), cu_seqlens=(0, TOKENS), sample_ids=(0,),
        num_targets=TOKENS,
    )  # fmt: skip
    operators = Operators()
    with operators:
        forward_loss(setup, shard_row(row, setup.mesh, CPU)).backward()
    return operators.ns


@pytest.mark.parametrize("case", CASES)
def test_operators_of_a_layer_are_those_that_torch_dispatches(case: str) -> None:
    optimizations, autocast = CASES[case]
    two, three = (measured_ns(optimizations, autocast, n) for n in (2, 3))
    model = model_spec_from_config("tiny", {**SHAPE, "num_hidden_layers": 3})
    work = account_of(optimizations, model=model, autocast=autocast, max_length=TOKENS).combined.work
    planned = sum(item.amount for item in work if item.kind == "overhead" and item.overlapped) / 3
    assert planned == pytest.approx(three - two, rel=0.1)


def test_a_small_model_on_a_large_card_is_bound_by_launches() -> None:
    name = "HuggingFaceTB/SmolLM2-135M"
    demo: dict[str, Any] = {
        "lora": {"rank": 16}, "gradient_checkpointing": {}, "fused_loss": {}, "fake_parallel": {"groups": 3},
    }  # fmt: skip
    values: dict[str, Any] = {"model": model_spec_from_config(name, MODELS[name]), "autocast": True}
    short, long = (plan_of(demo, max_length=n, **values) for n in (512, 1024))
    assert short.seconds_per_step == pytest.approx(long.seconds_per_step, rel=0.02)
    assert 3000 < long.tokens_per_second < 5000
    plain = {key: value for key, value in demo.items() if key != "fake_parallel"}
    assert plan_of(plain, max_length=1024, **values).tokens_per_second > 1.5 * long.tokens_per_second
