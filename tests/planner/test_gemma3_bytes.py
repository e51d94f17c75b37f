"""Gemma 3's layers: planned bytes against what torch allocates, tiny models, rows within their window and beyond it."""

from __future__ import annotations

from typing import Any

import pytest

from core.attention.windows import BATCH_TOKENS
from planner.model_spec import model_spec_from_config
from planner.parts.sizes import WINDOW_BATCH_TOKENS
from planner.types import ModelSpec
from tests.planner.engine_bytes import step_peaks
from tests.planner.plans import account_of, run_config
from tests.planner.test_against_engine import METHODS, POLICIES, SHAPES, TOKENS, assert_close, planned_peaks

GEMMA3: dict[str, dict[str, Any]] = {
    "within the window": {
        "model_type": "gemma3_text", "hidden_size": 128, "intermediate_size": 640, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64, "vocab_size": 1000,
        "sliding_window": 512, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "max_position_embeddings": 1024,
    },
}  # fmt: skip
GEMMA3["beyond the window"] = {**GEMMA3["within the window"], "sliding_window": 64}
# what attention holds is the fullest moment of a layer
GEMMA3["beyond the window, a narrow MLP"] = {
    **GEMMA3["beyond the window"], "intermediate_size": 128, "num_key_value_heads": 2,
}  # fmt: skip
RUNS = (
    "nothing", "checkpointing", "both", "both, attention kept", "both, one layer kept",
    "both, attention kept, offload", "both, attention kept, offload of all but two",
)  # fmt: skip


@pytest.fixture(autouse=True)
def shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, shape in GEMMA3.items():
        monkeypatch.setitem(SHAPES, name, shape)


@pytest.mark.parametrize("policy", RUNS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", ["within the window", "beyond the window"])
def test_a_gpu_step_in_bf16(shape: str, method: str, policy: str) -> None:
    optimizations, autocast = METHODS[method]
    values: dict[str, Any] = {
        "optimizations": {**optimizations, **POLICIES[policy]}, "autocast": autocast, "max_length": TOKENS,
    }  # fmt: skip
    measured = step_peaks(GEMMA3[shape], run_config(**values), as_cuda=True)
    planned = planned_peaks(shape, True, **values)
    if method == "full":  # the head's gradient of a chunk is made in 16 bit first on a CPU, which no plan for a GPU has
        measured = {**measured, "forward": planned["forward"]}
    if shape != "within the window":  # a forward that joins two calls is never the peak of a step, and not counted
        measured = {**measured, "forward": planned["forward"], "evaluation": planned["evaluation"]}
    assert_close(measured, planned)


@pytest.mark.parametrize("method", METHODS)
def test_the_fullest_moment_where_it_is_the_attention_of_a_layer_that_slides(method: str) -> None:
    optimizations, autocast = METHODS[method]
    values: dict[str, Any] = {
        "optimizations": {**optimizations, **POLICIES["both"]}, "autocast": autocast, "max_length": TOKENS,
    }  # fmt: skip
    shape = "beyond the window, a narrow MLP"
    measured = step_peaks(GEMMA3[shape], run_config(**values), as_cuda=True)
    assert planned_peaks(shape, True, **values)["backward"] == pytest.approx(measured["backward"], rel=0.02)


def test_what_a_layer_that_slides_sees_of_the_chunk_before_is_taken_in_the_same_batches() -> None:
    assert WINDOW_BATCH_TOKENS == BATCH_TOKENS


def test_beyond_the_window_attention_holds_a_batch_more_and_never_more_than_that() -> None:
    model = model_spec_from_config("tiny", {**GEMMA3["beyond the window"], "max_position_embeddings": 1 << 20})
    at = {length: attention_gradients(model, length) for length in (64, 16_384, 32_768, 65_536)}
    per_token = at[64] // 64  # within the window
    beyond = {length: size - per_token * length for length, size in at.items()}
    assert beyond[16_384] > 0
    assert beyond[32_768] < beyond[16_384]  # the kernel's scratch of the whole row is gone by then
    assert at[65_536] == per_token * 65_536


def test_where_the_last_layer_attends_to_the_whole_row_the_one_before_it_holds_a_batch_and_one_input_less() -> None:
    shape = {**GEMMA3["beyond the window"], "num_hidden_layers": 2}
    last = {**shape, "layer_types": ["full_attention", "sliding_attention"]}
    before = {**shape, "layer_types": ["sliding_attention", "full_attention"]}
    sizes = [attention_gradients(model_spec_from_config("tiny", one), TOKENS) for one in (last, before)]
    assert sizes[0] - sizes[1] == 2 * shape["hidden_size"] * TOKENS


def attention_gradients(model: ModelSpec, length: int) -> int:
    terms = account_of({"lora": {}, "gradient_checkpointing": {}}, model=model, max_length=length).combined.specs
    return next(spec.bytes for spec in terms if spec.key == "attention_backward.gradients")
