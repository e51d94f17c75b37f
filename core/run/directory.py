"""A run is a directory: its paths, and how one comes into being whole or not at all. Called by launch and readers."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.run.atomic import atomic_write, fsync_directory
from core.run.command import WorkerCommand, command_script
from core.run.config_file import FILE_NAME, write_config
from core.run.jsonl import encode_line
from planner.errors import ConfigError, EnvironmentProblem, RunNotFound
from planner.run_state import event_to_dict
from planner.types import RunConfig, RunEvent

_SLUG_LENGTH = 40


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """runs/<utc>-<slug>-<id4>/. Who writes what: `create` the files of the first block, the supervisor all others,
    but for control/ (faces) and checkpoints/ (workers)."""

    path: Path

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def preset(self) -> Path:
        return self.path / "preset.yaml"

    @property
    def config(self) -> Path:
        return self.path / FILE_NAME

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def data(self) -> Path:
        return self.path / "data.json"

    @property
    def environment(self) -> Path:
        return self.path / "env.json"

    @property
    def command(self) -> Path:
        return self.path / "command.sh"

    @property
    def control(self) -> Path:
        return self.path / "control"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def superseded_metrics(self) -> Path:
        return self.path / "metrics.superseded.jsonl"

    @property
    def memory(self) -> Path:
        return self.path / "memory.jsonl"

    @property
    def state(self) -> Path:
        return self.path / "state.json"

    @property
    def log(self) -> Path:
        return self.path / "train.log"

    @property
    def supervisor_log(self) -> Path:
        return self.path / "supervisor.log"

    @property
    def postmortem(self) -> Path:
        return self.path / "postmortem.json"

    @property
    def lock(self) -> Path:
        return self.path / "supervisor.lock"

    def read_json(self, path: Path) -> dict[str, Any]:
        """One of the JSON files, {} while it is not there. Raises: ConfigError when it is damaged."""
        try:
            return dict(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{path} is damaged.", why=str(error)) from error

    def write_command(self, command: WorkerCommand) -> None:
        atomic_write(self.command, command_script(command).encode("utf-8", "surrogateescape"))  # paths as they are
        self.command.chmod(0o755)


def open_run(path: Path) -> RunDirectory:
    """Raises: RunNotFound when there is no run in it."""
    if not (path / FILE_NAME).is_file():
        raise RunNotFound(f"{path} is not a run directory.", why=f"It has no {FILE_NAME}.")
    return RunDirectory(path.resolve())


def create_run(
    runs_root: Path, *, config: RunConfig, preset_text: str, plan: Mapping[str, Any], data: Mapping[str, Any],
    environment: Mapping[str, Any], command: Callable[[Path], WorkerCommand], now: float | None = None,
) -> RunDirectory:  # fmt: skip
    """A new directory with everything a supervisor needs, under a name that no other run has.

    Built beside its place as `.tmp-...` and renamed, so that nobody ever sees half a run.
    ``command`` gives the worker command of a directory: it has the directory's path in it.
    Raises: EnvironmentProblem when it cannot be written.
    """
    created_at = time.time() if now is None else now
    name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(created_at))}-{slug(config.name)}-{secrets.token_hex(2)}"
    final = RunDirectory(runs_root.resolve() / name)
    temporary = RunDirectory(final.path.with_name(f".tmp-{name}"))
    try:
        temporary.path.mkdir(parents=True)
        temporary.control.mkdir()
        temporary.checkpoints.mkdir()
        temporary.preset.write_text(preset_text, encoding="utf-8")
        write_config(temporary.path, config)
        for path, content in ((temporary.plan, plan), (temporary.data, data), (temporary.environment, environment)):
            path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        temporary.write_command(command(final.path))
        temporary.events.write_bytes(encode_line(event_to_dict(RunEvent(time=created_at, type="created"))))
        os.rename(temporary.path, final.path)  # fails when the name is taken: a directory with files is never replaced
        fsync_directory(final.path.parent)
    except OSError as error:
        shutil.rmtree(temporary.path, ignore_errors=True)
        raise EnvironmentProblem(
            f"The run directory {final.path} could not be written.", why=f"{error.strerror or error}.",
            fix="Give another --runs-dir, or free space there.",
        ) from error  # fmt: skip
    except BaseException:
        shutil.rmtree(temporary.path, ignore_errors=True)
        raise
    return final


def slug(name: str) -> str:
    """Lower-case letters, digits, dots and dashes of a name, at most 40; "run" when nothing is left."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower())[:_SLUG_LENGTH].strip("-.") or "run"
