"""Positions: what a model reaches, what a scaling makes of it, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from planner.errors import ConfigError
from planner.model_spec import model_spec_from_config
from planner.rope import next_factor, reach
from tests.planner.plans import QWEN_7B, catalog_model, codes, issue_of, plan_of, run_config

LLAMA = catalog_model("meta-llama/Llama-3.1-8B-Instruct")
TINY: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 100, "max_position_embeddings": 4096,
}  # fmt: skip


def scaled(factor: Any, kind: Any = "yarn") -> tuple[tuple[str, Any], ...]:
    return (("factor", factor), ("type", kind))


def test_a_scaling_multiplies_the_positions_and_warns_of_quality() -> None:
    plan = plan_of(max_length=65536, rope_scaling=scaled(2.0))
    issue = issue_of(plan, "rope-scaled")
    assert issue.severity == "warning"
    assert "2.00 times the 32768 positions" in issue.what
    assert "short texts lose a little" in issue.why
    assert reach(plan.config, QWEN_7B) == 65536


def test_a_scaling_that_is_not_needed_is_said_to_cost_for_nothing() -> None:
    issue = issue_of(plan_of(max_length=8192, rope_scaling=scaled(4.0)), "rope-scaled")
    assert "within the model's own 32768" in issue.what
    assert issue.fix == "Leave it out."


def test_phi4_takes_no_scaling_from_a_preset_and_is_not_advised_one() -> None:
    phi4 = catalog_model("microsoft/phi-4")
    refused = issue_of(plan_of(model=phi4, max_length=8192, rope_scaling=scaled(4.0)), "rope-scaling")
    assert (refused.severity, refused.suggestion) == ("error", (("rope_scaling", None),))
    assert "no other RoPE scaling for Phi-3 and Phi-4 than longrope" in refused.why
    beyond = issue_of(plan_of(model=phi4, max_length=16385), "length-beyond-model")
    assert beyond.fix == "Set max_length: 16384, or choose a model with more positions."
    assert beyond.suggestion == ()


def test_longrope_reaches_the_positions_that_the_config_says() -> None:
    scaling = {"type": "su", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    given = {**TINY, "model_type": "phi3", "original_max_position_embeddings": 1024, "rope_scaling": scaling}
    model = model_spec_from_config("mini", given)
    assert (model.max_position_embeddings, model.positions_before_scaling) == (4096, 1024)


def test_a_preset_replaces_the_scaling_that_a_model_brought_along() -> None:
    """Llama 3.1 has 131,072 positions, made of 8,192: a factor of 4 would leave it fewer than it had."""
    assert (LLAMA.original_positions, LLAMA.max_position_embeddings) == (8192, 131072)
    assert reach(run_config(rope_scaling=scaled(4.0)), LLAMA) == 32768
    refused = issue_of(plan_of(model=LLAMA, max_length=524288, rope_scaling=scaled(4.0)), "length-beyond-model")
    assert "beyond the 32768 that rope_scaling gives it" in refused.what
    assert "counts from 8192" in refused.why
    assert dict(refused.suggestion) == {"rope_scaling": {"type": "yarn", "factor": 64.0}}
    assert "length-beyond-model" not in codes(plan_of(model=LLAMA, max_length=524288, rope_scaling=scaled(64.0)))
    assert "length-beyond-model" not in codes(plan_of(model=LLAMA, max_length=131072))


def test_factors_come_in_halves() -> None:
    assert next_factor(100_000, QWEN_7B) == 3.5
    assert next_factor(32768, QWEN_7B) == 1.0


def test_a_length_that_no_scaling_reaches_is_refused_with_the_longest() -> None:
    issue = issue_of(plan_of(max_length=32768 * 513), "length-beyond-model")
    assert "factor of 513" in issue.why
    assert str(32768 * 512) in issue.fix
    assert not issue.suggestion


@pytest.mark.parametrize("factor", [0, 0.5, -1, None, "4", True, 1e9])
def test_impossible_factors_are_refused(factor: Any) -> None:
    issue = issue_of(plan_of(max_length=65536, rope_scaling=scaled(factor)), "rope-scaling")
    assert repr(factor) in issue.what


@pytest.mark.parametrize("kind", [None, "magic", "llama3"])
def test_unknown_types_are_refused_with_the_known_ones(kind: Any) -> None:
    issue = issue_of(plan_of(max_length=65536, rope_scaling=scaled(2.0, kind)), "rope-scaling")
    assert "yarn, linear, dynamic" in issue.why


def test_a_config_with_scaling_of_its_own_reaches_what_that_gives() -> None:
    def spec(**changes: Any):
        return model_spec_from_config("test", {**TINY, **changes})

    plain = spec()
    assert (plain.original_positions, plain.max_position_embeddings) == (4096, 4096)
    assert spec(rope_scaling={"type": "default"}) == spec(rope_parameters={"rope_type": "default"}) == plain
    stretched = spec(rope_scaling={"type": "linear", "factor": 4.0, "original_max_position_embeddings": 4096})
    assert (stretched.original_positions, stretched.max_position_embeddings) == (4096, 16384)
    assert spec(rope_scaling={"type": "linear", "factor": 4.0}) == plain
    yarn = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 2048}
    assert spec(rope_parameters=yarn).max_position_embeddings == 4096
    with pytest.raises(ConfigError, match="rope_scaling has factor 'x'"):
        spec(rope_scaling={"type": "linear", "factor": "x"})
    with pytest.raises(ConfigError, match="original_max_position_embeddings"):
        spec(rope_scaling={"type": "yarn", "factor": 2, "original_max_position_embeddings": 0})
    with pytest.raises(ConfigError, match="rope_scaling is 7"):
        spec(rope_scaling=7)


def test_gemma_3_is_scaled_in_the_layers_that_attend_to_the_whole_row_unless_it_came_stretched() -> None:
    small, stretched = catalog_model("google/gemma-3-1b-it"), catalog_model("google/gemma-3-4b-it")
    plan = plan_of({"lora": {}}, model=small, max_length=65536, rope_scaling=scaled(2.0, "linear"))
    assert issue_of(plan, "rope-scaled").severity == "warning"
    assert reach(plan.config, small) == 65536
    assert "length-beyond-model" not in codes(plan)
    refused = issue_of(plan_of(model=stretched, max_length=8192, rope_scaling=scaled(2.0)), "rope-scaling")
    assert (refused.severity, refused.suggestion) == ("error", (("rope_scaling", None),))
    assert "does not say from how many positions" in refused.why
    beyond = issue_of(plan_of(model=stretched, max_length=131073), "length-beyond-model")
    assert beyond.fix == "Set max_length: 131072, or choose a model with more positions."
