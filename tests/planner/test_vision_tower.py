"""Models that read pictures too: the text part is planned, the tower counted, training refused."""

from __future__ import annotations

from typing import Any

import pytest

from app.services.planning import refuse_planned_only
from planner.errors import ConfigError
from planner.model_spec import model_spec_from_config
from tests.planner.plans import QWEN_7B, account_of, catalog_model, issue_of, plan_of

VL = catalog_model("Qwen/Qwen2.5-VL-7B-Instruct")
TEXT: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100,
}  # fmt: skip
VISION: dict[str, Any] = {"hidden_size": 32, "depth": 2, "intermediate_size": 48, "out_hidden_size": 64}


def spec(**changes: Any):
    return model_spec_from_config("vl", {"model_type": "qwen2_5_vl", "vision_config": VISION, **TEXT, **changes})


def test_text_is_planned_as_the_text_model_and_the_tower_lies_beside_it() -> None:
    lean = {"lora": {}, "gradient_checkpointing": {}, "fused_loss": {}}
    with_tower, alone = (account_of(lean, model=model, max_length=8192).combined for model in (VL, QWEN_7B))
    assert VL.num_parameters - QWEN_7B.num_parameters == VL.tower_parameters == 676_550_144
    for instant, size in alone.bytes_by_instant().items():
        assert with_tower.bytes_by_instant()[instant] - size == 2 * VL.tower_parameters, instant
    gemm = [sum(item.amount for item in side.work if item.kind == "gemm") for side in (with_tower, alone)]
    assert gemm[0] == gemm[1]


def test_a_text_config_of_its_own_gives_the_same_as_fields_beside_the_tower() -> None:
    nested = {"model_type": "qwen2_5_vl", "vision_config": VISION, "text_config": {"model_type": "any", **TEXT}}
    assert model_spec_from_config("vl", nested) == spec()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"vision_config": None}, "vision_config is missing"),
        ({"vision_config": "clip"}, "vision_config is 'clip'"),
        ({"vision_config": {**VISION, "depth": 0}}, "vision_config: depth"),
        ({"vision_config": {**VISION, "patch_size": [14, "x"]}}, "vision_config: width"),
        ({"hidden_size": None}, "hidden_size"),
    ],
)
def test_bad_fields_are_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        spec(**changes)


def test_a_launch_is_refused_by_name_and_with_the_reason() -> None:
    plan = plan_of({"lora": {}}, model=VL, max_length=1024)
    assert "0.68 billion" in issue_of(plan, "planned-only").why
    with pytest.raises(ConfigError, match=r"Qwen/Qwen2\.5-VL-7B-Instruct reads pictures too"):
        refuse_planned_only(plan)
