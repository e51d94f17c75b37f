"""A locale that is not UTF-8: letters in place of patterns, escapes in place of what cannot be shown, never an end."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from core.run.command import WorkerCommand
from core.run.directory import RunDirectory
from core.run.interpreter import child_environment, python_argv
from tests.core.train.tiny_llama import save_tiny_llama

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def longfit(*arguments: str, home: Path) -> subprocess.CompletedProcess[bytes]:
    """As a person's shell would start it: without the settings of our own children."""
    environment = {**child_environment(os.environ), **ASCII, "XDG_CONFIG_HOME": str(home)}
    del environment["PYTHONIOENCODING"]
    command = python_argv("-m", "app.cli.main", *arguments)
    return subprocess.run(command, capture_output=True, check=False, env=environment, cwd=home)


@pytest.mark.parametrize("arguments", [(), ("--explain",), ("--ladder",)])
def test_a_plan_is_drawn_in_letters(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = longfit("plan", "qwen2.5-7b-8k-1x24g", *arguments, home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert b"WWW" in done.stdout or "--ladder" in arguments


def test_what_cannot_be_shown_is_escaped(tmp_path: Path) -> None:
    folder = tmp_path / "longfit" / "presets"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(
        "description: déjà vu\nmodel: m\nmax_length: 64\ndata: {train: [a]}\n", encoding="utf-8"
    )
    done = longfit("preset", "list", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert rb"d\xe9j\xe0 vu" in done.stdout


def test_data_in_a_folder_that_the_file_system_s_encoding_cannot_spell_is_read(tmp_path: Path) -> None:
    model = save_tiny_llama(tmp_path / "model")
    folder = tmp_path / "données"
    folder.mkdir()
    row = {"messages": [{"role": "user", "content": "name"}, {"role": "assistant", "content": "long é"}]}
    (folder / "é.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    arguments = ("data", "é.jsonl", "--model", str(model), "--max-length", "64", "--json")
    done = longfit(*arguments, home=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["train"]["preview"][0]["tokens"] > 8


def test_the_command_of_a_run_in_such_a_folder_has_its_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "caf\udce9"  # Latin-1 under UTF-8: the same to Python
    run = RunDirectory(folder)
    folder.mkdir()
    run.write_command(WorkerCommand(argv=("true",), environment={}, directory=folder, has_launcher=False))
    assert b"caf\xe9" in run.command.read_bytes()


def test_children_talk_utf8_in_any_locale() -> None:
    environment = child_environment({**os.environ, **ASCII, "PYTHONIOENCODING": "ascii"})
    done = subprocess.run(
        python_argv("-c", "print(chr(0x2019) + input())"), input="数据".encode(), capture_output=True, check=True,
        env=environment,
    )  # fmt: skip
    assert done.stdout.decode("utf-8") == "\u2019数据\n"
