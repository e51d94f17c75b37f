"""From a run back to a preset: the change that mends a failed one, and a good one kept under a name of its own.

Called by the Run and Runs screens. What is launched again, or saved, is the preset that the run itself was given.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.services.launch import device_of
from app.services.presets import load_preset, merge_overrides, save_preset
from app.services.run_summary import summarize
from app.services.runs import RunSnapshot
from core.run.directory import RunDirectory
from planner.errors import ConfigError
from planner.types import Preset


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """What the post-mortem proposes: ``changes`` as --set takes them, laid over the preset of the run."""

    preset: Preset
    changes: Mapping[str, Any]
    why: str
    used_bytes: int | None  # planned with the changes; None where only the length moves
    on_cpu: bool


def preset_of(paths: RunDirectory) -> Preset:
    """As the run was given it. Raises: ConfigError when the file is gone or damaged."""
    return load_preset(str(paths.preset))


def first_fix(paths: RunDirectory) -> Fix:
    """The first change of the post-mortem that the planner says fits.

    Raises: ConfigError with the reason when there is none.
    """
    postmortem = paths.read_json(paths.postmortem)
    changes = (postmortem.get("out_of_memory") or {}).get("changes") or ()
    if not postmortem:
        raise ConfigError(f"The run {paths.id} has no post-mortem.", why="Only a run that failed has one.")
    if not changes:
        what = f"There is no change to propose for {paths.id}."
        if postmortem.get("kind") == "oom":
            raise ConfigError(what, why="The planner found none that keeps the method and fits.",
                              fix="Open the preset on the Plan screen (p): a smaller model, or more GPUs.")  # fmt: skip
        raise ConfigError(what, why="It did not fail for want of memory.",
                          fix="See the traceback and the log; r resumes once the cause is gone.")  # fmt: skip
    first = changes[0]
    return Fix(
        preset=preset_of(paths), changes=dict(first["changes"]), why=str(first.get("why") or ""),
        used_bytes=first.get("used_bytes"), on_cpu=device_of(paths.read_json(paths.plan)) == "cpu",
    )  # fmt: skip


def promote(run: RunSnapshot, name: str) -> Path:
    """Save the run's preset among the user's, with what was measured. Raises: ConfigError when the name is taken."""
    preset = preset_of(run.paths)
    return save_preset(replace(preset, name=name, measured=(*preset.measured, measured_facts(run))))


def measured_facts(run: RunSnapshot) -> dict[str, Any]:
    """One entry for the preset's ``measured``: figures, GPU, date, versions and commit, as far as they are known."""
    summary, environment = summarize(run), run.paths.read_json(run.paths.environment)
    gpus, packages = environment.get("gpus") or (), environment.get("packages") or {}
    facts = {
        "date": time.strftime("%Y-%m-%d", time.gmtime(run.state.created_at)),
        "run": run.id,
        "gpu": gpus[0]["name"] if gpus and environment.get("device") == "cuda" else environment.get("device"),
        "world": run.state.world or run.config.parallel.world,
        "steps": summary.step,
        "loss": summary.last_loss,
        "eval_loss": summary.last_eval_loss,
        "tokens_per_second": None if summary.tokens_per_second is None else round(summary.tokens_per_second, 1),
        "allocated_bytes": max((peak.measured_bytes for peak in summary.peaks), default=None),
        "torch": packages.get("torch"),
        "commit": (environment.get("source") or {}).get("commit"),
    }
    return {key: value for key, value in facts.items() if value is not None}


def change_lines(preset: Preset, changes: Mapping[str, Any]) -> tuple[str, ...]:
    """``- max_length: 8192`` and ``+ max_length: 4096``: only what becomes other."""
    return value_differences(preset.values, merge_overrides(preset.values, changes))


def value_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """Two mappings of values as lines of a diff, nested ones by dotted keys."""
    old, new = flat(before), flat(after)
    lines = []
    for key in dict.fromkeys((*old, *new)):
        if old.get(key) == new.get(key) and (key in old) == (key in new):
            continue
        lines += [f"- {key}: {old[key]}"] if key in old else []
        lines += [f"+ {key}: {new[key]}"] if key in new else []
    return tuple(lines)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Dotted keys to words, as YAML writes them."""
    found: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = _words(value)
    return found


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_words, value)) + "]"
    return "null" if value is None else str(value)
