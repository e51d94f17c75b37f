"""From a preset and overrides to one RunConfig with nothing left open, for one cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.services.hardware import environment_for, preset_cluster
from app.services.models import find_model
from app.services.preset_keys import DATA_KEYS, RUN_KEYS, check_keys, check_value, optimization_keys
from app.services.presets import merge_overrides
from core.optimizations import REGISTRY
from planner.errors import ConfigError
from planner.layer_policy import layer_engine_obstacle
from planner.optimization import setting_of
from planner.parallel import choose_degrees
from planner.types import (
    ClusterSpec,
    DataConfig,
    Environment,
    ModelSpec,
    OptimizationSetting,
    ParallelDegrees,
    Preset,
    RunConfig,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    preset: Preset
    values: Mapping[str, Any]  # the preset's values with the overrides laid over them
    config: RunConfig
    model: ModelSpec
    cluster: ClusterSpec
    environment: Environment


def resolve(
    preset: Preset, overrides: Mapping[str, Any] | None = None, *, cluster: ClusterSpec | None = None
) -> Resolved:
    """Raises: ConfigError for an unknown key, a wrong type, or a degree that cannot be."""
    values = merge_overrides(preset.values, overrides or {})
    where = f"preset {preset.name}"
    check_keys(values, [*(key.name for key in RUN_KEYS), *REGISTRY], where=where)
    for key in RUN_KEYS:
        if key.required and values.get(key.name) is None:
            raise ConfigError(f"{where}: the key {key.name!r} is missing.", why=f"It says: {key.help}.")
    run = {key.name: check_value(key, values.get(key.name), where=where) for key in RUN_KEYS}
    sequence_parallel = run.pop("sequence_parallel")
    model, location = find_model(run.pop("model"))
    cluster = cluster or preset_cluster(preset.hardware)
    settings = [
        setting for name in REGISTRY if (setting := _setting(name, values.get(name), where=where)) is not None
    ]  # fmt: skip
    degrees = _degrees(model, cluster, settings, sequence_parallel)
    settings = _with_degrees(settings, degrees)
    autocast, engine = run.pop("autocast"), run.pop("engine")
    config = RunConfig(
        name=preset.name,
        model=location,
        autocast=_needs_autocast(run["dtype"], settings) if autocast is None else autocast,
        data=data_config(run.pop("data"), where=f"{where}: data"),
        rope_scaling=tuple(sorted((run.pop("rope_scaling") or {}).items())),
        parallel=degrees,
        optimizations=tuple(settings),
        engine="layer" if engine == "layer" else "module",
        **run,
    )
    if engine == "auto" and cluster.gpu.kind == "cuda" and layer_engine_obstacle(config, model) is None:
        config = replace(config, engine="layer")
    return Resolved(
        preset=preset, values=values, config=config, model=model, cluster=cluster, environment=environment_for(cluster)
    )


def _setting(name: str, value: Any, *, where: str) -> OptimizationSetting | None:
    """``true``, a mapping of knobs, or a scalar for the main knob; false and null leave it off."""
    if isinstance(value, str) and value.lower() in ("true", "false"):
        value = value.lower() == "true"
    if value is None or value is False:
        return None
    cls = REGISTRY[name]
    keys = {key.name: key for key in optimization_keys(name, REGISTRY)}
    if value is True:
        given: dict[str, Any] = {}
    elif isinstance(value, Mapping):
        check_keys(value, keys, where=f"{where}: {name}")
        given = dict(value)
    elif cls.main_knob is not None:
        given = {cls.main_knob: value}
    else:
        raise ConfigError(
            f"{where}: {name} is {value!r}.",
            why="It can be true, false" + (f", or a mapping of {', '.join(keys)}." if keys else "."),
        )
    return setting_of(cls(**{knob: check_value(keys[knob], v, where=f"{where}: {name}") for knob, v in given.items()}))


def _degrees(
    model: ModelSpec, cluster: ClusterSpec, settings: list[OptimizationSetting], sequence_parallel: int
) -> ParallelDegrees:
    asked = {s.name: s.as_dict()["degree"] for s in settings if s.name in ("ulysses", "ring")}
    wanted = max(sequence_parallel, asked.get("ulysses", 1) * asked.get("ring", 1))
    if cluster.num_gpus == 1 and wanted > 1:
        device = "one process" if cluster.gpu.kind == "cpu" else "one GPU"
        raise ConfigError(
            f"sequence parallelism over {wanted} ranks is asked for, on {device}.",
            why="It spreads a row over several GPUs; on one there is nothing to spread over.",
            fix=f"Write fake_parallel: {wanted} instead: the same head groups, one after another.",
        )
    return choose_degrees(
        model, cluster.num_gpus, sequence_parallel=sequence_parallel if sequence_parallel > 1 else None,
        ulysses=asked.get("ulysses"), ring=asked.get("ring"), gpus_per_node=cluster.num_gpus_per_node,
    )  # fmt: skip


def _with_degrees(settings: list[OptimizationSetting], degrees: ParallelDegrees) -> list[OptimizationSetting]:
    """The chosen degrees as registry entries; a degree of one is no entry."""
    chosen = {"ulysses": degrees.ulysses, "ring": degrees.ring}
    kept = {s.name: s for s in settings if s.name not in chosen}
    for name, degree in chosen.items():
        if degree > 1:
            kept[name] = setting_of(REGISTRY[name](degree=degree))
    return [kept[name] for name in REGISTRY if name in kept]


def _needs_autocast(dtype: str, settings: list[OptimizationSetting]) -> bool:
    """Adapters wider than a 16-bit base need it: without, fp32 inputs are kept for every adapted linear."""
    adapters = next((s for s in settings if s.name in ("lora", "qlora")), None)
    return dtype != "float32" and adapters is not None and adapters.as_dict()["adapter_dtype"] == "float32"


def data_config(given: Mapping[str, Any], *, where: str) -> DataConfig:
    """The data keys of a preset. Raises: ConfigError for an unknown key or a value of the wrong type."""
    check_keys(given, [key.name for key in DATA_KEYS], where=where)
    if not given.get("train"):
        raise ConfigError(f"{where}: the key 'train' is missing.", why="It names the files to train on.")
    values = {key.name: check_value(key, given.get(key.name), where=where) for key in DATA_KEYS}
    mappings = {
        name: tuple(sorted((str(key), value) for key, value in values[name].items())) for name in ("weights", "columns")
    }  # fmt: skip
    return DataConfig(**values | mappings)


def with_cluster(resolved: Resolved, cluster: ClusterSpec) -> Resolved:
    """The same run on other hardware of the same number of GPUs."""
    return replace(resolved, cluster=cluster, environment=environment_for(cluster))
