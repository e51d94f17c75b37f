"""Every configuration that the registry and the hardware allow around the one at hand. Called by planner/search.py and
planner/ladder.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from planner.account import PlainPath, plain_path
from planner.calibration import Experience
from planner.layer_policy import CARRIED_OUT, SAME_WITHOUT, layer_engine_obstacle
from planner.optimization import Optimization, PlanContext, RankShape, Registry, instantiate, knob_defaults
from planner.parallel import check_ring_model, legal_ulysses_degrees
from planner.types import ClusterSpec, Environment, ModelSpec, Optim, OptimizationSetting, ParallelDegrees, RunConfig

OPTIMS: tuple[Optim, ...] = ("adamw_torch", "adamw_torch_fused")  # the same numbers: the search may swap them
SMALLER_OPTIMS: tuple[Optim, ...] = ("adamw_8bit", "paged_adamw_8bit")  # other numbers: a rung of the ladder
STREAMING = "weight_streaming"
FINER: Mapping[str, tuple[Mapping[str, Any], ...]] = {  # knobs that the ladder tries too: less memory for more launches
    "fused_loss": ({"chunk_tokens": 256},),
    "tiled_mlp": ({"tiles": 32},),
    STREAMING: ({"embeddings": "streamed"},),
}
ADAPTERS = ("lora", "qlora")
SPREAD = ("ulysses", "ring")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What stays the same over all candidates, and what many of them share."""

    config: RunConfig
    model: ModelSpec
    cluster: ClusterSpec
    environment: Environment
    registry: Registry
    expandable_segments: bool = True
    experience: Experience = field(default_factory=Experience)
    _built: dict[OptimizationSetting, Optimization] = field(default_factory=dict)
    _plain: dict[tuple[RankShape, str, str, tuple[int, ...]], PlainPath] = field(default_factory=dict)

    def built(self, setting: OptimizationSetting) -> Optimization:
        if setting not in self._built:
            self._built[setting] = instantiate(setting, self.registry)
        return self._built[setting]

    def is_runnable(self, config: RunConfig) -> bool:
        """Whether every part of it has its trainer's half."""
        return all(self.can_run(setting.name, config) for setting in config.optimizations)

    def can_run(self, name: str, config: RunConfig) -> bool:
        """The layer engine carries out some entries itself."""
        return self.registry[name].available or (config.engine == "layer" and name in CARRIED_OUT)

    def plain(self, ctx: PlanContext) -> PlainPath:
        """Candidates differ in shape, optimizer, update and batches only, as far as the plain path is concerned."""
        config = ctx.config
        batches = (config.max_length, config.per_device_eval_batch_size, config.gradient_accumulation_steps)
        key = (ctx.shape, config.optim, config.update, batches)
        if key not in self._plain:
            self._plain[key] = plain_path(ctx)
        return self._plain[key]


def candidates(problem: Problem) -> Iterator[RunConfig]:
    """Every combination of the registry's entries and of degrees that this hardware allows."""
    for by_method in candidates_by_method(problem):
        yield from by_method


def candidates_by_method(problem: Problem) -> Iterator[Iterator[RunConfig]]:
    """The same, the method at hand first and those below it after."""
    enabled = {setting.name: setting for setting in problem.config.optimizations}
    return (_candidates(problem, method) for method in _methods(problem, enabled))


def _candidates(problem: Problem, method: list[OptimizationSetting]) -> Iterator[RunConfig]:
    config, registry = problem.config, problem.registry
    enabled = {setting.name: setting for setting in config.optimizations}
    without = SAME_WITHOUT if config.engine == "layer" and method else ()
    switches = [
        _options(registry, name, enabled) for name in registry if registry[name].searched and name not in without
    ]
    chosen_elsewhere = {*ADAPTERS, *SPREAD, "fake_parallel"}
    untouched = [
        setting
        for name, setting in enabled.items()
        if name not in chosen_elsewhere and not registry[name].searched
    ]  # fmt: skip
    combinations = [[s for s in chosen if s is not None] for chosen in product(*switches)]
    for degrees in _degrees(problem):
        spread = _spread(registry, degrees)
        optims = OPTIMS if not method and config.optim in OPTIMS else (config.optim,)
        autocast = config.autocast if method == _own_method(enabled) else _autocast(config, method)
        for groups, optim, chosen in product(_head_groups(problem, degrees), optims, combinations):
            settings = _in_order(registry, [*method, *chosen, *untouched, *spread, *groups])
            yield replace(config, parallel=degrees, optim=optim, autocast=autocast, optimizations=settings)


