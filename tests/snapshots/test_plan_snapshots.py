"""The Plan, Presets and Data screens, cell by cell, in two sizes and every theme."""

import pytest

from app.tui.app import LongfitApp
from core.optimizations import REGISTRY
from tests.app.tui.conftest import settle, until
from tests.app.tui.fakes import PRESET, FakeServices
from tests.snapshots.screen_check import check_themes, every_size

pytestmark = pytest.mark.snapshot


# what the form offers here: later entries of the registry are no change of the screen
OFFERED = (
    "lora", "qlora", "gradient_checkpointing", "fused_loss", "packing", "liger", "flash_attention",
    "checkpoint_offload", "ulysses", "ring", "fake_parallel",
)  # fmt: skip


@pytest.fixture
def app(monkeypatch):
    monkeypatch.setattr("app.tui.fields.REGISTRY", {name: REGISTRY[name] for name in OFFERED})
    return LongfitApp(FakeServices(), preset=PRESET)


@every_size
async def test_plan(app, size, check_screen):
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        await check_themes(pilot, check_screen, "plan")


@every_size
async def test_plan_that_is_over_beside_a_pinned_one(app, size, check_screen):
    async with app.run_test(size=size) as pilot:
        await pilot.press("w", "]")
        await settle(pilot)
        await pilot.press("down")
        await check_themes(pilot, check_screen, "plan-over")


@every_size
async def test_presets(app, size, check_screen):
    async with app.run_test(size=size) as pilot:
        await pilot.press("4")
        await until(pilot, "TIGHT 98 %", seconds=20)
        await settle(pilot)
        await check_themes(pilot, check_screen, "presets")


@every_size
async def test_data(app, size, check_screen):
    async with app.run_test(size=size) as pilot:
        await pilot.press("5")
        await until(pilot, "r reads", seconds=20)
        await pilot.press("r")
        await until(pilot, "400 tokens kept", seconds=20)
        await pilot.pause(0.3)
        await check_themes(pilot, check_screen, "data")
