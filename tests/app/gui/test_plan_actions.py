"""What the Plan tab does: plans equal the planner's, actions change the form, addresses lead back to it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.gui import launcher as launcher_module
from app.gui import plan_actions
from app.gui.launcher import Launcher
from app.gui.plan_actions import FIELDS, Form, form_of_query, load_form, view_plan
from app.services.planning import Planned, plan_preset
from app.services.presets import load_preset, preset_names, save_preset
from planner.errors import ConfigError
from planner.plan_json import plan_to_dict
from planner.types import Issue
from tests.app import plans

PRESET = "qwen2.5-7b-16k-2x24g"
INDEX = {field.key: index for index, field in enumerate(FIELDS)}


def edited(form: Form, **changes: Any) -> Form:
    values = list(form.values)
    for key, value in changes.items():
        values[INDEX[key.replace("__", ".")]] = value
    return replace(form, values=tuple(values))


@pytest.mark.parametrize("name", [name for name in preset_names() if name != "demo-smollm2"])
def test_numbers_on_the_page_are_those_of_plan_json(name: str) -> None:
    view = view_plan(load_form(name))
    answer = plan_to_dict(plan_preset(name).plan)
    worst = max(answer["gpus"], key=lambda gpu: gpu["peak"]["used_bytes"] - gpu["usable_bytes"])
    sizes = {part: int(size) for part, size in re.findall(r'data-part="(\w+)" data-bytes="(\d+)"', view.parts)}
    assert sum(sizes.values()) == worst["peak"]["used_bytes"]
    by_part: dict[str, int] = {}
    for term in worst["terms"]:
        if answer["peak_instant"] in term["instants"]:
            by_part[term["part"]] = by_part.get(term["part"], 0) + term["bytes"]
    assert {part: size for part, size in sizes.items() if part != "runtime"} == {
        part: size for part, size in by_part.items() if part != "runtime" and size
    }
    assert answer["verdict"].upper() in view.verdict


def test_a_longer_row_moves_bar_and_verdict() -> None:
    form = load_form("qwen2.5-7b-8k-1x24g")
    short, long = (view_plan(edited(form, max_length=length)) for length in (8192, 32768))
    assert short.bar != long.bar
    assert ">OVER<" in long.verdict
    assert "do" in long.refusal
    assert "does not fit" in long.refusal


def test_other_hardware_changes_the_limit_and_the_command() -> None:
    view = view_plan(replace(load_form(PRESET), gpu="A100-80G", count=2))
    assert ">UNVERIFIED<" in view.verdict
    assert "--gpu 2xA100-80G" in view.command
    assert "gpu=2xA100-80G" in view.address


def test_a_plan_for_absent_hardware_is_shown_and_not_launched() -> None:
    view = view_plan(load_form(PRESET))
    assert view.command == f"longfit plan {PRESET}"
    assert "choose this machine" in view.refusal


def test_a_plan_for_this_machine_can_be_launched_by_the_command_shown() -> None:
    view = view_plan(edited(load_form("demo-smollm2"), learning_rate=5e-4, packing=False))
    assert view.refusal == ""
    assert view.command.startswith("longfit train demo-smollm2 --set ")
    assert "--set learning_rate=0.0005" in view.command
    assert "packing" in view.command


def test_what_is_wrong_stands_where_the_verdict_would() -> None:
    view = view_plan(edited(load_form(PRESET), sequence_parallel=3))
    assert "NO PLAN" in view.verdict or ">OVER<" in view.verdict or "Error" in view.issues
    assert view.refusal
    view = view_plan(edited(load_form(PRESET), max_length=None))
    assert "NO PLAN" in view.verdict
    assert "max_length" in view.verdict
    assert view.bar == ""


def test_presets_are_chosen_by_name_and_never_by_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("model: Qwen/Qwen2.5-7B-Instruct\nmax_length: 8\ndata: {train: [a]}\n")
    for name in (str(path), "../presets/demo-smollm2", "/etc/passwd", "nothing"):
        view = view_plan(replace(load_form(PRESET), preset=name))
        assert "There is no preset named" in view.verdict


def test_longest_length_fits_and_one_more_step_does_not_read_as_fitting() -> None:
    longest = plan_actions.with_longest_length(load_form(PRESET))
    length = longest.values[INDEX["max_length"]]
    assert length > 16384 // 2
    assert ">OVER<" not in view_plan(longest).verdict
    assert ">OVER<" in view_plan(edited(longest, max_length=length * 2)).verdict


def test_halving_and_doubling_the_length() -> None:
    form = load_form(PRESET)
    assert plan_actions.scale_length(form, 0.5).values[INDEX["max_length"]] == 8192
    assert plan_actions.scale_length(form, 2).values[INDEX["max_length"]] == 32768


def test_applying_a_recommendation_leads_to_its_memory() -> None:
    form = load_form(PRESET)
    rows = plan_actions.recommendations(form)
    fitting = next(row for row in rows if row.verdict != "OVER")
    applied = plan_actions.apply_recommendation(form, fitting.rank)
    resolved, _ = plan_actions.resolve_form(applied)
    assert plan_actions.plan_resolved(resolved).worst_gpu.used_bytes == fitting.used_bytes


def test_a_recommendation_that_is_gone_says_so() -> None:
    with pytest.raises(ConfigError, match="does not hold any more"):
        plan_actions.apply_recommendation(load_form(PRESET), 99)


def test_suggestions_of_issues_are_taken_over() -> None:
    """Beyond the model's native length the planner suggests the scaling that would do."""
    form = edited(load_form("llama3.1-8b-64k-1x80g"), max_length=200_000)
    view = view_plan(form)
    assert view.has_suggestions
    mended = view_plan(plan_actions.apply_suggestions(form))
    assert "rope" not in mended.issues.lower() or "Error" not in mended.issues


