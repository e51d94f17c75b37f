"""The planner as a use case: a preset's name and overrides in, a plan out. Used by CLI, TUI and page alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from app.services.calibration import experience_for
from app.services.hardware import cpu_cluster, detect_cluster, detect_gpus, parse_cluster
from app.services.presets import load_preset
from app.services.resolve import Resolved, resolve
from core.optimizations import REGISTRY
from planner.checks import PLANNED_ONLY
from planner.errors import ConfigError
from planner.plan import make_plan
from planner.types import Alternative, ClusterSpec, Plan, Preset

if TYPE_CHECKING:
    from planner.ladder import Ladder


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    preset: Preset
    resolved: Resolved
    plan: Plan


def plan_preset(
    preset: str | Preset,
    overrides: Mapping[str, Any] | None = None,
    *,
    cluster: ClusterSpec | None = None,
    alternatives: bool = False,
    goal: str = "fastest",
) -> Planned:
    """Plan a preset for ``cluster``; for the hardware it is meant for, when none is given.

    Raises: ConfigError when the preset itself is wrong. What the planner objects to is in ``plan.issues``.
    """
    loaded = load_preset(preset) if isinstance(preset, str) else preset
    resolved = resolve(loaded, overrides, cluster=cluster)
    return Planned(preset=loaded, resolved=resolved, plan=plan_resolved(resolved, alternatives=alternatives, goal=goal))


def plan_resolved(
    resolved: Resolved, *, alternatives: bool = False, goal: str = "fastest", calibrated: bool = True
) -> Plan:  # fmt: skip
    """``calibrated`` lets rehearsals on this machine correct it."""
    inputs = _planner_inputs(resolved)
    if not calibrated:
        inputs["experience"] = None
    return make_plan(**inputs, alternatives=alternatives, goal=goal)


def recommend_for(resolved: Resolved, *, goal: str = "fastest", limit: int = 8) -> tuple[Alternative, ...]:
    from planner.search import recommend

    return recommend(**_planner_inputs(resolved), goal=goal, limit=limit)


def ladder_for(resolved: Resolved) -> Ladder:
    """From the plain method to the least that this hardware needs, one decision a rung."""
    from planner.ladder import climb
    from planner.space import Problem

    return climb(Problem(**_planner_inputs(resolved)))


def longest_length_for(resolved: Resolved) -> int:
    """The longest max_length that still fits with these optimizations; 0 when none does."""
    from planner.search import longest_length

    return longest_length(**_planner_inputs(resolved))


def largest_batch_for(resolved: Resolved) -> int:
    """The largest per_device_train_batch_size that still fits; 0 when none does."""
    from planner.search import largest_batch

    return largest_batch(**_planner_inputs(resolved))


def _planner_inputs(resolved: Resolved) -> dict[str, Any]:
    """What every question to the planner is asked about."""
    return {
        "config": resolved.config,
        "model": resolved.model,
        "cluster": resolved.cluster,
        "environment": resolved.environment,
        "registry": REGISTRY,
        "experience": experience_for(resolved.cluster, resolved.environment),
    }


def cluster_for_launch(preset: Preset, gpu: str | None = None) -> ClusterSpec:
    """The hardware a launch really gets: this machine's GPUs, as many as the preset is meant for, or CPU processes.

    ``gpu`` may be "cpu" to leave the GPUs alone, or "2xhere" style counts such as "cpu x 2" through parse_cluster.
    """
    try:
        count = int(preset.hardware.get("count", 1))
    except (TypeError, ValueError):
        words = f"{preset.name}: hardware.count is {preset.hardware['count']!r}."
        raise ConfigError(words, fix="Write a whole number, such as hardware: {gpu: A10, count: 2}.") from None
    if gpu is not None:
        cluster = parse_cluster(gpu)
        if cluster.source == "assumed":
            raise ConfigError(
                f"A run cannot be launched on imagined hardware ({gpu}).",
                why="--gpu names hardware to plan for; a launch uses what this machine has.",
                fix="Leave --gpu out, or give --gpu cpu.",
            )
        return cluster
    if str(preset.hardware.get("gpu", "")).lower() == "cpu":
        return cpu_cluster(count)
    found = len(detect_gpus())
    return detect_cluster(min(count, found) if found else count)


def refuse_planned_only(plan: Plan) -> None:
    """Raises: ConfigError for what this version plans and cannot train with."""
    issue = next((issue for issue in plan.issues if issue.code == PLANNED_ONLY), None)
    if issue is not None:
        raise ConfigError(issue.what, why=issue.why, fix=issue.fix)


def refuse_length(plan: Plan) -> None:
    """For questions about other hardware. Raises: ConfigError when the length is beyond the model."""
    refuse_errors(replace(plan, issues=tuple(issue for issue in plan.issues if issue.code == "length-beyond-model")))


def refuse_errors(plan: Plan) -> None:
    """Raises: ConfigError with the first error of the plan, and the others named after it."""
    errors = [issue for issue in plan.issues if issue.severity == "error"]
    if errors:
        first, *others = errors
        more = f" ({len(others)} more: {'; '.join(issue.what for issue in others)})" if others else ""
        raise ConfigError(first.what, why=first.why, fix=first.fix + more)