def plainest(problem: Problem) -> RunConfig:
    """The method at hand over replicas, with nothing that the search could switch off."""
    config, registry = problem.config, problem.registry
    kept = [
        setting
        for setting in config.optimizations
        if setting.name in ADAPTERS
        or not (registry[setting.name].searched or setting.name in (*SPREAD, "fake_parallel"))
    ]
    degrees = ParallelDegrees(data=problem.cluster.num_gpus)
    optim = OPTIMS[0] if config.method == "full" else config.optim
    return replace(
        config, parallel=degrees, optim=optim, update="step", engine="module", optimizations=_in_order(registry, kept)
    )


def by_other_methods(problem: Problem, config: RunConfig) -> Iterator[RunConfig]:
    """``config`` by each method below that of the config at hand."""
    enabled = {setting.name: setting for setting in problem.config.optimizations}
    for method in _methods(problem, enabled)[1:]:
        kept = [setting for setting in config.optimizations if setting.name not in ADAPTERS]
        yield replace(
            config, autocast=_autocast(config, method), optimizations=_in_order(problem.registry, [*kept, *method])
        )


def neighbours(problem: Problem, config: RunConfig, *, planned: bool) -> Iterator[RunConfig]:
    """What is one decision away: an entry switched on or with other knobs, other degrees, engine or optimizer.

    ``planned``: entries that cannot be run yet are taken too. What the layer engine cannot do falls to the modules.
    """
    for found in _one_away(problem, config, planned):
        by_modules = found.engine == "layer" and layer_engine_obstacle(found, problem.model) is not None
        choice = replace(found, engine="module") if by_modules else found
        if planned or problem.is_runnable(choice):
            yield choice


def _one_away(problem: Problem, config: RunConfig, planned: bool) -> Iterator[RunConfig]:
    registry = problem.registry
    enabled = {setting.name: setting for setting in config.optimizations}
    for name, entry in registry.items():
        if name in (*ADAPTERS, *SPREAD) or not (planned or problem.can_run(name, config)):
            continue
        if name == "fake_parallel":
            options = [groups[0] for groups in _head_groups(problem, config.parallel) if groups]
        else:
            own = enabled[name].as_dict() if name in enabled else {}
            knobs = (*(entry.searched or ({},)), *FINER.get(name, ()))
            options = [OptimizationSetting(name=name, knobs=_merged(registry, name, {**own, **k})) for k in knobs]
        for option in options:
            if option == enabled.get(name):
                continue
            settings = _in_order(registry, [*{**enabled, name: option}.values()])
            yield replace(config, optimizations=settings)
            if config.optim in SMALLER_OPTIMS:  # what goes with none of these takes their place
                yield replace(config, optim=OPTIMS[0], optimizations=settings)
    for degrees in _degrees(problem):
        if degrees != config.parallel:
            kept = [setting for setting in config.optimizations if setting.name not in SPREAD]
            settings = _in_order(registry, [*kept, *_spread(registry, degrees)])
            yield replace(config, parallel=degrees, optimizations=settings)
    if config.engine != "layer" and layer_engine_obstacle(config, problem.model) is None:
        yield replace(config, engine="layer")
    if config.method == "full":
        yield from (replace(config, optim=optim) for optim in (*OPTIMS, *SMALLER_OPTIMS) if optim != config.optim)
        if config.update != "layer":
            yield updated_in_backward(config)


def streamed(problem: Problem, config: RunConfig) -> Iterator[RunConfig]:
    """Adapters over frozen weights that wait in host memory: embeddings and head on the GPU, or there too."""
    can = STREAMING in problem.registry and problem.can_run(STREAMING, config)
    if not can or config.method == "full" or config.optimization(STREAMING) is not None:
        return
    for knobs in ({}, *FINER[STREAMING]):
        setting = OptimizationSetting(name=STREAMING, knobs=_merged(problem.registry, STREAMING, dict(knobs)))
        yield replace(config, optimizations=_in_order(problem.registry, [*config.optimizations, setting]))


def sharded(problem: Problem, config: RunConfig) -> Iterator[RunConfig]:
    """Shards over all ranks, computed by transformers' modules: with Liger, and without, in the layer engine's place.
    None with head groups: where ranks share weights they can share a row. Of two optimizers of the same numbers the
    fused one, whose update holds nothing."""
    registry = problem.registry
    others = {"fsdp", STREAMING, "qlora", "fake_parallel"}
    is_cut = config.parallel.world > 1 and _offered(registry, "fsdp")
    is_twin = config.method == "full" and config.optim == OPTIMS[0]
    if not is_cut or is_twin or any(setting.name in others for setting in config.optimizations):
        return
    with_liger = config.engine == "layer" and _offered(registry, "liger") and config.optimization("liger") is None
    for names in (("fsdp",), ("liger", "fsdp")) if with_liger else (("fsdp",),):
        settings = [*config.optimizations, *(_default(registry, name) for name in names)]
        yield replace(config, engine="module", update="step", optimizations=_in_order(registry, settings))


