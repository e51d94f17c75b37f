"""The Runs screen: what each line says, filter, compare, resume or why not, keep as a preset."""

import shutil

import pytest

from app.services.presets import load_preset
from app.services.runs import list_runs
from app.tui.app import LongfitApp
from app.tui.screens.compare import CompareScreen
from app.tui.screens.foreign import ForeignScreen
from app.tui.screens.run import RunScreen
from app.tui.screens.runs import RunsScreen
from core.run.config_file import write_config
from planner.types import OptimizationSetting
from tests.app.plans import run_config
from tests.app.runs import append_steps, make_run
from tests.app.tui.conftest import notices, screen_text, settle, words
from tests.app.tui.fakes import PRESET

LIVE, FAILED, DONE = "20261129-120000-qwen2.5-7b-8k-a3f1", "20261128-090000-other-b7c2", "20261127-070000-third-00aa"


@pytest.fixture
def app(services, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    root = tmp_path / "runs"
    make_run(root)
    for status, name in (("failed", FAILED), ("done", DONE)):
        path = make_run(tmp_path / status, status=status)
        (path / "preset.yaml").write_text("name: mine\nmodel: m\nmax_length: 8192\nlora: {rank: 8}\n")
        (path / "env.json").write_text('{"host": "gpu[b]02[/b]", "device": "cpu"}')
        shutil.move(path, root / name)
    services.runs = lambda: list_runs(root)
    services.root = root
    return LongfitApp(services, preset=PRESET)


async def open_runs(pilot):
    await pilot.press("3")
    await settle(pilot)


async def test_each_line_tells_state_loss_peak_against_plan_and_host(app):
    async with app.run_test(size=(140, 40)) as pilot:
        await open_runs(pilot)
        lines = {
            name: line
            for line in screen_text(app, "#runs").splitlines()
            for name in (LIVE, FAILED, DONE)
            if name in line
        }
        for fact in ("FAILED", "40/100", "1.2186", "101 %", "8,192", "gpu[b]02[/b]"):
            assert fact in lines[FAILED], fact
        assert "RUNNING" in lines[LIVE]
        assert "DONE" in lines[DONE]


async def test_details_say_from_where_r_resumes_or_why_not(app):
    async with app.run_test(size=(120, 40)) as pilot:
        await open_runs(pilot)
        await pilot.press("down")
        await pilot.pause()
        text = words(app, "#run-details")
        assert "CUDA out of memory. Tried to allocate 9.27 GiB [bold]while[/bold]" in text
        assert "r resumes from checkpoints/step-20." in text
        await pilot.press("down")
        await pilot.pause()
        assert "No resume: The run" in words(app, "#run-details")
        assert "all 100 steps were taken" in words(app, "#run-details")


async def test_r_names_the_checkpoint_that_it_goes_on_from(app, services, monkeypatch):
    resumed = []
    monkeypatch.setattr(services, "resume", lambda run: resumed.append(run.id), raising=False)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await open_runs(pilot)
        await pilot.press("down", "r")
        await pilot.pause(0.2)
        assert resumed == [FAILED]
        assert notices(app) == "Resuming from checkpoints/step-20."


async def test_a_filter_leaves_the_lines_that_have_all_words_and_escape_brings_all_back(app):
    async with app.run_test(size=(120, 40)) as pilot:
        await open_runs(pilot)
        await pilot.press("slash", *"failed other", "enter")
        await pilot.pause()
        text = screen_text(app, "#runs")
        assert "1 of 3" in text
        assert FAILED in text
        assert LIVE not in text
        await pilot.press("escape")
        await pilot.pause()
        assert LIVE in screen_text(app, "#runs")


async def test_equals_on_two_runs_compares_settings_results_and_curves(app, services):
    rank_8 = OptimizationSetting(name="lora", knobs=(("rank", 8), ("alpha", 128)))
    config = run_config(world=2)
    other = type(config)(**{**{f: getattr(config, f) for f in config.__slots__},
                            "optimizations": (rank_8, *config.optimizations[1:]), "max_length": 4096})  # fmt: skip
    write_config(services.root / FAILED, other)
    append_steps(services.root / LIVE, 41, 60)
    async with app.run_test(size=(120, 40)) as pilot:
        await open_runs(pilot)
        await pilot.press("equals_sign")
        await pilot.pause()
        assert f"= {LIVE}" in screen_text(app)
        await pilot.press("down", "equals_sign")
        await pilot.pause(0.3)
        await settle(pilot)
        assert isinstance(app.screen, CompareScreen)
        text = words(app)
        for fact in (LIVE, FAILED, "max_length 8192 4096", "lora.rank 64 8", "state running failed (oom)",
                     "tokens 492 K 328 K", "first solid second dotted", "peak 10.1 GiB 10.1 GiB"):  # fmt: skip
            assert fact in text, fact
        append_steps(services.root / LIVE, 61, 61)  # it is live: the comparison goes on
        app.screen._poll()
        await settle(pilot)
        assert "tokens 500 K 328 K" in words(app)
        await pilot.press("g", "l")
        await pilot.pause()
        assert "Loss, log scale, by tokens" in screen_text(app)
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, RunsScreen)


