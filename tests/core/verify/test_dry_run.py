"""A dry run holds, byte for byte, what the same run holds on real tensors; two depths tell any depth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

import core.loss.chunked
from core.verify.dry_run import depth_peaks, dry_run, with_depth
from core.verify.live_bytes import LiveBytes
from core.verify.loss_allocations import cross_entropy_
from planner.errors import ConfigError
from planner.types import INSTANTS, ParallelDegrees
from tests.planner.plans import account_of, run_config

TOKENS = 256
LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 5,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 500, "tie_word_embeddings": True,
}  # fmt: skip
QWEN3: dict[str, Any] = {**LLAMA, "model_type": "qwen3", "head_dim": 32, "tie_word_embeddings": False}
ADAPTERS = {"lora": {"rank": 8}}
RUNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "full": ({}, {}),
    "full, checkpointing, two micro-batches": ({"gradient_checkpointing": {}}, {"gradient_accumulation_steps": 2}),
    "full, layer by layer": ({"gradient_checkpointing": {}}, {"update": "layer", "max_grad_norm": 0.0}),
    "adapters with autocast": (ADAPTERS, {"autocast": True}),
    "adapters, attention kept": ({**ADAPTERS, "gradient_checkpointing": {"save_attention": True}}, {}),
    "adapters, head groups": ({**ADAPTERS, "gradient_checkpointing": {}, "fake_parallel": {"groups": 2}}, {}),
    "float32, fused loss": ({**ADAPTERS, "fused_loss": {"chunk_tokens": 64}}, {"dtype": "float32"}),
}
KEPT = {**ADAPTERS, "gradient_checkpointing": {"save_attention": True}, "tiled_mlp": {"tiles": 2}}
LAYER_RUNS: dict[str, dict[str, Any]] = {
    "attention kept": KEPT,
    "all recomputed": {**ADAPTERS, "gradient_checkpointing": {}, "fused_loss": {"chunk_tokens": 64}},
    "nothing recomputed": ADAPTERS,
    "one layer whole": {**KEPT, "gradient_checkpointing": {"save_attention": True, "kept_layers": 1}},
    "head groups": {**KEPT, "fake_parallel": {"groups": 2}},
}


@contextmanager
def real_allocations() -> Iterator[LiveBytes]:
    """Tensors with memory on this CPU; the loss of a chunk as on a GPU."""
    with patch.object(core.loss.chunked, "cross_entropy_", cross_entropy_), LiveBytes() as live:
        yield live


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("model", [LLAMA, QWEN3], ids=["llama", "qwen3"])
def test_it_allocates_what_the_run_allocates_on_real_tensors(model: dict[str, Any], run: str) -> None:
    optimizations, values = RUNS[run]
    config = run_config(optimizations, max_length=TOKENS, **values)
    shallow = with_depth(model, 4)
    dry, real = depth_peaks(config, shallow), depth_peaks(config, shallow, real_allocations)
    assert set(dry) == set(real)
    assert set(dry) - {"embedding_backward"} == {*INSTANTS, "middle_layers"} - {"save"}
    assert {phase: dry[phase] - real[phase] for phase in dry} == dict.fromkeys(dry, 0)


@pytest.mark.parametrize(("family", "run"), [("llama", "attention kept"), *(("qwen3", run) for run in LAYER_RUNS)])
def test_the_layer_engine_allocates_what_it_allocates_on_real_tensors(family: str, run: str) -> None:
    """In float32, where a CPU has the same products as a GPU."""
    config = run_config(LAYER_RUNS[run], max_length=TOKENS, dtype="float32", engine="layer")
    shallow = with_depth({"llama": LLAMA, "qwen3": QWEN3}[family], 4)
    dry, real = depth_peaks(config, shallow), depth_peaks(config, shallow, real_allocations)
    assert set(dry) == {*INSTANTS, "middle_layers"} - {"save"}
    assert {phase: dry[phase] - real[phase] for phase in dry} == dict.fromkeys(dry, 0)


@pytest.mark.parametrize(
    "optimizations",
    [
        LAYER_RUNS["nothing recomputed"],
        LAYER_RUNS["one layer whole"],
        {**KEPT, "checkpoint_offload": {"kept_layers": 1}},
    ],
    ids=["nothing recomputed", "one layer whole", "in host memory"],
)
def test_two_depths_of_the_layer_engine_tell_any_depth(optimizations: dict[str, Any]) -> None:
    config = run_config(optimizations, max_length=TOKENS, engine="layer")
    deep = {**QWEN3, "num_hidden_layers": 8}
    told, at_depth = dry_run(config, deep).by_instant, depth_peaks(config, deep)
    assert {instant: told[instant] - at_depth[instant] for instant in told} == dict.fromkeys(told, 0)
    assert at_depth["middle_layers"] <= max(
        at_depth[i] for i in ("layer_backward", "attention_backward", "backward_end")
    )


def test_a_kernel_that_sums_heads_in_float32_holds_less_where_heads_are_shared() -> None:
    """FlashAttention-4 sums dk and dv over query heads, torch makes them for each."""
    config = run_config({**KEPT, "tiled_mlp": {"tiles": 4}}, max_length=TOKENS, engine="layer")
    model = {**with_depth(LLAMA, 3), "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 32}
    summed, each = (depth_peaks(config, model, kernel=kernel)["attention_backward"] for kernel in ("flash4", "torch"))
    one_head, row_sums = TOKENS * 32, 4 * 16 * TOKENS
    assert each - summed == 2 * (2 * 16 - 4 * 2) * one_head - row_sums


@pytest.mark.parametrize(
    "optimizations",
    [
        {},
        {**ADAPTERS, "gradient_checkpointing": {"save_attention": True}},
        {**ADAPTERS, "gradient_checkpointing": {"kept_layers": 1}, "checkpoint_offload": {"kept_layers": 2}},
    ],
    ids=["full", "attention kept", "inputs in host memory"],
)
def test_two_depths_tell_any_depth(optimizations: dict[str, Any]) -> None:
    config, deep = run_config(optimizations, max_length=TOKENS), {**LLAMA, "num_hidden_layers": 8}
    told, at_depth = dry_run(config, deep).by_instant, depth_peaks(config, deep)
    at_depth["optimizer_step"] = max(at_depth["optimizer_step"], at_depth.get("embedding_backward", 0))
    assert {instant: told[instant] - at_depth[instant] for instant in told} == dict.fromkeys(told, 0)


def test_a_model_of_few_layers_is_run_whole() -> None:
    config, shallow = run_config(ADAPTERS, max_length=TOKENS), with_depth(LLAMA, 2)
    told, whole = dry_run(config, shallow).by_instant, depth_peaks(config, shallow)
    assert told == {instant: whole[instant] for instant in told}


@pytest.mark.parametrize("run", ["full", "adapters with autocast", "full, checkpointing, two micro-batches"])
def test_the_layers_in_between_never_hold_more_than_the_last_and_the_first(run: str) -> None:
    optimizations, values = RUNS[run]
    peaks = depth_peaks(run_config(optimizations, max_length=TOKENS, **values), LLAMA)
    assert peaks["middle_layers"] <= max(peaks[i] for i in ("layer_backward", "attention_backward", "backward_end"))


def test_weights_and_states_are_those_of_the_plan() -> None:
    """Exactly, less what is per token."""
    from planner.model_spec import model_spec_from_config

    config = run_config({}, max_length=TOKENS)
    told = dry_run(config, LLAMA).by_instant
    planned = account_of({}, model=model_spec_from_config("tiny", LLAMA), max_length=TOKENS).combined
    weights = next(spec.bytes for spec in planned.specs if spec.key == "weights.base")
    frequencies = told["load"] - weights
    assert 0 <= frequencies <= 4 * LLAMA["hidden_size"]


def test_more_than_one_rank_is_refused() -> None:
    with pytest.raises(ConfigError, match="one rank"):
        dry_run(run_config({}, parallel=ParallelDegrees(data=2)), LLAMA)
