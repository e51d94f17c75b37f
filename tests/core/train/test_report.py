import sys
import types

import pytest

from core.train import report
from core.train.report import Reports, require_reporters
from planner.errors import ConfigError
from tests.core.train.runs import crash, make_run, train

ROW = {"step": 3, "time": 1.0, "loss": 2.0, "learning_rate": 0.1, "epoch": 0.5}


def test_tensorboard_holds_every_number_of_metrics_and_a_resume_hides_what_it_repeats(tiny_model_dir, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    directory = make_run(tmp_path, tiny_model_dir, report_to=("tensorboard",), eval_lengths=(9,), save_steps=3)
    first = crash(directory, after=5)
    _, second, _ = train(directory)
    assert second.of("resumed")[0]["step"] == 3
    rows = [*(row for row in first.rows if row["step"] <= 3), *second.rows]
    events = EventAccumulator(str(directory.path / "tensorboard"))
    events.Reload()
    for name, key in (("train/loss", "loss"), ("train/grad_norm", "grad_norm"), ("eval/loss", "eval_loss")):
        seen = {event.step: event.value for event in events.Scalars(name)}
        assert seen == {row["step"]: pytest.approx(row[key], rel=1e-6) for row in rows if key in row}


def test_a_package_that_is_missing_is_named_with_its_pip_line_before_anything_loads(monkeypatch):
    for name in ("trackio", "wandb", "tensorboard"):
        monkeypatch.setattr(report, "find_spec", lambda name: None)
        with pytest.raises(ConfigError, match=f"pip install {name}"):
            require_reporters([name])
    with pytest.raises(ConfigError, match="tensorboard, trackio, wandb"):
        require_reporters(["clearml"])
    require_reporters([])


def fake_module(monkeypatch, name, calls):
    """Stands in for the package's public functions, with their real parameter names."""
    module = types.ModuleType(name)

    def init(*, project, name=None, config=None, resume=None, id=None, dir=None):
        calls.append(("init", project, name, config, resume))
        return module

    module.init = init
    module.log = lambda values, step=None: calls.append(("log", step, values))
    module.finish = lambda: calls.append(("finish",))
    monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize("name", ["trackio", "wandb"])
def test_other_trackers_get_config_rows_and_the_end_under_the_name_of_the_run(monkeypatch, tmp_path, name):
    calls, warnings = [], []
    fake_module(monkeypatch, name, calls)
    reports = Reports([name], tmp_path / "run-1", {"seed": 42}, first_step=0, warn=warnings.append)
    reports.log(ROW)
    reports.log({"step": 4, "time": 2.0, "eval_loss": 1.5})
    reports.close()
    assert calls == [
        ("init", "longfit", "run-1", {"seed": 42}, "allow"),
        ("log", 3, {"train/loss": 2.0, "train/learning_rate": 0.1, "train/epoch": 0.5}),
        ("log", 4, {"eval/loss": 1.5}),
        ("finish",),
    ]
    assert warnings == []


def test_a_tracker_that_fails_is_told_once_and_training_goes_on(monkeypatch, tmp_path):
    calls, warnings = [], []
    fake_module(monkeypatch, "wandb", calls)

    def refuse(values, step=None):
        raise ConnectionError("no route")

    sys.modules["wandb"].log = refuse
    reports = Reports(["wandb"], tmp_path, {}, first_step=0, warn=warnings.append)
    reports.log(ROW)
    reports.log(ROW)
    reports.close()
    (warning,) = warnings
    assert "wandb" in warning
    assert "ConnectionError: no route" in warning