def test_an_address_leads_back_to_the_same_form() -> None:
    form = edited(load_form(PRESET), max_length=12345, ring=2, learning_rate=1e-5, data__train="é a.jsonl\nb.jsonl#5")
    form = replace(form, gpu="L4", count=4)
    assert form_of_query(view_plan(form).address) == form


@pytest.mark.parametrize(
    "query", ["", "preset=nothing", "?preset=/etc/passwd", "preset=&gpu=99xnone", "set=max_length", "set=a=b=c&set==="]
)
def test_a_broken_address_still_opens_a_page(query: str) -> None:
    assert form_of_query(query).preset in preset_names()


def test_the_address_of_a_preset_that_cannot_be_read_opens_another(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "longfit" / "presets"
    folder.mkdir(parents=True)
    (folder / "broken.yaml").write_text("a: [1")
    assert form_of_query("?preset=broken").preset == next(iter(preset_names()))
    save_preset(replace(load_preset(PRESET), name="mine"))
    assert form_of_query("").preset == "mine"  # a person's own first, as in the terminal interface


def test_an_address_cannot_name_files_outside() -> None:
    view = view_plan(form_of_query(f"preset={PRESET}&set=data.train=[/etc/passwd]"))
    assert "NO PLAN" in view.verdict
    assert "is outside of" in view.verdict


def test_errors_and_what_does_not_fit_are_not_launched() -> None:
    plan = plans.plan(tokens=4096)
    error = Issue(code="x", severity="error", what="It cannot be.")
    assert plan_actions.launch_refusal(replace(plan, issues=(error,))) == "The plan has an error: It cannot be."
    assert "does not fit" in plan_actions.launch_refusal(plans.plan(tokens=16384))
    here = replace(plan, cluster=replace(plan.cluster, source="detected"))
    assert plan_actions.launch_refusal(here) == ""


class Launched:
    """Stands for the service that starts processes; remembers what it was given."""

    def __init__(self) -> None:
        self.planned: list[Planned] = []

    def __call__(self, planned: Planned, **_: Any) -> Any:
        self.planned.append(planned)
        return type("Run", (), {"id": f"run-{len(self.planned)}"})


def test_launch_starts_the_plan_that_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched = Launched()
    monkeypatch.setattr(launcher_module, "launch_planned", launched)
    assert Launcher(tmp_path).launch(edited(load_form("demo-smollm2"), max_steps=3)) == "run-1"
    config = launched.planned[0].plan.config
    assert (config.max_steps, config.parallel.world) == (3, 2)
    with pytest.raises(ConfigError, match="choose this machine"):
        Launcher(tmp_path).launch(load_form(PRESET))
    assert len(launched.planned) == 1


def test_two_launches_at_once_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Launcher(tmp_path)

    def during(planned: Planned, **_: Any) -> Any:
        with pytest.raises(ConfigError, match="under way"):
            launcher.launch(load_form("demo-smollm2"))
        return type("Run", (), {"id": "only"})

    monkeypatch.setattr(launcher_module, "launch_planned", during)
    assert launcher.launch(load_form("demo-smollm2")) == "only"
    monkeypatch.setattr(launcher_module, "launch_planned", Launched())
    assert launcher.launch(load_form("demo-smollm2")) == "run-1"
