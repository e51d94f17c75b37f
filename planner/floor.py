"""Weights on the GPU are a floor that nothing may break: said with the arithmetic and what would lower it.

Called by planner/plan.py when the weights alone exceed what a GPU can hold.
"""

from __future__ import annotations

from planner.account import Account
from planner.changes import changes_between
from planner.explain import gib
from planner.plan import weights_bytes
from planner.price import Candidate, price
from planner.space import Problem, by_other_methods, neighbours
from planner.types import Issue


def floor_issue(problem: Problem, result: Account) -> Issue:
    """The plan is over anyway; this says that no other optimization mends it, and names those that do."""
    weights, usable = weights_bytes(result), problem.cluster.gpu.usable_bytes
    formula = "; ".join(spec.formula for spec in result.combined.specs if spec.part == "weights")
    ways = [way for way in _ways(problem) if weights_bytes(way.result) < usable]
    words = []
    for way in ways:
        changes = changes_between(problem.registry, problem.config, way.config)
        keys = ", ".join(f"{key}: {_words(value)}" for key, value in changes)
        note = "" if problem.is_runnable(way.config) else ", planned, not yet runnable"
        words.append(f"{keys} ({gib(weights_bytes(way.result))} of weights{note})")
    return Issue(
        code="resident-weights-floor", severity="warning",
        what=f"The weights alone take {weights} bytes of each GPU, and {usable} are usable.",
        why=f"{formula}. Weights on the GPU are a floor: no other optimization lowers them.",
        fix=f"Set {'; or '.join(words)}." if words else "Use a GPU with more memory, or a smaller model.",
        suggestion=changes_between(problem.registry, problem.config, ways[0].config) if ways else (),
    )  # fmt: skip


def _ways(problem: Problem) -> list[Candidate]:
    """One decision away: those that can be run first."""
    configs = [*by_other_methods(problem, problem.config), *neighbours(problem, problem.config, planned=True)]
    priced = [candidate for config in configs if (candidate := price(problem, config)) is not None]
    return sorted(priced, key=lambda way: not problem.is_runnable(way.config))


def _words(value: object) -> str:
    """As it stands in a preset."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_words(item)}" for key, item in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)
