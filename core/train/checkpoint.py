"""The checkpoint directory: written whole or not at all, proven by a manifest, found again, pruned. Torch-free.

    checkpoints/.tmp-step-40/   files written and fsynced, manifest.json last    a kill here leaves a hidden folder
    checkpoints/step-40/        the same folder, renamed                         never seen half-written

The trainer writes and prunes, the worker and `resume` look for the newest valid one. What the files hold is the
business of core/train/saved_state.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import EnvironmentProblem

MANIFEST = "manifest.json"
_STEP_NAME = re.compile(r"step-(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A folder with a step in its name that cannot be used."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    path: Path | None  # None: no valid checkpoint
    step: int
    skipped: tuple[Skipped, ...]  # newer than ``path``, newest first


def step_path(checkpoints: Path, step: int) -> Path:
    return checkpoints / f"step-{step}"


def write_checkpoint(checkpoints: Path, step: int, fill: Callable[[Path], None]) -> Path:
    """Let ``fill`` write the files into a hidden folder, add the manifest, and rename it to ``step-N``.

    Raises: EnvironmentProblem when the disk refuses (full, quota, read-only); nothing half-written stays, older
    checkpoints are untouched. Every other error of ``fill`` passes through after the same clean-up.
    """
    temporary = checkpoints / f".tmp-step-{step}"
    final = step_path(checkpoints, step)
    try:
        checkpoints.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(checkpoints)
        temporary.mkdir()
        fill(temporary)
        _write_manifest(temporary, step)
        _retire(final)  # only a torn one can be in the way: a run resumes from the newest valid step
        temporary.rename(final)
        _fsync(checkpoints)
    except OSError as error:
        written = sum(file.stat().st_size for file in temporary.rglob("*") if file.is_file())
        shutil.rmtree(temporary, ignore_errors=True)
        raise _cannot_write(checkpoints, step, error, written) from error
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _remove_leftovers(checkpoints)
    return final


def problem_with(path: Path) -> str | None:
    """Why this checkpoint must not be loaded, or None. Reads every byte: truncation, a flipped bit, a missing file
    and a missing or edited manifest are all found."""
    try:
        text = (path / MANIFEST).read_bytes()
    except FileNotFoundError:
        return f"no {MANIFEST}: the save was cut short"
    except OSError as error:
        return f"{MANIFEST} cannot be read: {error.strerror}"
    try:
        body = json.loads(text)["body"]
        intact = _manifest_bytes(body) == text
    except (ValueError, KeyError, TypeError):
        intact = False
    if not intact:
        return f"{MANIFEST} is damaged"
    for name, expected in body["files"].items():
        file = path / name
        try:
            size = file.stat().st_size
            if size != expected["bytes"]:
                return f"{name} has {size} bytes instead of {expected['bytes']}"
            if _sha256(file) != expected["sha256"]:
                return f"{name} is damaged: its SHA-256 is not the one of the manifest"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
    match = _STEP_NAME.fullmatch(path.name)
    if match and int(match[1]) != body["step"]:
        return f"{MANIFEST} is of step {body['step']}"
    return None


def newest_valid(checkpoints: Path) -> Found:
    """The valid checkpoint with the highest step, and why newer ones were passed over. Other names are ignored."""
    skipped: list[Skipped] = []
    for step in sorted(saved_steps(checkpoints), reverse=True):
        path = step_path(checkpoints, step)
        reason = problem_with(path)
        if reason is None:
            return Found(path=path, step=step, skipped=tuple(skipped))
        skipped.append(Skipped(path=path, reason=reason))
    return Found(path=None, step=0, skipped=tuple(skipped))


def prune(checkpoints: Path, *, limit: int, keep: Collection[int] = ()) -> tuple[int, ...]:
    """Delete the oldest checkpoints beyond ``limit`` (0: none) and return their steps.

    The newest one and the steps in ``keep`` always stay, and count: limit 2 with a kept best leaves best and newest.
    """
    steps = sorted(saved_steps(checkpoints))
    if limit <= 0 or len(steps) <= limit:
        return ()
    spared = {steps[-1], *keep}
    candidates = [step for step in steps if step not in spared]
    removed = tuple(candidates[: len(steps) - limit])
    for step in removed:
        _retire(step_path(checkpoints, step))
    _remove_leftovers(checkpoints)
    return removed


def saved_steps(checkpoints: Path) -> list[int]:
    """Steps of the folders that are named as checkpoints, sound or not, in no order."""
    if not checkpoints.is_dir():
        return []
    matches = (_STEP_NAME.fullmatch(path.name) for path in checkpoints.iterdir() if path.is_dir())
    return [int(match[1]) for match in matches if match and str(int(match[1])) == match[1]]


def _retire(path: Path) -> None:
    """Take a checkpoint's name away in one instant, so that a kill while deleting leaves no torn step-N."""
    if path.exists():
        path.rename(path.with_name(f".old-{path.name}"))


def _remove_leftovers(checkpoints: Path) -> None:
    for pattern in (".tmp-step-*", ".old-step-*"):
        for path in checkpoints.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)


def _write_manifest(directory: Path, step: int) -> None:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    for path in files:
        _fsync(path)
    body = {
        "schema": 1,
        "step": step,
        "files": {
            path.relative_to(directory).as_posix(): {"bytes": path.stat().st_size, "sha256": _sha256(path)}
            for path in files
        },
    }
    with (directory / MANIFEST).open("wb") as manifest:
        manifest.write(_manifest_bytes(body))
        manifest.flush()
        os.fsync(manifest.fileno())
    for folder in {path.parent for path in files} | {directory}:
        _fsync(folder)


def _manifest_bytes(body: dict[str, Any]) -> bytes:
    """One spelling only, with its own checksum: any changed byte of the manifest shows."""
    text = json.dumps(body, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return (json.dumps({"body": body, "sha256": digest}, sort_keys=True, indent=1) + "\n").encode()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cannot_write(checkpoints: Path, step: int, error: OSError, written: int) -> EnvironmentProblem:
    free = shutil.disk_usage(checkpoints).free if checkpoints.is_dir() else 0
    kept = ", ".join(f"step-{kept_step}" for kept_step in sorted(saved_steps(checkpoints))) or "none so far"
    return EnvironmentProblem(
        f"The checkpoint of step {step} could not be written to {checkpoints}.",
        why=f"{error.strerror or error} after {written:,} bytes; {free:,} bytes are free there. "
        f"Earlier checkpoints are untouched ({kept}).",
        fix="Free space on that disk, or lower save_total_limit, then `longfit resume` the run.",
    )
