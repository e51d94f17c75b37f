"""Two runs side by side: what was asked for differently, and what came of it. Called by the Compare screen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Protocol

from app.views.format import (
    format_bytes,
    format_deviation,
    format_duration,
    format_loss,
    format_share,
    format_short_count,
    format_tokens_per_second,
)
from app.views.memory_view import MemoryHistory, memory_rows
from app.views.series import LossHistory
from planner.types import RunConfig, RunState

Row = tuple[str, str, str]


class SeenRun(Protocol):
    """What a reader of a run has at hand."""

    config: RunConfig
    state: RunState
    plan: Mapping[str, Any]
    loss: LossHistory
    memory: MemoryHistory


def setting_rows(first: RunConfig, second: RunConfig) -> tuple[Row, ...]:
    """(setting, of the first, of the second) for everything that differs; names of runs are no setting."""
    a, b = _flat(asdict(first)), _flat(asdict(second))
    keys = [key for key in dict.fromkeys((*a, *b)) if a.get(key) != b.get(key) and key not in ("name", "schema")]
    return tuple((key, a.get(key, "-"), b.get(key, "-")) for key in keys)


def result_rows(first: SeenRun, second: SeenRun) -> tuple[Row, ...]:
    """(figure, of the first, of the second), as far as the runs have come."""
    a, b = _results(first), _results(second)
    return tuple((name, a[name], b[name]) for name in a)


def _results(run: SeenRun) -> dict[str, str]:
    loss, state = run.loss, run.state
    speed = loss.tokens_seen / loss.seconds if loss.seconds > 0 else None
    planned = float(run.plan.get("tokens_per_second") or 0)
    worst = max(memory_rows(run.memory, run.plan), key=lambda row: row.peak_bytes, default=None)
    peak, planned_peak = (worst.peak_bytes, worst.planned_peak_bytes) if worst is not None else (0, 0)
    last = loss.last.get("loss")
    best = min((point.low for point in loss.evaluation.visible()), default=None)
    return {
        "state": state.status + (f" ({state.failure_kind})" if state.failure_kind else ""),
        "steps": f"{state.step:,}" + (f" of {state.total_steps:,}" if state.total_steps else ""),
        "tokens": format_short_count(loss.tokens_seen),
        "training": format_duration(loss.seconds),
        "loss": format_loss(last if isinstance(last, int | float) else None),
        "eval first": format_loss(loss.first_evaluation),
        "eval last": format_loss(loss.last_evaluation),
        "eval best": format_loss(best),
        "speed": "n/a" if speed is None else format_tokens_per_second(speed),
        "of plan": format_share(speed / planned) if speed is not None and planned > 0 else "n/a",
        "peak": format_bytes(peak) if peak else "n/a",
        "planned": format_bytes(planned_peak) if planned_peak else "n/a",
        "off by": format_deviation(peak, planned_peak) if peak else "n/a",
    }


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Dotted keys to words; the optimizations by name and knob."""
    found: dict[str, str] = {}
    for key, value in values.items():
        if key == "optimizations":
            for setting in value:
                knobs = dict(setting["knobs"])
                found[setting["name"]] = "on"
                found |= _flat(knobs, f"{setting['name']}.")
        elif isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return found
