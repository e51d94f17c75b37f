"""Out of memory as an answer: where it happened, what was largest there, and three changes that the planner says fit.

Called by the supervisor for the post-mortem of a run that ended so. No torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from core.optimizations import REGISTRY
from planner.catalog.gpus import GPUS, cpu_spec
from planner.catalog.models import MODELS
from planner.errors import LongfitError
from planner.measured import MEASURED_INSTANTS
from planner.mend import mend
from planner.model_spec import model_spec_from_config
from planner.space import Problem
from planner.types import ClusterSpec, Environment, GpuSpec, ModelSpec, RunConfig

NUM_CHANGES = 3
_MARGIN = 0.95  # a run that failed within its plan must from now on need less than this share of what was planned


def explain_out_of_memory(
    config: RunConfig, plan: Mapping[str, Any], *, instant: str | None, allocatable_bytes: int | None = None
) -> dict[str, Any]:
    """``plan`` as in plan.json, ``instant`` as a worker names it; ``allocatable_bytes``: what its tensors could have
    had when it failed, which another process may have made less than the plan was given.

    {"instant", "parts": [{"part", "bytes"}, ...] largest first, "changes": [{"changes": {key: value}, "used_bytes",
    "tokens_per_second", "why"}, ...], "usable_bytes": what the changes are planned for}; empty lists and None where the
    run has no plan.
    """
    usable = _usable_bytes(plan, allocatable_bytes) if plan.get("gpus") else None
    changes = [] if usable is None else _changes(config, plan, usable, in_evaluation=instant == "evaluation")
    return {"instant": instant, "parts": _parts(plan, instant), "changes": changes, "usable_bytes": usable}


def _usable_bytes(plan: Mapping[str, Any], allocatable_bytes: int | None) -> int:
    """Of the device, for what the planner is asked: what was there, and less than a plan that was wrong."""
    gpu = plan["gpus"][0]
    usable, planned = int(gpu["usable_bytes"]), int(gpu["peak"]["used_bytes"])
    if allocatable_bytes is not None:
        usable = min(usable, allocatable_bytes + planned - int(gpu["peak"]["reserved_bytes"]))  # the context's are used
    return min(usable, round(_MARGIN * planned)) if planned <= usable else usable


def _parts(plan: Mapping[str, Any], instant: str | None) -> list[dict[str, Any]]:
    """At the fullest planned moment of ``instant``, of the first rank."""
    gpus = plan.get("gpus") or []
    moments = MEASURED_INSTANTS.get(instant or "", ())
    if not gpus or not moments:
        return []
    totals = gpus[0].get("allocated_bytes_by_instant", {})
    fullest = max(moments, key=lambda moment: totals.get(moment, 0))
    parts: dict[str, int] = {}
    for term in gpus[0].get("terms", ()):
        if fullest in term["instants"]:
            parts[term["part"]] = parts.get(term["part"], 0) + term["bytes"]
    return [{"part": part, "bytes": size} for part, size in sorted(parts.items(), key=lambda item: -item[1])]


def _changes(
    config: RunConfig, plan: Mapping[str, Any], usable: int, *, in_evaluation: bool
) -> list[dict[str, Any]]:  # fmt: skip
    try:
        ways = mend(_problem(config, plan, usable), in_evaluation=in_evaluation, limit=NUM_CHANGES)
    except (LongfitError, OSError, ValueError, KeyError):  # a post-mortem without advice is still one
        return []
    return [
        {
            "changes": dict(way.changes), "used_bytes": way.used_bytes, "tokens_per_second": way.tokens_per_second,
            "why": way.why,
        }
        for way in ways
    ]  # fmt: skip


def _problem(config: RunConfig, plan: Mapping[str, Any], usable: int) -> Problem:
    """What the planner is asked: the run on its hardware, with ``usable`` bytes of a device."""
    capability = plan["environment"]["compute_capability"]
    major, minor = (int(n) for n in capability.split(".")) if capability else (0, 0)
    environment = Environment(
        source=plan["environment"]["source"], packages=plan["environment"]["packages"],
        compute_capability=(major, minor) if capability else None,
    )  # fmt: skip
    num_gpus = int(plan["cluster"]["num_gpus"])
    cluster = ClusterSpec(
        gpu=_gpu(plan["cluster"], environment, usable), num_gpus_per_node=num_gpus,
        host_bytes_per_node=int(plan["host"]["usable_bytes"]), source=plan["cluster"]["source"],
        disk_free_bytes=plan["disk"]["free_bytes"],
    )  # fmt: skip
    return Problem(
        config=config, model=_model(config), cluster=cluster, environment=environment, registry=REGISTRY
    )  # fmt: skip


def _gpu(cluster: Mapping[str, Any], environment: Environment, usable: int) -> GpuSpec:
    """Rates only rank the answers, so those of the catalog's nearest card do for one that it does not have."""
    if cluster["kind"] == "cpu":
        return cpu_spec(usable, 1)
    known = GPUS.get(cluster["gpu"]) or min(GPUS.values(), key=lambda gpu: abs(gpu.usable_bytes - usable))
    return replace(
        known, name=cluster["gpu"], usable_bytes=usable, compute_capability=environment.compute_capability
    )  # fmt: skip


def _model(config: RunConfig) -> ModelSpec:
    folder = Path(config.model)
    if folder.is_dir():
        return model_spec_from_config(folder.name, json.loads((folder / "config.json").read_text("utf-8")))
    return model_spec_from_config(config.model, MODELS[config.model])
