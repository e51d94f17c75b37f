"""What is wrong with a command line is said in the words of every other error, with the nearest name."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from app.cli.main import VERBS, main
from core.run.interpreter import child_environment, python_argv
from planner.errors import ConfigError, DoesNotFit, EnvironmentProblem, LaunchError, RunNotFound


@pytest.mark.parametrize(
    ("argv", "facts"),
    [
        (["plna"], ("there is no 'plna'", "Did you mean plan?")),
        (["preset", "shw"], ("there is no 'shw'", "list, show, save, diff", "Did you mean show?")),
        (["plan", "p", "--lader"], ("longfit plan does not know --lader", "Did you mean --ladder?")),
        (["preset", "diff", "a", "b", "--jsn"], ("longfit preset diff does not know --jsn", "Did you mean --json?")),
        (["plan", "p", "q"], ("'q' is one too many", "longfit plan --help")),
        (["plan"], ("required: preset", "longfit plan --help")),
        (["plan", "p", "--goal", "fast"], ("there is no --goal fast", "cheapest", "Did you mean fastest?")),
        (["fit", "m", "--length", "16k"], ("--length", "'16k' is no whole number; write 16384")),
        (["--nonsense"], ("longfit does not know --nonsense", "longfit --help")),
    ],
)
def test_it_is_refused_with_the_nearest_name(capsys: pytest.CaptureFixture[str], argv, facts) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    for fact in facts:
        assert fact in said.err


def test_a_length_may_be_written_with_a_separator(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "Qwen/Qwen2.5-7B-Instruct", "--gpu", "A10", "--length", "4_096"]) == 0
    assert "the preset asks for 4096" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [("preset", "show", "demo-smollm2"), ("--version",)])
def test_a_full_disk_behind_stdout_is_one_message(arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            python_argv("-m", "app.cli.main", *arguments), stdout=full, stderr=subprocess.PIPE, check=False,
            env=child_environment(os.environ), text=True,
        )  # fmt: skip
    assert done.returncode == 5
    assert "error: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_page_of_the_command_line_names_every_verb_and_exit_code() -> None:
    page = (Path(__file__).parents[3] / "docs" / "command-line.md").read_text("utf-8")
    verbs = {verb for verb in VERBS if f"`{verb}`" not in page}
    assert verbs == set()
    errors = (ConfigError, DoesNotFit, EnvironmentProblem, RunNotFound, LaunchError)
    assert [error for error in errors if f"| {error.exit_code} |" not in page] == []
