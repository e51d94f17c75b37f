"""What has been measured against the planner, and whether a configuration lies within it.

Outside, a plan that would fit is called `unverified`: its formula may hold, and nobody has seen it. The rows are data
(planner/validated_rows.py, written by benchmarks/planner_validated.py from benchmarks/results) and the rehearsals of
this machine (planner/calibration.py). CPU processes are not judged by rows of GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.types import Issue, ModelSpec, RunConfig

WITHOUT_MEMORY = frozenset({"packing", "flash_attention"})  # they move no byte but a kernel's scratch
METHODS = frozenset({"lora", "qlora"})  # told apart by ``method``


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a measured run was, or a plan is, as far as its bytes depend on it."""

    family: str
    method: str
    features: frozenset[str]
    tokens_per_rank: int
    world: int


def facts_of(config: RunConfig, model: ModelSpec) -> Facts:
    row = config.per_device_train_batch_size * config.max_length
    return Facts(
        family=model.family, method=config.method, features=features_of(config),
        tokens_per_rank=-(-row // config.parallel.sequence), world=config.parallel.world,
    )  # fmt: skip


def features_of(config: RunConfig) -> frozenset[str]:
    """Entries that are on, and knobs of them that are off (false or 0) by default and are not."""
    features = {setting.name for setting in config.optimizations} - METHODS - WITHOUT_MEMORY
    for setting in config.optimizations:
        switched_on = (knob for knob, value in setting.knobs if value and knob in _OFF_BY_DEFAULT.get(setting.name, ()))
        features |= {f"{setting.name}.{knob}" for knob in switched_on}
    if config.optim != "adamw_torch":
        features.add(f"optim.{config.optim}")
    if config.engine != "module":
        features.add(f"engine.{config.engine}")
    if config.dtype != "bfloat16":
        features.add(f"dtype.{config.dtype}")
    return frozenset(features)


_OFF_BY_DEFAULT = {
    "gradient_checkpointing": ("save_attention", "kept_layers"),
    "lora": ("dropout",),
    "qlora": ("dropout",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """What rows cover. Each fact is looked up by itself: rows of every combination would be needed otherwise."""

    families: frozenset[str]
    methods: frozenset[str]
    features: frozenset[str]
    tokens_per_rank: int
    world: int

    def outside(self, facts: Facts) -> tuple[str, ...]:
        """What of it no row has, in words; empty within the range."""
        unseen: list[str] = []
        if facts.family not in self.families:
            unseen.append(f"family {facts.family}")
        if facts.method not in self.methods:
            unseen.append(f"method {facts.method}")
        unseen += sorted(facts.features - self.features)
        if facts.tokens_per_rank > self.tokens_per_rank:
            unseen.append(f"{facts.tokens_per_rank} tokens a GPU (up to {self.tokens_per_rank})")
        if facts.world > self.world:
            unseen.append(f"{facts.world} GPUs")
        return tuple(unseen)


def range_of(rows: Sequence[Facts]) -> Range:
    return Range(
        families=frozenset(row.family for row in rows), methods=frozenset(row.method for row in rows),
        features=frozenset[str]().union(*(row.features for row in rows)),
        tokens_per_rank=max((row.tokens_per_rank for row in rows), default=0),
        world=max((row.world for row in rows), default=0),
    )  # fmt: skip


def unverified_issue(unseen: tuple[str, ...]) -> Issue:
    return Issue(
        code="never-measured", severity="info", what=f"Never measured: {', '.join(unseen)}.",
        why="Its bytes follow from formulas whose other parts were checked against real runs (benchmarks/results).",
        fix="`longfit rehearse` measures three steps on this machine and corrects the plan.",
    )  # fmt: skip
