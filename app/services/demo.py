"""The demo as a use case: real model, real documents, plan, launch, and what it must have shown in the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.services.demo_documents import question, write_demo_documents
from app.services.demo_model import demo_model_dir
from app.services.hardware import detect_cluster, detect_gpus
from app.services.launch import launch_planned, refuse_what_does_not_fit
from app.services.locations import cache_dir
from app.services.planning import Planned, plan_preset, refuse_errors
from app.services.run_summary import RunSummary
from core.run.directory import RunDirectory

PRESET = "demo-smollm2"
MEMORY_TOLERANCE = 0.15  # of the plan, for the peak of each process
QUESTION = question("assert")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    passed: bool
    words: str


def plan_demo(say: Callable[[str], None]) -> Planned:
    """Model and documents in place, and the plan for this machine: its GPU when it has one, else two CPU processes.

    Raises: EnvironmentProblem without the model's package, DoesNotFit when this machine is too small.
    """
    say("the model: SmolLM2-135M-Instruct, from a Python package, converted once")
    demo_model_dir()
    train, held_out = write_demo_documents(cache_dir() / "demo")
    num_gpus = min(2, len(detect_gpus()))
    planned = plan_preset(
        PRESET, _overrides(train, held_out, num_gpus), cluster=detect_cluster(num_gpus) if num_gpus else None,
        alternatives=True,
    )  # fmt: skip
    refuse_errors(planned.plan)
    refuse_what_does_not_fit(planned.plan)
    return planned


def launch_demo(planned: Planned, runs_root: Path | None = None) -> RunDirectory:
    return launch_planned(planned, runs_root=runs_root)


def demo_checks(summary: RunSummary, *, num_processes: int) -> tuple[Check, ...]:
    """What the demo promises: it ended, the held-out loss fell, and each process held what the plan said."""
    before, after = summary.first_eval_loss, summary.last_eval_loss
    fell = before is not None and after is not None and after < before
    checks = [
        Check(passed=summary.status == "done", words=f"the run ended: {summary.status}"),
        Check(passed=fell, words="the loss on documents it never saw fell"),
        Check(
            passed=len(summary.peaks) == num_processes,
            words=f"{len(summary.peaks)} of {num_processes} processes reported their memory",
        ),
    ]
    for peak in summary.peaks:
        error = abs(peak.measured_bytes / peak.planned_bytes - 1) if peak.planned_bytes else None
        checks.append(
            Check(
                passed=error is not None and error <= MEMORY_TOLERANCE,
                words=f"process {peak.rank} held what was planned, within {MEMORY_TOLERANCE:.0%}",
            )
        )
    return tuple(checks)


def _overrides(train: Path, held_out: Path, num_gpus: int) -> Mapping[str, Any]:
    overrides: dict[str, Any] = {"data.train": [str(train)], "data.eval": [str(held_out)]}
    if num_gpus:
        overrides |= {"dtype": "bfloat16"}
    if num_gpus == 1:  # nothing to spread over: the honest form on one GPU, one group for each KV head
        overrides |= {"sequence_parallel": 1, "fake_parallel": 3}
    return overrides
