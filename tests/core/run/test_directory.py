from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from core.run.command import worker_command
from core.run.directory import create_run, open_run, slug
from core.run.environment import describe_environment
from core.run.journal import read_state
from planner.errors import EnvironmentProblem, RunNotFound
from tests.core.run.run_cases import PLAN, make_config, make_run


def test_a_new_run_has_everything_and_a_name_that_sorts_by_time(tmp_path):
    run = make_run(tmp_path / "项目 一" / "été", steps=1)
    assert re.fullmatch(r"\d{8}-\d{6}-tiny-run-[0-9a-f]{4}", run.id)
    for name in ("preset.yaml", "run.yaml", "plan.json", "data.json", "env.json", "command.sh", "events.jsonl"):
        assert (run.path / name).stat().st_size > 0, name
    assert run.control.is_dir()
    assert run.checkpoints.is_dir()
    assert read_state(run).status == "created"
    assert read_state(run).created_at > 0
    assert [path.name for path in run.path.parent.iterdir()] == [run.id]


def test_nothing_is_left_when_it_cannot_be_written_whole(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(EnvironmentProblem, match="No space left") as caught:
        make_run(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_that_is_not_of_the_disk_leaves_nothing_either(tmp_path):
    def fail(path):
        raise ValueError("no such device")

    with pytest.raises(ValueError, match="no such device"):
        create_run(tmp_path, config=make_config(), preset_text="", plan={}, data={}, environment={}, command=fail)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_no_run_is_not_opened(tmp_path):
    with pytest.raises(RunNotFound):
        open_run(tmp_path)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("Qwen/Qwen2.5-7B 8K", "qwen-qwen2.5-7b-8k"), ("../../etc", "etc"), ("$(touch x)", "touch-x"), ("项目", "run"),
     ("x" * 99, "x" * 40)],
)  # fmt: skip
def test_a_slug_is_a_harmless_file_name(name, expected):
    assert slug(name) == expected


def test_command_sh_starts_exactly_what_the_supervisor_starts(tmp_path):
    """Run by hand with a target that prints its argv and environment."""
    program = tmp_path / "it's a $(touch pwned) folder"
    program.mkdir()
    script = program / "show.py"
    script.write_text("import json, os, sys; print(json.dumps([sys.argv, dict(os.environ), os.getcwd()]))")
    secrets = {"HF_TOKEN": "hf_abcdefghijklmnop", "HF_ENDPOINT": "https://me:pw1234@hub.example", "HF_HOME": "/a b"}
    base = {**os.environ, **secrets, "LONGFIT_SOCKET": "/nowhere"}

    def command(path):
        return worker_command(make_config(), path, device="cpu", base=base, num_cores=3, target=(str(script),))

    run = create_run(
        tmp_path / "runs", config=make_config(), preset_text="a: 1\n", plan=PLAN, data={}, environment={},
        command=command,
    )  # fmt: skip
    text = run.command.read_text()
    assert not any(secret in text for secret in ("hf_abcdefghijklmnop", "pw1234", "/nowhere"))
    assert os.access(run.command, os.X_OK)
    done = subprocess.run([str(run.command)], env={"PATH": os.environ["PATH"]}, capture_output=True, check=True)
    argv, environment, cwd = json.loads(done.stdout)
    expected = command(run.path)
    assert argv == [*expected.argv[expected.argv.index(str(script)) :]]
    assert cwd == str(run.path)
    for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "RANK", "WORLD_SIZE", "PYTHONSAFEPATH", "HF_HOME"):
        assert environment[name] == expected.environment[name], name
    assert not (tmp_path / "pwned").exists()
    assert not (run.path / "pwned").exists()


def test_env_json_names_versions_and_no_secrets():
    variables = {"HF_TOKEN": "hf_secretsecret", "CUDA_VISIBLE_DEVICES": "0", "HOME": "/root", "WANDB_API_KEY": "k" * 40}
    facts = describe_environment("cpu", argv=("longfit", "train", "--set", "x=hf_secretsecret"), variables=variables)
    text = json.dumps(facts)
    assert "hf_secretsecret" not in text
    assert "k" * 40 not in text
    assert facts["variables"] == {"HF_TOKEN": "<redacted>", "CUDA_VISIBLE_DEVICES": "0"}
    assert facts["packages"]["torch"].startswith("2.")
    assert facts["python"] == sys.version.split()[0]
    assert facts["device"] == "cpu"
