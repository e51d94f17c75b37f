"""What this version plans and cannot train with: a plan names it, a launch and a rehearsal refuse it."""

from __future__ import annotations

from typing import Any

import pytest

from app.services.launch import plan_for_launch
from app.services.rehearse import rehearse_preset
from core.optimizations import REGISTRY
from planner.errors import ConfigError
from planner.types import Preset

PRESET = Preset(
    name="small", description="", values={
        "model": "HuggingFaceTB/SmolLM2-135M-Instruct", "max_length": 256, "dtype": "float32",
        "data": {"train": "rows.jsonl"},
    }, hardware={"gpu": "A10"},
)  # fmt: skip


@pytest.mark.parametrize("start", [plan_for_launch, rehearse_preset])
def test_no_run_starts_with_a_model_that_is_only_planned(start: Any) -> None:
    with pytest.raises(ConfigError, match="is planned only"):
        start(PRESET, {"model": "Qwen/Qwen2.5-VL-3B-Instruct", "lora": 8}, gpu="cpu")


def test_every_entry_either_trains_or_says_that_it_does_not() -> None:
    for name, entry in REGISTRY.items():
        trains = hasattr(entry, "apply") and hasattr(entry, "verify")
        assert trains == entry.available, name
