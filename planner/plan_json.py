"""A Plan as JSON: `longfit plan --json` and plan.json of a run. Stable, versioned; see planner/plan.schema.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from planner.cost import dollars_of_run, dollars_per_hour, dollars_per_million_tokens
from planner.formula import symbols_of, with_numbers
from planner.types import INSTANTS, Alternative, GpuPlan, Issue, OptimizationSetting, Plan, Term

SCHEMA_VERSION = 1


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """Only JSON types; the same plan always gives the same dict. The keys of DESIGN.md section 10 come first."""
    symbols = symbols_of(plan)
    return {
        "schema": SCHEMA_VERSION,
        "preset": plan.config.name,
        "verdict": plan.verdict,
        "peak_instant": plan.peak_instant,
        "gpus": [_gpu(gpu, symbols) for gpu in plan.gpus],
        "host": {
            "bytes": plan.host_bytes,
            "usable_bytes": plan.cluster.host_bytes_per_node,
            "verdict": plan.host_verdict,
            "terms": [_term(term, symbols) for term in plan.host_terms],
        },
        "disk": {
            "bytes": plan.disk_bytes,
            "free_bytes": plan.cluster.disk_free_bytes,
            "verdict": plan.disk_verdict,
            "terms": [_term(term, symbols) for term in plan.disk_terms],
        },
        "environment": {
            "source": plan.environment.source,
            "packages": dict(plan.environment.packages),
            "compute_capability": _capability(plan.environment.compute_capability),
        },
        "tokens_per_second": plan.tokens_per_second,
        "seconds_per_step": plan.seconds_per_step,
        "mfu_causal": plan.mfu_causal,
        "cost": {
            "dollars_per_hour": dollars_per_hour(plan.cluster),
            "dollars_per_million_tokens": dollars_per_million_tokens(plan.cluster, plan.tokens_per_second),
            "dollars_of_run": dollars_of_run(plan),
        },
        "batch": dict(plan.batch),
        "calibration": None if plan.calibration is None else asdict(plan.calibration),
        "issues": [_issue(issue) for issue in plan.issues],
        "alternatives": [_alternative(alternative) for alternative in plan.alternatives],
        "model": {
            "name": plan.model.name,
            "family": plan.model.family,
            "num_parameters": plan.model.num_parameters,
        },
        "config": {
            "hash": plan.config.hash(),
            "method": plan.config.method,
            "dtype": plan.config.dtype,
            "autocast": plan.config.autocast,
            "max_length": plan.config.max_length,
            "optimizations": _settings(plan.config.optimizations),
        },
        "cluster": {
            "gpu": plan.cluster.gpu.name,
            "kind": plan.cluster.gpu.kind,
            "num_gpus": plan.cluster.num_gpus,
            "source": plan.cluster.source,
        },
    }


def _gpu(gpu: GpuPlan, symbols: Mapping[str, int]) -> dict[str, Any]:
    return {
        "index": gpu.index,
        "usable_bytes": gpu.usable_bytes,
        "peak": {
            "allocated_bytes": gpu.allocated.peak_bytes,
            "reserved_bytes": gpu.reserved_bytes,
            "used_bytes": gpu.used_bytes,
            "band_bytes": list(gpu.band_bytes),
        },
        "allocated_bytes_by_instant": dict(gpu.allocated.by_instant()),
        "terms": [_term(term, symbols) for term in gpu.allocated.terms],
        "context_terms": [_term(term, symbols) for term in gpu.context_terms],
    }


def _term(term: Term, symbols: Mapping[str, int]) -> dict[str, Any]:
    return {
        "key": term.key,
        "part": term.part,
        "bytes": term.bytes,
        "instants": [instant for instant in INSTANTS if instant in term.instants],
        "basis": term.basis,
        "formula": term.formula,
        "numbers": with_numbers(term.formula, symbols),
        "source": term.source,
    }


def _issue(issue: Issue) -> dict[str, Any]:
    return {
        "code": issue.code,
        "severity": issue.severity,
        "what": issue.what,
        "why": issue.why,
        "fix": issue.fix,
        "suggestion": dict(issue.suggestion),
    }


def _alternative(alternative: Alternative) -> dict[str, Any]:
    return {
        "optimizations": _settings(alternative.optimizations),
        "changes": dict(alternative.changes),
        "verdict": alternative.verdict,
        "used_bytes": alternative.used_bytes,
        "tokens_per_second": alternative.tokens_per_second,
        "why": alternative.why,
        "peak_instant": alternative.peak_instant,
        "missing_bytes": alternative.missing_bytes,
        "share_of_best": alternative.share_of_best,
        "dollars_per_million_tokens": alternative.dollars_per_million_tokens,
    }


def _settings(settings: tuple[OptimizationSetting, ...]) -> dict[str, dict[str, Any]]:
    return {setting.name: setting.as_dict() for setting in settings}


def _capability(capability: tuple[int, int] | None) -> str | None:
    return None if capability is None else f"{capability[0]}.{capability[1]}"
