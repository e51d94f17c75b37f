"""The worker process, called in this one: what it tells its supervisor and how it exits."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from core.optimizations.evidence import NotActive
from core.run.channel import failure_kind
from core.train import trainer, worker
from tests.core.train.runs import RecordingChannel, make_run


class Line(RecordingChannel):
    """Used as the context manager that Channel.connect gives."""

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if error is None:
            self.close()


@pytest.fixture
def run_worker(monkeypatch):
    def run(directory):
        line = Line()
        monkeypatch.setattr(worker.Channel, "connect", staticmethod(lambda: line))
        try:
            return worker.main([str(directory.path)]), line
        except SystemExit as exit:
            return exit.code, line

    return run


def test_a_run_that_ends_tells_phases_memory_beside_the_plan_and_done(tiny_model_dir, tmp_path, run_worker):
    directory = make_run(tmp_path, tiny_model_dir, eval_lengths=(9,))
    peak = {"allocated_bytes": 11, "reserved_bytes": 12, "used_bytes": 13, "band_bytes": [10, 14]}
    directory.plan.write_text(json.dumps({"gpus": [{"index": 0, "peak": peak}]}))
    code, line = run_worker(directory)
    assert code == 0
    assert line.is_closed
    assert line.failures == []
    phases = [data["name"] for data in line.of("phase")]
    assert phases == ["load", "data", "evaluate", "train", "evaluate", "train", "save", "train"]
    (memory,) = line.of("memory_peak")
    assert (memory["rank"], memory["planned_allocated_bytes"], memory["planned_used_bytes"]) == (0, 11, 13)
    assert memory["used_bytes"] > memory["baseline_bytes"] > 0
    assert max(row["peak_bytes"] for row in line.memory_rows) == memory["used_bytes"]


def test_deterministic_is_switched_on_for_the_process(tiny_model_dir, tmp_path, run_worker, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    seen = []
    forward = trainer.forward_loss
    monkeypatch.setattr(
        trainer,
        "forward_loss",
        lambda *inputs: (seen.append(torch.are_deterministic_algorithms_enabled()), forward(*inputs))[1],
    )
    try:
        code, _ = run_worker(make_run(tmp_path, tiny_model_dir, deterministic=True, max_steps=2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert (code, seen) == (0, [True, True])


def failing(monkeypatch, error, *, at_step):
    forward, calls = trainer.forward_loss, []

    def fail(setup, shard):
        calls.append(shard)
        if len(calls) == at_step:
            raise error
        return forward(setup, shard)

    monkeypatch.setattr(trainer, "forward_loss", fail)


OUT_OF_HOST_MEMORY = RuntimeError(
    "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "68719476736 bytes. Error code 12 (Cannot allocate memory)\nstack"
)


@pytest.mark.parametrize(
    ("error", "code", "kind", "facts"),
    [
        (OUT_OF_HOST_MEMORY, 4, "oom", ["in step 3", "tokens", "68719476736 bytes"]),
        (MemoryError(), 4, "oom", ["in step 3"]),
        (NotActive("lora: no gradient"), 1, "error", ["lora: no gradient"]),
        (ValueError("unforeseen"), 1, "error", ["unforeseen"]),
    ],
)
def test_a_failure_is_told_with_its_kind_and_step_before_the_exit_code(
    tiny_model_dir, tmp_path, monkeypatch, run_worker, error, code, kind, facts
):
    directory = make_run(tmp_path, tiny_model_dir, save_steps=1)
    failing(monkeypatch, error, at_step=3)
    exit_code, line = run_worker(directory)
    ((told, step),) = line.failures
    assert (exit_code, failure_kind(told), step) == (code, kind, 3)
    assert all(fact in str(told) for fact in facts)
    assert "stack" not in str(told)
    assert (line.memory_ended is not None) == (kind == "oom")
    if kind == "oom":
        assert line.memory_ended["instant"] == "forward"
        assert line.memory_ended["allocatable_bytes"] > 0
    assert not line.is_closed
    assert line.of("memory_peak"), "what was held at the failure"
    assert (directory.checkpoints / "step-2").is_dir()


def test_a_number_that_is_not_finite_is_a_failure_of_its_own_kind(tiny_model_dir, tmp_path, monkeypatch, run_worker):
    forward = trainer.forward_loss
    monkeypatch.setattr(trainer, "forward_loss", lambda setup, shard: forward(setup, shard) * float("nan"))
    code, line = run_worker(make_run(tmp_path, tiny_model_dir))
    ((told, step),) = line.failures
    assert (code, failure_kind(told), step) == (1, "nonfinite", 1)


@pytest.mark.parametrize(
    ("break_it", "facts"),
    [
        (lambda directory: directory.data.unlink(), ["data.json"]),
        (lambda directory: directory.data.write_text('{"train": "/nowhere"}'), ["/nowhere"]),
        (lambda directory: edit(directory, "report_to: []", "report_to: [trackio]"), ["pip install trackio"]),
        (lambda directory: edit(directory, "max_steps: 6", "max_steps: six"), ["max_steps", "six"]),
        (lambda directory: edit(directory, "data: 1\n", "data: 2\n"), ["2 processes", "1 were started"]),
    ],
)
def test_bad_input_exits_with_two_and_writes_nothing(
    tiny_model_dir, tmp_path, run_worker, monkeypatch, break_it, facts
):
    monkeypatch.setitem(sys.modules, "trackio", None)
    directory = make_run(tmp_path, tiny_model_dir)
    break_it(directory)
    code, line = run_worker(directory)
    assert code == 2
    ((told, _),) = line.failures
    assert all(fact in str(told) for fact in facts)
    assert list(directory.checkpoints.iterdir()) == []
    assert line.rows == []


def edit(directory, before, after):
    text = directory.config.read_text()
    assert before in text
    directory.config.write_text(text.replace(before, after))


def test_as_a_process_of_its_own_it_trains_from_any_folder_and_says_so_in_the_log(tiny_model_dir, tmp_path):
    directory = make_run(tmp_path, tiny_model_dir, max_steps=2)
    root = str(Path(worker.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-P", "-m", "core.train.worker", str(directory.path)],
        cwd=directory.path,
        env=os.environ | {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "done after step 2 of 2" in done.stdout
    assert (directory.checkpoints / "step-2" / "manifest.json").is_file()
