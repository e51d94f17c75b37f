"""`longfit completion`: a script that lets the shell complete verbs, flags, presets and runs.

Written by shtab from the parsers themselves. Completing starts no Python: the script holds the names of verbs, flags,
catalog GPUs and shipped presets, and looks up the rest (own presets, runs) by the shell's own means.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from app.services.presets import preset_names
from planner.catalog.gpus import GPUS

SHELLS = ("bash", "zsh", "fish")
# of arguments by their dest: the function that completes them
_PRESETS, _RUNS, _GPUS, _FOLDERS = "presets", "runs", "gpus", "folders"
_BY_DEST = {
    "preset": _PRESETS, "other": _PRESETS, "sources": _PRESETS, "names": _PRESETS, "run_id": _RUNS, "source": _RUNS,
    "gpu": _GPUS, "as_gpu": _GPUS, "runs_dir": _FOLDERS, "out": _FOLDERS, "adapter": _FOLDERS,
}  # fmt: skip

_BASH = """
_longfit_presets() {
  local path names=""
  for path in "${XDG_CONFIG_HOME:-$HOME/.config}"/longfit/presets/*.yaml .longfit/presets/*.yaml; do
    [ -e "$path" ] && path=${path##*/} && names="$names ${path%.yaml}"
  done
  compgen -W "@PRESETS@ $names" -- "$1"
  compgen -f -X '!*.yaml' -- "$1"
  compgen -f -X '!*.yml' -- "$1"
  compgen -d -- "$1"
}
_longfit_runs() {
  local path names="last"
  for path in "${LONGFIT_RUNS:-runs}"/*/run.yaml; do
    [ -e "$path" ] && path=${path%/run.yaml} && names="$names ${path##*/}"
  done
  compgen -W "$names" -- "$1"
}
_longfit_gpus() { compgen -W "@GPUS@" -- "$1"; }
_longfit_folders() { compgen -d -- "$1"; }
"""
_ZSH = """
_longfit_presets() {
  local -a own
  own=("${XDG_CONFIG_HOME:-$HOME/.config}"/longfit/presets/*.yaml(N:t:r) .longfit/presets/*.yaml(N:t:r))
  compadd -- @PRESETS@ $own
  _files -g '*.(yaml|yml)'
}
_longfit_runs() {
  local -a ids
  ids=("${LONGFIT_RUNS:-runs}"/*/run.yaml(N:h:t))
  compadd -- last $ids
}
_longfit_gpus() { compadd -- @GPUS@ }
_longfit_folders() { _files -/ }
"""
_FISH = """
function _longfit_presets
  set -l config $HOME/.config
  set -q XDG_CONFIG_HOME; and set config $XDG_CONFIG_HOME
  printf '%s\\n' @PRESETS@
  for path in $config/longfit/presets/*.yaml .longfit/presets/*.yaml
    string replace -r '.*/([^/]*)\\.yaml$' '$1' -- $path
  end
  __fish_complete_suffix .yaml
end
function _longfit_runs
  set -l root runs
  set -q LONGFIT_RUNS; and set root $LONGFIT_RUNS
  echo last
  for path in $root/*/run.yaml
    string replace -r '.*/([^/]*)/run\\.yaml$' '$1' -- ./$path
  end
end
function _longfit_gpus
  printf '%s\\n' @GPUS@
end
function _longfit_folders
  __fish_complete_directories
end
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="whose script; its first lines say how it is loaded")


def run(args: argparse.Namespace) -> int:
    print(script(args.shell))
    return 0


def script(shell: str) -> str:
    """For bash, zsh or fish."""
    import shtab  # no other verb needs it

    from app.cli.main import VERBS, build_parser

    parser = build_parser(*VERBS)
    for action in _actions(parser):
        kind = _BY_DEST.get(action.dest)
        if kind is not None and action.choices is None:
            name = f"_longfit_{kind}"
            action.complete = {"bash": name, "zsh": name, "fish": f"({name})"}  # type: ignore[attr-defined]
    shipped = sorted(name for name, (origin, _) in preset_names().items() if origin == "built-in")
    functions = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}[shell]
    functions = functions.replace("@PRESETS@", " ".join(shipped)).replace("@GPUS@", " ".join([*GPUS, "cpu", "here"]))
    return str(shtab.complete(parser, shell, root_prefix="longfit", preamble=functions))


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Of a parser and of those below it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _actions(below)
        else:
            yield action