def updated_in_backward(config: RunConfig) -> RunConfig:
    """`update: layer`, without what that cannot do (planner/update_checks.py): clip, or sum over micro-batches."""
    return replace(config, update="layer", max_grad_norm=0.0, gradient_accumulation_steps=1)


def _in_order(registry: Registry, settings: list[OptimizationSetting]) -> tuple[OptimizationSetting, ...]:
    order = {name: index for index, name in enumerate(registry)}
    return tuple(sorted(settings, key=lambda setting: order[setting.name]))


def _spread(registry: Registry, degrees: ParallelDegrees) -> list[OptimizationSetting]:
    """The degrees as registry entries; a degree of one is no entry."""
    return [
        _with_knob(registry, name, "degree", degree)
        for name, degree in zip(SPREAD, (degrees.ulysses, degrees.ring), strict=True)
        if degree > 1
    ]


def _methods(problem: Problem, enabled: dict[str, OptimizationSetting]) -> list[list[OptimizationSetting]]:
    """The method at hand, and those below it in memory."""
    own = _own_method(enabled)
    names = [setting.name for setting in own]
    methods = [own]
    if not names and _offered(problem.registry, "lora"):
        methods.append([_default(problem.registry, "lora")])
    if names != ["qlora"] and _offered(problem.registry, "qlora") and problem.cluster.gpu.kind == "cuda":
        knobs = own[0].as_dict() if own else {}
        methods.append([OptimizationSetting(name="qlora", knobs=_merged(problem.registry, "qlora", knobs))])
    return methods


def _own_method(enabled: dict[str, OptimizationSetting]) -> list[OptimizationSetting]:
    return [enabled[name] for name in ADAPTERS if name in enabled]


def _autocast(config: RunConfig, method: list[OptimizationSetting]) -> bool:
    return config.dtype != "float32" and any(s.as_dict().get("adapter_dtype") == "float32" for s in method)


def _degrees(problem: Problem) -> list[ParallelDegrees]:
    """Every legal data x ring x ulysses of this world."""
    world = problem.cluster.num_gpus
    ring_is_legal = not check_ring_model(problem.model, problem.config.max_length)
    return [
        ParallelDegrees(data=world // (ulysses * ring), ring=ring, ulysses=ulysses)
        for ulysses in legal_ulysses_degrees(problem.model, min(world, problem.cluster.num_gpus_per_node))
        for ring in (range(1, world // ulysses + 1) if ring_is_legal else (1,))
        if world % (ulysses * ring) == 0
    ]


def _head_groups(problem: Problem, degrees: ParallelDegrees) -> list[list[OptimizationSetting]]:
    """Without, and with each legal number of groups; where a row is spread already, ranks are the better groups."""
    if degrees.sequence > 1 or not _offered(problem.registry, "fake_parallel"):
        return [[]]
    kv_heads = problem.model.num_kv_heads
    return [
        [],
        *(
            [_with_knob(problem.registry, "fake_parallel", "groups", groups)]
            for groups in range(2, kv_heads + 1)
            if kv_heads % groups == 0
        ),
    ]


def _options(
    registry: Registry, name: str, enabled: dict[str, OptimizationSetting]
) -> list[OptimizationSetting | None]:
    """Off, as the preset has it, and what the entry offers."""
    own = [enabled[name]] if name in enabled else []
    if not registry[name].available:
        return [*own] or [None]
    knobs = own[0].as_dict() if own else {}
    offered = [
        OptimizationSetting(name=name, knobs=_merged(registry, name, {**knobs, **searched}))
        for searched in registry[name].searched
    ]
    return [None, *dict.fromkeys([*own, *offered])]


def _offered(registry: Registry, name: str) -> bool:
    return name in registry and registry[name].available


def _default(registry: Registry, name: str) -> OptimizationSetting:
    return OptimizationSetting(name=name, knobs=_merged(registry, name, {}))


def _with_knob(registry: Registry, name: str, knob: str, value: int) -> OptimizationSetting:
    return OptimizationSetting(name=name, knobs=_merged(registry, name, {knob: value}))


def _merged(registry: Registry, name: str, knobs: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """All knobs of an optimization, in the order of its fields, with ``knobs`` over the defaults."""
    return tuple((knob, knobs.get(knob, default)) for knob, default in knob_defaults(registry[name]).items())
