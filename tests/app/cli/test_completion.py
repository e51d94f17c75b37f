"""What a shell offers with the script of `longfit completion`, asked of the shells that are installed here."""

import os
import shutil
import subprocess
import sys

import pytest

from app.cli.completion import SHELLS, script
from app.cli.main import VERBS, main
from core.run.interpreter import child_environment

_ASK_BASH = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
_shtab_longfit longfit "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""
_ASK_ZSH = """
compadd() { shift; print -l -- $@ }
_files() { }
eval "$(sed -n '/^_longfit_presets/,/^_longfit_folders/p' "$1")"
_longfit_$2
"""
_ASK_FISH = 'source $argv[1]; complete -C "$argv[2]" | string replace -r "\\t.*" ""'


@pytest.fixture
def folder(tmp_path):
    """With a preset of the project, one of the person, and a run."""
    for file in (".longfit/presets/mine.yaml", "config/longfit/presets/our own.yaml", "other.yml", "notes.txt",
                 "runs/20261130-010101-demo-ab12/run.yaml", "runs/no-run/notes.txt"):  # fmt: skip
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    return tmp_path


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scripts")
    for shell in SHELLS:
        (folder / shell).write_text(script(shell))
    return folder


def ask(shell, program, scripts, folder, *words, **environment):
    executable = shutil.which(shell)
    if executable is None:
        pytest.skip(f"no {shell} here")
    # no PATH to Python and longfit: the shell alone completes
    variables = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config"), **environment}
    program = [program] if shell == "fish" else [program, shell]
    ended = subprocess.run(
        [executable, "-c", *program, str(scripts / shell), *words], cwd=folder, env=variables, capture_output=True,
        text=True, timeout=30, check=False,
    )  # fmt: skip
    assert ended.stderr == ""
    return ended.stdout.split("\n")[:-1]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("longfit", "pl"), ["plan"]),
        (("longfit", "plan", "demo-smollm2", "--goa"), ["--goal"]),
        (("longfit", "plan", "demo-smollm2", "--goal", "s"), ["smallest"]),
        (("longfit", "plan", "mi"), ["mistral-7b-32k-1x48g", "mistral-7b-full-galore-16k-1x24g", "mine"]),
        (("longfit", "plan", "other"), ["other.yml"]),
        (("longfit", "preset", "di"), ["diff"]),
        (("longfit", "preset", "diff", "mine", "demo"), ["demo-smollm2"]),
        (("longfit", "train", "mine", "--gpu", "H1"), ["H100-80G"]),
        (("longfit", "export", ""), ["last", "20261130-010101-demo-ab12"]),
        (("longfit", "export", "2026"), ["20261130-010101-demo-ab12"]),
        (("longfit", "logs", "last", "--runs-dir", "ru"), ["runs"]),
        (("longfit", "completion", ""), list(SHELLS)),
    ],
)
def test_bash_offers(folder, scripts, words, offered):
    assert ask("bash", _ASK_BASH, scripts, folder, *words) == offered


def test_runs_of_another_folder_are_offered_where_the_variable_points(folder, scripts):
    (folder / "runs").rename(folder / "elsewhere")
    assert ask("bash", _ASK_BASH, scripts, folder, "longfit", "stop", "") == ["last"]
    found = ask("bash", _ASK_BASH, scripts, folder, "longfit", "stop", "2", LONGFIT_RUNS="elsewhere")
    assert found == ["20261130-010101-demo-ab12"]


def test_zsh_finds_presets_and_runs(folder, scripts):
    assert {"mine", "our own", "demo-smollm2"} <= set(ask("zsh", _ASK_ZSH, scripts, folder, "presets"))
    assert ask("zsh", _ASK_ZSH, scripts, folder, "runs") == ["last", "20261130-010101-demo-ab12"]


def test_fish_offers(folder, scripts):
    assert ask("fish", _ASK_FISH, scripts, folder, "longfit pl") == ["plan"]
    assert ask("fish", _ASK_FISH, scripts, folder, "longfit export 2") == ["20261130-010101-demo-ab12"]
    assert "mine" in ask("fish", _ASK_FISH, scripts, folder, "longfit plan mi")


@pytest.mark.parametrize("shell", SHELLS)
def test_every_script_is_of_its_shell_s_syntax_and_has_every_verb(scripts, shell):
    text = (scripts / shell).read_text()
    assert all(verb in text for verb in VERBS)
    assert "--over-length" in text or "over-length" in text
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(scripts / shell)], check=True)


def test_the_script_goes_to_stdout_without_torch_and_another_shell_is_refused(capsys):
    check = (
        "import sys; from app.cli.main import main; code = main(['completion', 'fish']); "
        "assert not {'torch', 'textual', 'gradio'} & set(sys.modules); sys.exit(code)"
    )
    environment = child_environment(os.environ)
    ended = subprocess.run([sys.executable, "-c", check], env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "complete -c longfit" in ended.stdout
    with pytest.raises(SystemExit, match="2"):
        main(["completion", "csh"])
    assert "bash, zsh, fish" in capsys.readouterr().err


def test_shtab_is_imported_by_no_other_verb():
    check = "import sys; from app.cli.main import main; main([]); assert 'shtab' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], env=child_environment(os.environ), check=True, capture_output=True)
