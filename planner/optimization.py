"""The contract of an optimization, as the planner sees it. The registry's objects come in; core is never imported.

One optimization = one file in core/optimizations (torch-free on import) + one line in its registry. The dataclass
fields are its knobs: CLI flags, forms, the preset schema and the docs pages are generated from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from dataclasses import field as dataclass_field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from planner.effects import Effect
from planner.errors import ConfigError
from planner.types import ClusterSpec, Environment, Issue, ModelSpec, OptimizationSetting, RunConfig

if TYPE_CHECKING:
    from core.optimizations.evidence import Evidence
    from core.train.setup import TrainingSetup
    from planner.parts.sizes import Sizes


def knob(default: Any, *, help: str, choices: tuple[Any, ...] = (), minimum: float | None = None) -> Any:
    """A dataclass field with what forms, flags and docs need to know about it."""
    return dataclass_field(default=default, metadata={"help": help, "choices": choices, "minimum": minimum})


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShape:
    """What one rank sees of a micro-batch."""

    tokens: int  # T: tokens of the residual stream held by this rank, padding included
    row_tokens: int  # tokens of the whole row over all sequence ranks, padding included
    q_heads: int  # query heads this rank attends with
    kv_heads: int
    attention_tokens: int  # queries of one attention call of this rank: all of its Ulysses group


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanContext:
    config: RunConfig
    model: ModelSpec
    cluster: ClusterSpec
    environment: Environment
    shape: RankShape  # after every enabled optimization's reshape
    sizes: Sizes  # the same as the symbols of the formulas


@runtime_checkable
class Optimization(Protocol):
    """Frozen dataclass, knobs as fields, torch-free until ``apply``."""

    name: ClassVar[str]  # canonical, as in presets: "fake_parallel"
    title: ClassVar[str]  # for people: "Fake parallel (head groups)"
    summary: ClassVar[str]  # one sentence: what it does and what it costs
    main_knob: ClassVar[str | None]  # set by a scalar in a preset: `ulysses: 2`
    stage: ClassVar[int]  # order of apply: 10 data, 20 weights, 30 adapters, 40 attention, 50 modules, 60 loss
    available: ClassVar[bool]  # False until apply exists: planned on request, never recommended, refused at launch
    # knobs that the search tries beside "off"; () where it leaves the preset's choice, or has a way of its own
    searched: ClassVar[tuple[Mapping[str, Any], ...]]

    def check(self, ctx: PlanContext) -> tuple[Issue, ...]:
        """Divisibility, GPU architecture, packages, conflicts. Errors refuse the run before weights load."""
        ...

    def reshape(self, shape: RankShape) -> RankShape: ...

    def effect(self, ctx: PlanContext) -> Effect: ...

    def apply(self, setup: TrainingSetup) -> None:
        """Change the run being set up (core/train/setup.py). Imports torch here, not before."""
        ...

    def verify(self, setup: TrainingSetup) -> Evidence:
        """Proof, after the first step, that it is active; raises when it is not."""
        ...


Registry = Mapping[str, type[Optimization]]


def instantiate(setting: OptimizationSetting, registry: Registry) -> Optimization:
    """
    Raises:
        ConfigError: a knob is below its minimum or not one of its choices.
    """
    optimization = registry[setting.name](**setting.as_dict())
    for field in fields(optimization):  # type: ignore[arg-type]
        value, least, choices = setting.as_dict().get(field.name), field.metadata["minimum"], field.metadata["choices"]
        where = f"{setting.name}.{field.name} is {value!r}."
        if value is None:
            continue
        if least is not None and value < least:
            raise ConfigError(where, why=field.metadata["help"].capitalize() + ".", fix=f"It is at least {least}.")
        if choices and value not in choices:
            raise ConfigError(where, why=field.metadata["help"].capitalize() + ".", fix=f"One of {', '.join(choices)}.")
    return optimization


def knob_defaults(optimization: type[Optimization]) -> dict[str, Any]:
    """Every knob of a registry entry with its default, in the order of its fields."""
    return {f.name: f.default for f in fields(optimization)}  # type: ignore[arg-type]


def setting_of(optimization: Optimization) -> OptimizationSetting:
    """The setting that gives this object back, every knob included."""
    knobs = tuple((f.name, getattr(optimization, f.name)) for f in fields(optimization))  # type: ignore[arg-type]
    return OptimizationSetting(name=optimization.name, knobs=knobs)
