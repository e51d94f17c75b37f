"""Memory that is left over buys speed: fewer layers are recomputed; where it lacks, the MLP runs by tiles. Called by
planner/search.py.
"""

from __future__ import annotations

from dataclasses import replace

from planner.optimization import knob_defaults
from planner.price import ROOMY, Candidate, price
from planner.space import Problem
from planner.types import OptimizationSetting, RunConfig

ENTRY, KNOB = "gradient_checkpointing", "kept_layers"
TILES = "tiled_mlp"


def spend(problem: Problem, candidate: Candidate) -> Candidate | None:
    """The same with the most layers kept that still fit; None where no layer more does, or it brings no speed."""
    setting = candidate.config.optimization(ENTRY)
    if setting is None or candidate.verdict not in ROOMY:
        return None
    least, most = setting.as_dict()[KNOB], problem.model.num_layers - 1
    best: Candidate | None = None
    while least < most:  # more kept layers never need less: bisection
        middle = (least + most + 1) // 2
        found = price(problem, _keeping(problem, candidate.config, setting, middle))
        if found is not None and found.verdict in ROOMY:
            best, least = found, middle
        else:
            most = middle - 1
    return best if best is not None and best.tokens_per_second > candidate.tokens_per_second else None


def tighten(problem: Problem, candidate: Candidate) -> Candidate | None:
    """The same with the MLP by tiles; None where it has them, or a check refuses them."""
    if TILES not in problem.registry or candidate.config.optimization(TILES) is not None:
        return None
    if not problem.can_run(TILES, candidate.config):
        return None
    tiled = OptimizationSetting(name=TILES, knobs=tuple(knob_defaults(problem.registry[TILES]).items()))
    order = list(problem.registry)
    settings = sorted((*candidate.config.optimizations, tiled), key=lambda setting: order.index(setting.name))
    return price(problem, replace(candidate.config, optimizations=tuple(settings)))


def _keeping(problem: Problem, config: RunConfig, setting: OptimizationSetting, layers: int) -> RunConfig:
    knobs = {**knob_defaults(problem.registry[ENTRY]), **setting.as_dict(), KNOB: layers}
    kept = OptimizationSetting(name=ENTRY, knobs=tuple(knobs.items()))
    settings = tuple(kept if other.name == ENTRY else other for other in config.optimizations)
    return replace(config, optimizations=settings)
