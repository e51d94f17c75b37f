"""The command that `longfit infer` starts; core.infer itself is tested in tests/core/test_infer.py."""

import os
import signal
import subprocess
import sys

import pytest

from app.cli import infer
from app.cli.main import main
from core.run.interpreter import child_environment
from planner.types import DataConfig, ParallelDegrees, RunConfig


@pytest.fixture
def started(monkeypatch, tmp_path):
    """The argument lists of started processes; the child says exit code 0."""
    from core.run.config_file import write_config

    commands = []

    def start(command, *, env, check, preexec_fn):
        commands.append(command)
        assert env["PYTHONSAFEPATH"] == "1"
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(infer.subprocess, "run", start)
    monkeypatch.setenv("LONGFIT_RUNS", str(tmp_path / "runs"))
    run_dir = tmp_path / "runs" / "20261129-101010-demo-ab12"
    (run_dir / "checkpoints").mkdir(parents=True)
    config = RunConfig(
        name="demo", model="m", dtype="float32", autocast=False, max_length=64, data=DataConfig(train=("a",)),
        parallel=ParallelDegrees(), optimizations=(),
    )  # fmt: skip
    write_config(run_dir, config)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, '
        '"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 512}'
    )
    return commands, run_dir, model


def after(command, flag):
    return command[command.index(flag) + 1]


def test_a_run_is_found_by_its_last_characters_and_prompts_may_begin_with_a_dash(started):
    commands, run_dir, _ = started
    arguments = ["--step", "5", "--temperature", "0.5", "--system=--brief", "--", "ab12", "-3 + 4?"]
    assert main(["infer", *arguments]) == 0
    command = commands[0]
    assert command[:4] == [sys.executable, "-P", "-m", "core.infer"]
    assert (after(command, "--run"), after(command, "--step")) == (str(run_dir), "5")
    assert {"--prompt=-3 + 4?", "--system=--brief"} <= set(command)
    assert after(command, "--temperature") == "0.5"


@pytest.mark.parametrize(
    ("flag", "value"), [("--max-new-tokens", "0"), ("--temperature", "-1"), ("--temperature", "nan"), ("--top-p", "7")]
)
def test_impossible_sampling_is_refused_before_anything_loads(started, capsys, flag, value):
    commands, _, _ = started
    assert main(["infer", "ab12", "why?", flag, value]) == 2
    assert f"{flag} is {value}" in capsys.readouterr().err
    assert commands == []


def test_a_run_of_another_runs_folder(started, tmp_path, monkeypatch):
    commands, run_dir, _ = started
    monkeypatch.setenv("LONGFIT_RUNS", str(tmp_path / "elsewhere"))
    assert main(["infer", "last", "why?"]) == 2
    assert main(["infer", "last", "why?", "--runs-dir", str(run_dir.parent)]) == 0
    assert after(commands[-1], "--run") == str(run_dir)


def test_a_model_folder_answers_with_an_adapter(started):
    commands, run_dir, model = started
    adapter = run_dir / "checkpoints" / "step-2"
    adapter.mkdir()
    arguments = ["infer", str(model), "why?", "--adapter", str(adapter)]
    assert main(arguments) == 2
    assert commands == []  # a hub would be asked for it, for half a minute
    (adapter / "adapter_config.json").write_text("{}")
    assert main(arguments) == 0
    assert (after(commands[0], "--model"), after(commands[0], "--adapter")) == (str(model), str(adapter))


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (["no-such-thing", "why?"], "neither a run nor a model"),
        (["{model}", "why?", "--step", "3"], "--step and --base belong to a run"),
        (["ab12", "why?", "--adapter", "/x"], "--adapter belongs to a model"),
    ],
)
def test_what_does_not_go_together_is_refused_before_a_process_starts(started, capsys, arguments, fact):
    commands, _, model = started
    assert main(["infer", *(text.format(model=model) for text in arguments)]) == 2
    assert fact in capsys.readouterr().err
    assert commands == []


def test_ctrl_c_ends_the_answer_without_a_traceback(started, monkeypatch):
    """The terminal interrupts the child as well: it has no say, and is killed."""
    _, run_dir, _ = started
    slow = "import time; print('here', flush=True); time.sleep(60)"
    monkeypatch.undo()
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTED, slow, str(run_dir)], stdout=writer, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env=child_environment(os.environ),
    )  # fmt: skip
    os.close(writer)
    assert os.read(reader, 4) == b"here"
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in said


_INTERRUPTED = """
import signal, sys
from app.cli import infer
from app.cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # where the tests run in the background it is ignored
slow, run = sys.argv[1:]
infer.python_argv = lambda *arguments: (sys.executable, "-c", slow)
sys.exit(main(["infer", run, "why?"]))
"""
