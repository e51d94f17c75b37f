"""The checkpoints of a run as a person asks about them: which are sound, and why others are not. Called by faces."""

from __future__ import annotations

from pathlib import Path

from core.run.directory import RunDirectory
from core.train.checkpoint import problem_with, saved_steps, step_path


def checked_checkpoints(run: RunDirectory) -> tuple[tuple[str, int, str], ...]:
    """(name, bytes, what is wrong with it or "") newest first; what resume would find. Reads every byte of them."""
    paths = [step_path(run.checkpoints, step) for step in sorted(saved_steps(run.checkpoints), reverse=True)]
    return tuple((path.name, _size(path), problem_with(path) or "") for path in paths)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
