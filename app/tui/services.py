"""What the terminal interface asks of the rest of longfit: one class, so that a test can stand in for all of it.

Every method is a use case of app/services. Modules are imported where used: the first screen must not wait for all.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.types import Alternative, ClusterSpec, Plan, Preset

if TYPE_CHECKING:
    from app.services.draft import Draft
    from app.services.importing.exported import Exported
    from app.services.importing.imported import Imported
    from app.services.prepare_data import Progress
    from app.services.rehearsal_process import RehearsalProcess
    from app.services.resolve import Resolved
    from app.services.run_facts import RunFacts, RunFactsReader
    from app.services.run_preset import Fix
    from app.services.runs import RunList, RunSnapshot
    from core.run.control import StopMode
    from core.run.directory import RunDirectory
    from planner.errors import ConfigError
    from planner.ladder import Ladder, Rung


class Services:
    """The real thing. Raises LongfitError from every method; callers show what, why and fix."""

    def __init__(self) -> None:
        self._facts: RunFactsReader | None = None
        self._clusters: dict[str, ClusterSpec] = {}  # probed once: free memory must not move while one edits

    def now(self) -> float:
        """Unix seconds: what ages and silences are told from."""
        return time.time()

    def presets(self) -> tuple[Preset, ...]:
        from app.services.presets import list_presets

        return list_presets()

    def unreadable_presets(self) -> tuple[ConfigError, ...]:
        from app.services.presets import unreadable_presets

        return unreadable_presets()

    def preset_names(self) -> tuple[str, ...]:
        """Of the files that are there; none of them is read."""
        from app.services.presets import preset_names

        return tuple(preset_names())

    def load_preset(self, name: str) -> Preset:
        from app.services.presets import load_preset

        return load_preset(name)

    def model_names(self) -> tuple[str, ...]:
        from planner.catalog.models import MODELS

        return tuple(MODELS)

    def gpu_names(self) -> tuple[str, ...]:
        from planner.catalog.gpus import GPUS

        return tuple(GPUS)

    def resolve(self, preset: Preset, overrides: Mapping[str, Any], hardware: str) -> Resolved:
        """One RunConfig for ``hardware`` (as in --gpu; empty: what the preset is meant for)."""
        from app.services.resolve import resolve

        return resolve(preset, overrides, cluster=self._cluster(preset, hardware))

    def _cluster(self, preset: Preset, hardware: str) -> ClusterSpec:
        from app.services.hardware import parse_cluster, preset_cluster

        key = hardware or repr(dict(preset.hardware))
        if key not in self._clusters:
            self._clusters[key] = parse_cluster(hardware) if hardware else preset_cluster(preset.hardware)
        return self._clusters[key]

    def plan(self, resolved: Resolved) -> Plan:
        from app.services.planning import plan_resolved

        return plan_resolved(resolved)

    def recommend(self, resolved: Resolved, goal: str) -> tuple[Alternative, ...]:
        from app.services.planning import recommend_for

        return recommend_for(resolved, goal=goal)

    def ladder(self, resolved: Resolved) -> tuple[Ladder, Mapping[str, int]]:
        """Step by step, and what rehearsals of a step used: hash of its configuration -> bytes."""
        from app.services.calibration import measured_used
        from app.services.planning import ladder_for

        return ladder_for(resolved), measured_used(resolved.cluster)

    def changes_to(self, resolved: Resolved, rung: Rung) -> tuple[tuple[str, Any], ...]:
        """Preset keys that lead from what is at hand to a step of the ladder."""
        from core.optimizations import REGISTRY
        from planner.changes import changes_between

        return changes_between(REGISTRY, resolved.config, rung.config)

    def longest_length(self, resolved: Resolved) -> int:
        from app.services.planning import longest_length_for

        return longest_length_for(resolved)

    def plan_here(self, preset: Preset) -> Plan:
        """On the hardware that a launch would get now."""
        from app.services.planning import cluster_for_launch, plan_preset

        return plan_preset(preset, cluster=cluster_for_launch(preset)).plan

    def plan_for_launch(self, preset: Preset, overrides: Mapping[str, Any], *, cpu: bool) -> Plan:
        """The same run on the hardware that a launch really gets. Raises: ConfigError with what is wrong with it."""
        from app.services.launch import plan_for_launch

        return plan_for_launch(preset, overrides, gpu="cpu" if cpu else None).plan

    def rehearse(self, draft: Draft) -> RehearsalProcess:
        """Started, on this machine, on the draft as it stands."""
        from app.services.rehearsal_process import RehearsalProcess

        text = self.preset_text(draft.preset, draft.overrides)
        gpu = ("--gpu", "cpu") if draft.gpu == "cpu" else ()
        return RehearsalProcess(text, arguments=("--force", *gpu))  # a plan that is over was confirmed before

    def save_preset(self, preset: Preset) -> Path:
        from app.services.presets import save_preset

        return save_preset(preset)

    def save_preset_as(self, preset: Preset, name: str) -> Preset:
        """Among the user's presets, under that name; as it is loaded from there. Raises: as save_preset."""
        self.save_preset(replace(preset, name=name))
        return self.load_preset(name)

    def keep_preset(self, preset: Preset) -> Preset:
        """As a file in the cache, so that what is not saved has a command too; as it is loaded from there."""
        from app.services.locations import cache_dir
        from core.run.atomic import atomic_write

        text = self.preset_text(preset, {})
        path = cache_dir() / "imported" / f"{preset.name}-{hashlib.sha256(text.encode()).hexdigest()[:6]}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, text)
        return self.load_preset(str(path))

    def export_preset(self, preset: Preset, target: str) -> Exported:
        """``target``: yaml is a preset as it is, the others are tools. Raises: ConfigError."""
        from app.services.importing.exported import Exported, export_preset

        if target == "yaml":
            return Exported(text=self.preset_text(preset, {}), findings=())
        return export_preset(preset, target)

    def write_new_file(self, path: Path, text: str) -> None:
        """Raises: ConfigError when there is such a file, or when it cannot be written."""
        from planner.errors import ConfigError

        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise ConfigError(f"{path} exists already.", fix="Choose another name.") from None
        except OSError as error:
            raise ConfigError(f"{path} cannot be written.", why=f"{error.strerror}.") from None

    def import_text(self, text: str) -> Imported:
        from app.services.importing.imported import import_text

        return import_text(text)

    def preset_text(self, preset: Preset, overrides: Mapping[str, Any]) -> str:
        from app.services.presets import preset_text

        return preset_text(preset, overrides)

    def data_report(self, resolved: Resolved, on_progress: Progress) -> Mapping[str, Any]:
        """What becomes of each row, from the cache when nothing changed. Raises: as prepare_data."""
        from app.services.prepare_data import prepare_data

        return prepare_data(resolved.config, on_progress=on_progress).report

    # --- runs ----------------------------------------------------------------------------------------------------

    def launch(self, preset: Preset, overrides: Mapping[str, Any], *, cpu: bool, allow_over: bool) -> Path:
        """Prepare the data, create the run directory, start its supervisor; returns the directory.

        ``allow_over``: a person typed that it may run although it does not fit. Raises: DoesNotFit without that.
        """
        from app.services.launch import launch_preset

        return launch_preset(preset, overrides, gpu="cpu" if cpu else None, allow_over=allow_over).path

    def runs(self) -> RunList:
        from app.services.runs import list_runs

        return list_runs()

    def stop(self, run: RunDirectory, mode: StopMode) -> None:
        """A rung of the stop ladder; asked again, the supervisor skips one."""
        from app.services.control import stop

        stop(run, mode)

    def resume(self, run: RunDirectory) -> None:
        from app.services.launch import resume

        resume(run)

    def run_facts(self, run: RunSnapshot) -> RunFacts:
        """Of growing files only what was appended is read: ask from one thread at a time."""
        if self._facts is None:
            from app.services.run_facts import RunFactsReader

            self._facts = RunFactsReader()
        return self._facts.read(run)

    def checkpoints(self, run: RunDirectory) -> tuple[tuple[str, int, str], ...]:
        """(name, bytes, what is wrong with it or "") of every checkpoint, newest first. Reads every byte of them."""
        from app.services.checkpoints import checked_checkpoints

        return checked_checkpoints(run)

    def run_preset(self, run: RunDirectory) -> Preset:
        from app.services.run_preset import preset_of

        return preset_of(run)

    def first_fix(self, run: RunDirectory) -> Fix:
        """The first change of the post-mortem that the planner says fits. Raises: ConfigError when there is none."""
        from app.services.run_preset import first_fix

        return first_fix(run)

    def change_lines(self, preset: Preset, changes: Mapping[str, Any]) -> tuple[str, ...]:
        from app.services.run_preset import change_lines

        return change_lines(preset, changes)

    def promote(self, run: RunSnapshot, name: str) -> Path:
        """The run's preset among the user's, with what was measured. Raises: ConfigError when the name is taken."""
        from app.services.run_preset import promote

        return promote(run, name)

    def write_command(self, command: str) -> Path:
        """The command as a runnable file in the cache folder."""
        from app.services.locations import cache_dir
        from core.run.atomic import atomic_write

        path = cache_dir() / "command.sh"
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, f"#!/bin/sh\n{command}\n")
        return path
