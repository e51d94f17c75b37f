"""What a run has trained, in a folder for other tools: the adapter, or base and adapter as one model. Called by faces.

This process imports no torch: files are copied here, base and adapter become one in a process of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from app.services.run_summary import summarize
from app.services.runs import snapshot
from app.views.model_card import model_card
from core.export import copy_files, exported_files, refuse_existing, size_of, write_folder
from core.run.directory import RunDirectory
from core.run.interpreter import child_environment, python_argv
from core.trained import find_checkpoint, is_adapter
from planner.errors import ConfigError, EnvironmentProblem, LaunchError, LongfitError, RunNotFound

_ERRORS = {error.exit_code: error for error in (LaunchError, ConfigError, EnvironmentProblem, RunNotFound)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    run: str
    step: int
    kind: str  # "adapter", "merged" (base and adapter as one model) or "model" (a fully trained one)
    base_model: str
    dtype: str
    folder: str
    size_bytes: int

    def to_dict(self) -> dict[str, Any]:
        return {"schema": 1, **asdict(self)}


def export(run: RunDirectory, *, step: int | None = None, merge: bool = False, out: Path | None = None) -> Exported:
    """``step``: the newest valid checkpoint without it. ``out``: a folder of the run's name here without it.

    A fully trained run has no adapter: its checkpoint is the model, with ``merge`` and without.
    Raises: ConfigError when there is no such checkpoint, ``out`` exists or base and adapter do not belong together,
        EnvironmentProblem when the disk has no room, LaunchError when the process that merges was ended.
    """
    found = snapshot(run)
    if out is not None:
        refuse_existing(out)  # before every byte of a checkpoint is read
    checkpoint = find_checkpoint(run, step)
    saved_step = int(checkpoint.name.removeprefix("step-"))
    kind = "model" if not is_adapter(checkpoint) else "merged" if merge else "adapter"
    folder = (out or Path(f"{run.id}-step-{saved_step}-{kind}")).absolute()
    files = exported_files(checkpoint)
    card = model_card(
        found.config, summarize(found, up_to_step=saved_step), kind=kind, step=saved_step,
        preset_text=run.preset.read_text("utf-8") if run.preset.is_file() else "",
    )  # fmt: skip

    def fill(temporary: Path) -> None:
        if kind == "merged":
            _merge(run, checkpoint, temporary)
        else:
            copy_files(files, temporary)
        (temporary / "README.md").write_text(card, encoding="utf-8")

    write_folder(folder, fill, needed_bytes=size_of(files))
    return Exported(
        run=run.id, step=saved_step, kind=kind, base_model=found.config.model, dtype=found.config.dtype,
        folder=str(folder), size_bytes=size_of(folder.iterdir()),
    )  # fmt: skip


def _merge(run: RunDirectory, checkpoint: Path, folder: Path) -> None:
    """core.merge in a process of its own; its progress goes to this one's stderr."""
    command = python_argv(
        "-m", "core.merge", "--run", str(run.path), "--checkpoint", str(checkpoint), "--into", str(folder)
    )
    ended = subprocess.run(
        command, env=child_environment(os.environ), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False,
        encoding="utf-8", errors="replace",
    )  # fmt: skip
    answer = _last_line(ended.stdout)
    if "error" in answer:
        words = answer["error"]
        kind: type[LongfitError] = _ERRORS.get(words["exit_code"], LaunchError)
        raise kind(words["what"], why=words["why"], fix=words["fix"])
    if ended.returncode != 0 or not answer:
        ended_by = f"signal {-ended.returncode}" if ended.returncode < 0 else f"exit code {ended.returncode}"
        raise LaunchError(
            "The process that merges was ended before it was done.", why=f"It ended by {ended_by}.",
            fix="It holds one file of the base's weights at a time; see whether the host has memory for the largest, "
            "twice. Signal 9 is what Linux sends when there is none.",
        )  # fmt: skip


def _last_line(text: str) -> Mapping[str, Any]:
    try:
        answer = json.loads(text.strip().rpartition("\n")[2])
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
