"""`longfit rehearse` answers with the exit code of what it found."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from app.cli import rehearse as verb
from app.cli.main import build_parser
from app.services.hardware import parse_cluster
from app.services.planning import plan_preset
from app.services.rehearse import Measured, Rehearsal
from app.views.rehearsal_view import rehearsal_text
from planner.types import Preset

PRESET = Preset(
    name="p", description="", hardware={"gpu": "A10"},
    values={"model": "Qwen/Qwen2.5-7B-Instruct", "max_length": 4096, "data": {"train": ["x"]}, "lora": {"rank": 8}},
)  # fmt: skip


def answer(failure=None):
    return Rehearsal(
        planned=plan_preset(PRESET), measured={"forward": Measured(allocated_bytes=10**10, used_bytes=11 * 10**9)},
        tokens_per_second=None if failure else 1500.0, evidence=("attention: x",), fallbacks=(), failure=failure,
        calibration=None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (None, 0),
        ({"exit_code": 4, "instant": "backward", "message": "Out of memory in step 1 (backward)"}, 4),
        ({"exit_code": 2, "instant": None, "message": "A memory limit of 10 bytes"}, 2),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_the_exit_code_is_that_of_a_run(monkeypatch, capsys, failure, code, as_json):
    asked = {}

    def fake(preset, overrides, **given):
        asked.update(given, preset=preset)
        return answer(failure)

    monkeypatch.setattr(verb, "rehearse_preset", fake)
    argv = ["rehearse", "p", "--as", "A10", "--steps", "4", *(["--json"] if as_json else [])]
    assert verb.run(build_parser("rehearse").parse_args(argv)) == code
    assert asked["limit_bytes"] == 22720 * 1024**2
    assert asked["steps"] == 4
    out = capsys.readouterr().out
    if as_json:
        assert json.loads(out)["instants"][0]["measured_bytes"] == 10**10
    else:
        assert ("It did not run" in out) == (failure is not None)


def test_a_plan_beyond_host_memory_is_not_rehearsed_unasked(monkeypatch, capsys):
    """It could end other processes of this machine."""
    from app.cli.main import main
    from app.services import rehearse as service

    monkeypatch.setattr(service, "_run", lambda *given: pytest.fail("processes were started"))
    wide = ["rehearse", "demo-smollm2", "--set", "per_device_train_batch_size=4096", "--set", "fused_loss=null"]
    assert main(wide) == 3
    said = capsys.readouterr().err
    assert "does not fit on this machine" in said
    assert "rehearsing" not in said  # nothing was begun


@pytest.mark.parametrize(("cluster", "is_compared"), [("cpu", False), ("A10", True)])
def test_the_loading_of_weights_that_a_run_would_map_is_no_comparison(cluster, is_compared):
    preset = replace(PRESET, values={**PRESET.values, "dtype": "bfloat16"})
    measured = {name: Measured(allocated_bytes=10**10, used_bytes=10**10) for name in ("load", "forward")}
    planned = plan_preset(preset, cluster=parse_cluster(cluster))
    load, forward = rehearsal_text(replace(answer(), planned=planned, measured=measured)).splitlines()[1:3]
    assert load.endswith("%") is is_compared
    assert load.endswith(" n/a") is not is_compared
    assert forward.endswith("%")
