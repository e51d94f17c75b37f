"""Dollars, from the catalog's price of an hour. Called by the search, by planner/sizing.py and by plan_json."""

from __future__ import annotations

from planner.types import ClusterSpec, Plan


def dollars_per_hour(cluster: ClusterSpec) -> float | None:
    """Of all GPUs together; None where the catalog has no price."""
    price = cluster.gpu.dollars_per_hour
    return None if price is None else price * cluster.num_gpus


def dollars_per_million_tokens(cluster: ClusterSpec, tokens_per_second: float) -> float | None:
    hourly = dollars_per_hour(cluster)
    return None if hourly is None else hourly / 3600 * 1e6 / tokens_per_second


def dollars_of_run(plan: Plan) -> float | None:
    """Of all optimizer steps; None without a price, or where the number of steps follows from the data."""
    hourly, steps = dollars_per_hour(plan.cluster), plan.config.max_steps
    return None if hourly is None or steps < 1 else hourly / 3600 * plan.seconds_per_step * steps