async def test_a_run_is_kept_as_a_preset_with_what_was_measured(app):
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await open_runs(pilot)
        await pilot.press("down", "down", "P")
        await pilot.pause(0.2)
        await pilot.press("ctrl+u", *"kept", "enter")
        await pilot.pause(0.2)
        preset = load_preset("kept")
        assert preset.values["lora"] == {"rank": 8}
        assert preset.measured[0]["run"] == DONE
        assert "Saved as" in words(app)


async def test_a_run_that_cannot_be_read_is_named_and_the_others_are_shown(app, services):
    (services.root / DONE / "run.yaml").write_text("[")
    async with app.run_test(size=(120, 40)) as pilot:
        await open_runs(pilot)
        assert LIVE in screen_text(app, "#runs")
        assert DONE not in screen_text(app, "#runs")
        assert f"{DONE}: " in words(app, "#run-details")


async def test_o_opens_the_folder_of_another_trainer_and_follows_it(app, tmp_path):
    folder = tmp_path / "swift [b]out[bold]"
    folder.mkdir()
    log, metrics = folder / "run.log", folder / "logging.jsonl"
    log.write_text("[red]loading[/red]\n")
    metrics.write_text('{"loss": 1.5, "global_step/max_steps": "3/300", "learning_rate": 1e-5}\n')
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await open_runs(pilot)
        await pilot.press("o")
        await pilot.pause(0.2)
        app.screen.query_one("Input").value = str(folder)
        await pilot.press("enter")
        await pilot.pause(0.2)
        await settle(pilot)
        assert isinstance(app.screen, ForeignScreen)
        text = words(app)
        for fact in ("ms-swift: step 3 of 300", "swift [b]out[bold]", "loss 1.5000 lr 1.0e-05", "[red]loading[/red]"):
            assert fact in text, fact
        with metrics.open("a") as file:
            file.write('{"loss": 1.25, "global_step/max_steps": "4/300"}\n')
            file.write('{"eval_loss": 1.3, "global_step/max_steps": "4/300"}\n')
        app.screen._poll()
        await settle(pilot)
        assert "step 4 of 300" in words(app)
        assert "loss 1.2500 eval 1.3000" in words(app)
        await pilot.press("escape")
        await pilot.pause(0.2)
        assert isinstance(app.screen, RunsScreen)


async def test_o_opens_a_run_by_its_folder_and_says_what_is_none(app, services, tmp_path):
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await open_runs(pilot)
        for folder in (tmp_path / "nowhere", services.root / LIVE):
            await pilot.press("o")
            await pilot.pause(0.2)
            app.screen.query_one("Input").value = str(folder)
            await pilot.press("enter")
            await pilot.pause(0.3)
        assert "is no run that can be read" in notices(app)
        assert isinstance(app.screen, RunScreen)
        assert app.screen.feed.run.id == LIVE
