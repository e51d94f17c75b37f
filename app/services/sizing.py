"""Which hardware for a run: the fewest GPUs of a type, the best type of the catalog. Used by `longfit fit`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from app.services.hardware import environment_for, find_gpu, parse_cluster
from app.services.resolve import Resolved
from core.optimizations import REGISTRY
from planner.catalog.gpus import GPUS
from planner.errors import ConfigError
from planner.sizing import Offer, Sizing, best_hardware, fewest_gpus
from planner.types import Preset

METHODS = ("full", "lora", "qlora")
GPUS_OF_A_NODE = 8
COUNTS_TO_RENT = (1, 2, 4, 8)
COUNTS_OF_ONE_TYPE = (*range(1, GPUS_OF_A_NODE + 1), *range(2 * GPUS_OF_A_NODE, 65, GPUS_OF_A_NODE))


def preset_of_model(model: str) -> Preset:
    """A preset that says no more than the model; LoRA until told otherwise."""
    values = {"model": model, "data": {"train": ["train.jsonl"]}, "lora": True}
    return Preset(name=model.split("/")[-1].lower(), description="", values=values)


def method_overrides(values: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Overrides that leave exactly this method; an adapter's knobs are carried over. Raises: ConfigError."""
    if method not in METHODS:
        raise ConfigError(f"There is no method {method}.", why=f"Known: {', '.join(METHODS)}.")
    knobs = next((values[name] for name in ("lora", "qlora") if values.get(name)), True)
    return {name: knobs if name == method else None for name in ("lora", "qlora")}


def hardware_for(resolved: Resolved, *, goal: str = "fastest") -> Sizing:
    """Every type of the catalog, of each the fewest that fit. Raises: ConfigError for a goal that is none here."""
    types = (_offers(name, COUNTS_TO_RENT) for name in GPUS)
    return best_hardware(types, config=resolved.config, model=resolved.model, registry=REGISTRY, goal=goal)


def fewest_gpus_for(resolved: Resolved, gpu: str) -> Sizing:
    """Raises: ConfigError with the nearest names of GPUs."""
    offers = _offers(find_gpu(gpu).name, COUNTS_OF_ONE_TYPE)
    return fewest_gpus(offers, config=resolved.config, model=resolved.model, registry=REGISTRY)


def _offers(name: str, counts: tuple[int, ...]) -> Iterator[Offer]:
    """Whole nodes beyond one."""
    for count in counts:
        nodes = max(1, count // GPUS_OF_A_NODE)
        cluster = parse_cluster(f"{count // nodes}x{name}", num_nodes=nodes)
        yield cluster, environment_for(cluster)
