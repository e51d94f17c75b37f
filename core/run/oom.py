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
from planner.model_spec import model_spec_from_config
from planner.price import ROOMY
from planner.search import longest_length, recommend
from planner.types import ClusterSpec, Environment, GpuSpec, ModelSpec, RunConfig

NUM_CHANGES = 3
_MARGIN = 0.95  # a run that failed within its plan must from now on need less than this share of what was planned


def explain_out_of_memory(config: RunConfig, plan: Mapping[str, Any], *, instant: str | None) -> dict[str, Any]:
    """``plan`` as in plan.json, ``instant`` as a worker names it.

    {"instant", "parts": [{"part", "bytes"}, ...] largest first, "changes": [{"changes": {key: value}, "used_bytes",
    "tokens_per_second", "why"}, ...]}; empty lists where the run has no plan.
    """
    return {"instant": instant, "parts": _parts(plan, instant), "changes": _changes(config, plan)}


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


def _changes(config: RunConfig, plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    if not plan.get("gpus"):
        return []
    try:
        problem = _problem(config, plan)
        found = [
            {
                "changes": dict(alternative.changes), "used_bytes": alternative.used_bytes,
                "tokens_per_second": alternative.tokens_per_second, "why": alternative.why,
            }
            for alternative in recommend(**problem, limit=100)
            if alternative.verdict in ROOMY and alternative.changes
            and _keeps_method(config, alternative.optimizations)
        ]  # fmt: skip
        found = found[:NUM_CHANGES]
        shorter = longest_length(**problem)
        if 0 < shorter < config.max_length:
            why = "the longest that fits with nothing else changed"
            at_the_end = {"changes": {"max_length": shorter}, "used_bytes": None, "tokens_per_second": None, "why": why}
            found = [*found[: NUM_CHANGES - 1], at_the_end]
    except (LongfitError, OSError, ValueError, KeyError):  # a post-mortem without advice is still one
        return []
    return found


def _keeps_method(config: RunConfig, optimizations: tuple[Any, ...]) -> bool:
    return replace(config, optimizations=optimizations).method == config.method


def _problem(config: RunConfig, plan: Mapping[str, Any]) -> dict[str, Any]:
    """What the planner is asked: the run on its hardware, of which a plan that was wrong leaves less."""
    gpu = plan["gpus"][0]
    usable, planned = int(gpu["usable_bytes"]), int(gpu["peak"]["used_bytes"])
    usable = min(usable, round(_MARGIN * planned)) if planned <= usable else usable
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
    return {
        "config": config, "model": _model(config), "cluster": cluster, "environment": environment, "registry": REGISTRY,
    }  # fmt: skip


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
