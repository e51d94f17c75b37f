"""Prove a plan on the own hardware: true shapes, random weights, the longest row, a few steps. Used by the CLI.

Nothing is downloaded and nothing of the preset's data is read. The worker runs in processes of its own with the
command, environment and allocator settings of a real run.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.services.calibration import calibration_record, store_calibration
from app.services.hardware import find_gpu, with_memory_limit
from app.services.launch import refuse_what_does_not_fit
from app.services.models import model_config
from app.services.planning import (
    Planned,
    cluster_for_launch,
    plan_preset,
    plan_resolved,
    refuse_errors,
    refuse_planned_only,
)
from app.services.presets import load_preset
from app.services.resolve import with_cluster
from core.rehearse.folder import packs_last_step, read_answers, write_request
from core.run.command import worker_command
from core.run.config_file import write_config
from planner.errors import ConfigError, LaunchError
from planner.types import Preset

TARGET = ("-m", "core.rehearse.worker")
OUT_OF_MEMORY_EXIT_CODE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The highest readings of one moment over all steps and ranks, bytes."""

    allocated_bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    planned: Planned
    measured: Mapping[str, Measured]  # by moment: load, forward, backward, step, evaluation
    tokens_per_second: float | None  # median of whole rows after the first step; None: it did not get that far
    evidence: tuple[str, ...]
    fallbacks: tuple[str, ...]
    failure: Mapping[str, Any] | None  # {"message", "instant", "exit_code", ...} of the first rank that failed
    calibration: Path | None  # where the figures went; None after a failure

    @property
    def is_out_of_memory(self) -> bool:
        return self.failure is not None and self.failure.get("exit_code") == OUT_OF_MEMORY_EXIT_CODE

    @property
    def measured_allocated(self) -> int:
        return max((reading.allocated_bytes for reading in self.measured.values()), default=0)

    @property
    def measured_used(self) -> int:
        return max((reading.used_bytes for reading in self.measured.values()), default=0)

    @property
    def allocated_error(self) -> float:
        """Planned over measured, less one."""
        return self.planned.plan.worst_gpu.allocated.peak_bytes / self.measured_allocated - 1

    @property
    def used_error(self) -> float:
        return self.planned.plan.worst_gpu.used_bytes / self.measured_used - 1


def rehearse_preset(
    preset: str | Preset, overrides: Mapping[str, Any] | None = None, *, gpu: str | None = None,
    limit_bytes: int | None = None, steps: int = 3, allow_host_over: bool = True,
    on_start: Callable[[], None] = lambda: None,
) -> Rehearsal:  # fmt: skip
    """``gpu`` as in cluster_for_launch. ``limit_bytes``: behave like a device that has no more than this.
    ``on_start`` is called once all is checked, just before the processes start.

    A GPU that is too small only ends the rehearsal; host memory that does not suffice may end other processes.

    Raises: ConfigError for a wrong preset or limit, DoesNotFit when host memory does not suffice and that is not
    allowed, LaunchError when the processes end without an answer.
    """
    if steps < 2:
        raise ConfigError(
            f"A rehearsal of {steps} steps is asked for.",
            why="Optimizer states appear in the first step: the second is the first that holds everything.",
            fix="Use --steps 3.",
        )
    loaded = load_preset(preset) if isinstance(preset, str) else preset
    planned = plan_preset(loaded, overrides, cluster=cluster_for_launch(loaded, gpu))
    if limit_bytes is not None:
        planned = _under_limit(planned, limit_bytes)
    refuse_errors(planned.plan)
    refuse_planned_only(planned.plan)
    if not allow_host_over and planned.plan.host_verdict == "over":
        refuse_what_does_not_fit(planned.plan)
    on_start()
    config = planned.resolved.config
    with tempfile.TemporaryDirectory(prefix="longfit-rehearsal-") as name:
        folder = Path(name)
        write_config(folder, config)
        write_request(folder, model_config=model_config(config.model), steps=steps, limit_bytes=limit_bytes)
        said = _run(planned, folder)
        answers = read_answers(folder, config.parallel.world)
    if not answers:
        raise LaunchError("The rehearsal ended without an answer.", why=said[-2000:] or "It said nothing.")
    return _result(planned, answers)


def limit_of_gpu(name: str) -> int:
    """What a process may use of a card of the catalog. Raises: ConfigError with the nearest names."""
    return find_gpu(name).usable_bytes


def _under_limit(planned: Planned, limit_bytes: int) -> Planned:
    resolved = with_cluster(planned.resolved, with_memory_limit(planned.resolved.cluster, limit_bytes))
    return replace(planned, resolved=resolved, plan=plan_resolved(resolved))


def _run(planned: Planned, folder: Path) -> str:
    """What the processes said, output and errors together."""
    config, cluster = planned.resolved.config, planned.resolved.cluster
    device = "cuda" if cluster.gpu.kind == "cuda" else "cpu"
    command = worker_command(config, folder, device=device, base=os.environ, target=TARGET)
    done = subprocess.run(
        command.argv, env=dict(command.environment), cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
    )  # fmt: skip
    return done.stdout


def _result(planned: Planned, answers: list[dict[str, Any]]) -> Rehearsal:
    failure = next((answer["failure"] for answer in answers if answer["failure"]), None)
    speeds = [row["tokens_per_second"] for row in answers[0]["metrics"] if "tokens_per_second" in row]
    speeds = speeds[1:-1] if packs_last_step(planned.resolved.config, len(speeds)) else speeds[1:]
    events = [event for answer in answers for event in answer["events"]]
    rehearsal = Rehearsal(
        planned=planned, measured=_measured(answers),
        tokens_per_second=statistics.median(speeds) if speeds else None,
        evidence=_distinct(event["claim"] for event in events if event["type"] == "evidence"),
        fallbacks=_distinct(event["reason"] for event in events if event["type"] == "fallback"),
        failure=failure, calibration=None,
    )  # fmt: skip
    if failure is not None:
        return rehearsal
    record = calibration_record(
        plan_resolved(planned.resolved, calibrated=False), measured=rehearsal.measured,
        tokens_per_second=rehearsal.tokens_per_second, evidence=rehearsal.evidence,
    )  # fmt: skip
    return replace(rehearsal, calibration=store_calibration(planned.resolved.cluster.gpu.name, record))


def _measured(answers: list[dict[str, Any]]) -> dict[str, Measured]:
    highest: dict[str, Measured] = {}
    for row in (row for answer in answers for row in answer["memory"] if row["instant"] != "save"):  # nothing is saved
        before = highest.get(row["instant"], Measured(allocated_bytes=0, used_bytes=0))
        highest[row["instant"]] = Measured(
            allocated_bytes=max(before.allocated_bytes, row["allocated_bytes"]),
            used_bytes=max(before.used_bytes, row["used_bytes"]),
        )
    return highest


def _distinct(texts: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))
