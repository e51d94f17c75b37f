"""Configurations, clusters and plans for the planner's tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.optimizations import REGISTRY
from planner.account import Account, account
from planner.catalog.gpus import GPUS, cpu_spec
from planner.catalog.models import MODELS
from planner.model_spec import model_spec_from_config
from planner.optimization import setting_of
from planner.plan import make_plan
from planner.types import (
    ClusterSpec,
    DataConfig,
    Environment,
    GpuSpec,
    Instant,
    ModelSpec,
    ParallelDegrees,
    Plan,
    RunConfig,
)

GIB = 1024**3


def catalog_model(name: str) -> ModelSpec:
    return model_spec_from_config(name, MODELS[name])


QWEN_7B = catalog_model("Qwen/Qwen2.5-7B-Instruct")
SMOLLM2 = catalog_model("HuggingFaceTB/SmolLM2-135M-Instruct")
PACKAGES = ("torch", "transformers", "peft", "bitsandbytes")
Optimizations = Mapping[str, Mapping[str, Any]]
LEAN_LORA: Optimizations = {"lora": {"rank": 64}, "gradient_checkpointing": {}, "fused_loss": {}, "packing": {}}


def run_config(optimizations: Optimizations = LEAN_LORA, **values: Any) -> RunConfig:
    """bf16, 8K, one GPU unless said otherwise; degrees are resolved as app/services/resolve.py does it."""
    degrees = values.pop("parallel", ParallelDegrees())
    spread = {"ulysses": degrees.ulysses, "ring": degrees.ring}
    wanted = {**optimizations, **{name: {"degree": n} for name, n in spread.items() if n > 1}}
    defaults: dict[str, Any] = {
        "name": "test", "model": "test", "dtype": "bfloat16", "autocast": False, "max_length": 8192,
        "data": DataConfig(train=("data.jsonl",)),
    }  # fmt: skip
    settings = tuple(setting_of(REGISTRY[name](**knobs)) for name, knobs in wanted.items())
    return RunConfig(**{**defaults, **values}, parallel=degrees, optimizations=settings)


def cluster_of(gpu: str | GpuSpec = "H200", count: int = 1, **values: Any) -> ClusterSpec:
    spec = GPUS[gpu] if isinstance(gpu, str) else gpu
    defaults: dict[str, Any] = {"host_bytes_per_node": 512 * GIB, "disk_free_bytes": None, "source": "assumed"}
    return ClusterSpec(gpu=spec, num_gpus_per_node=count, **{**defaults, **values})


def cpu_cluster(count: int = 1) -> ClusterSpec:
    return cluster_of(cpu_spec(16 * GIB, 1), count, host_bytes_per_node=64 * GIB)


def environment_of(cluster: ClusterSpec, packages: tuple[str, ...] = PACKAGES, source: str = "assumed") -> Environment:
    return Environment(
        source=source, packages=dict.fromkeys(packages, "1"), compute_capability=cluster.gpu.compute_capability
    )  # type: ignore[arg-type]


def plan_of(
    optimizations: Optimizations = LEAN_LORA, *, model: ModelSpec = QWEN_7B, cluster: ClusterSpec | None = None,
    alternatives: bool = False, expandable_segments: bool = True, environment: Environment | None = None, **values: Any,
) -> Plan:  # fmt: skip
    degrees = values.get("parallel", ParallelDegrees())
    cluster = cluster or cluster_of(count=degrees.world)
    return make_plan(
        config=run_config(optimizations, **values), model=model, cluster=cluster,
        environment=environment or environment_of(cluster), registry=REGISTRY, alternatives=alternatives,
        expandable_segments=expandable_segments,
    )  # fmt: skip


def account_of(
    optimizations: Optimizations = LEAN_LORA, *, model: ModelSpec = QWEN_7B, cluster: ClusterSpec | None = None,
    **values: Any,
) -> Account:  # fmt: skip
    degrees = values.get("parallel", ParallelDegrees())
    cluster = cluster or cluster_of(count=degrees.world)
    return account(run_config(optimizations, **values), model, cluster, environment_of(cluster), REGISTRY)


def codes(plan: Plan) -> set[str]:
    return {issue.code for issue in plan.issues}


def issue_of(plan: Plan, code: str) -> Any:
    return next(issue for issue in plan.issues if issue.code == code)


def bytes_of(result: Account, prefix: str, instant: Instant) -> int:
    """Of the terms whose key begins so."""
    return sum(s.bytes for s in result.combined.specs if s.key.startswith(prefix) and instant in s.instants)


def work_of(result: Account) -> dict[str, int]:
    return {item.key: item.amount for item in result.combined.work}
