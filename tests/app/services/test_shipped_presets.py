"""Every shipped preset is planned: it fits, nothing refuses it, it can be run, and the planner knows nothing faster."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.services.planning import plan_resolved, recommend_for
from app.services.preset_table import shipped_presets
from app.services.resolve import resolve
from core.optimizations import REGISTRY
from planner.types import Preset

PRESETS = {preset.name: preset for preset in shipped_presets()}
SHOW_A_FEATURE = {  # older ones, without Liger and offload, and the demo
    "demo-smollm2", "llama3.1-8b-64k-1x80g", "qwen2.5-0.5b-full-16k-1x24g", "qwen2.5-7b-12k-1x24g-fake-parallel",
    "qwen2.5-7b-16k-2x24g", "qwen2.5-7b-8k-1x24g", "qwen3-4b-32k-2x24g",
}  # fmt: skip
SIZES, COUNTS = {8, 12, 16, 24, 48, 80, 141}, {1, 2, 4, 8}


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_it_fits_its_hardware_and_can_be_run(preset: Preset) -> None:
    plan = plan_resolved(resolve(preset), calibrated=False)
    assert plan.verdict != "over"
    assert [issue.what for issue in plan.issues if issue.severity == "error"] == []
    assert all(REGISTRY[setting.name].available for setting in plan.config.optimizations)
    assert "planned-only" not in {issue.code for issue in plan.issues}
    assert preset.name == Path(preset.path).stem
    assert preset.description


@pytest.mark.parametrize("name", sorted(set(PRESETS) - SHOW_A_FEATURE))
def test_nothing_that_can_be_run_is_much_faster(name: str) -> None:
    """Within a tenth, so that a better formula does not rewrite every file."""
    resolved = resolve(PRESETS[name])
    plan = plan_resolved(resolved, calibrated=False)
    best = recommend_for(resolved, limit=1)[0]  # by the same method, as long as one fits
    assert plan.tokens_per_second >= 0.9 * best.tokens_per_second, best.changes


def test_sizes_and_numbers_of_cards_are_covered() -> None:
    found = {tuple(map(int, match.groups())) for name in PRESETS if (match := re.search(r"-(\d)x(\d+)g", name))}
    assert {size for _, size in found} == SIZES
    assert {count for count, _ in found} == COUNTS
    assert {count for count, size in found if size in (24, 48, 80, 141)} == COUNTS
    assert len(PRESETS) <= 40
