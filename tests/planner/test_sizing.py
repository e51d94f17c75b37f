"""Which hardware and how many GPUs: the fewest is exact, rejected offers say when and by how much."""

from __future__ import annotations

from typing import Any

import pytest

from core.optimizations import REGISTRY
from planner.catalog.gpus import GPUS
from planner.errors import ConfigError
from planner.optimization import Registry
from planner.price import price
from planner.sizing import Offer, Sizing, best_hardware, fewest_gpus
from planner.space import Problem, candidates
from planner.types import ParallelDegrees
from tests.planner.plans import QWEN_7B, catalog_model, cluster_of, environment_of, run_config

RESIDENT = {name: entry for name, entry in REGISTRY.items() if name not in ("weight_streaming", "fsdp")}
LORA: dict[str, Any] = {"lora": {"rank": 16, "adapter_dtype": "bfloat16"}}


def offers(gpu: str, *counts: int) -> list[Offer]:
    clusters = [cluster_of(gpu, count) for count in counts]
    return [(cluster, environment_of(cluster)) for cluster in clusters]


def fewest(gpu: str, *counts: int, registry: Registry = REGISTRY, **values: Any) -> Sizing:
    config = run_config(LORA, **values)
    return fewest_gpus(offers(gpu, *counts), config=config, model=QWEN_7B, registry=registry)


def anything_fits(gpu: str, count: int, **values: Any) -> bool:
    """Tiles of the MLP are the preset's choice in the search, and a decision of the ladder."""
    cluster = cluster_of(gpu, count)
    problems = [
        Problem(
            config=run_config({**LORA, **tiles}, parallel=ParallelDegrees(data=count), **values), model=QWEN_7B,
            cluster=cluster, environment=environment_of(cluster), registry=RESIDENT,
        )
        for tiles in ({}, {"tiled_mlp": {"tiles": 8}}, {"tiled_mlp": {"tiles": 32}})
    ]  # fmt: skip
    priced = (price(problem, config) for problem in problems for config in candidates(problem))
    return any(c is not None and c.verdict != "over" and c.config.method == "lora" for c in priced)


def test_the_fewest_gpus_are_exactly_those_that_the_whole_space_needs() -> None:
    found = fewest("A10", 1, 2, 3, 4, max_length=131072, registry=RESIDENT)
    (answer,) = found.answers
    count = answer.cluster.num_gpus
    assert count > 1
    assert [sized.cluster.num_gpus for sized in found.rejected] == list(range(1, count))
    assert anything_fits("A10", count, max_length=131072)
    assert not anything_fits("A10", count - 1, max_length=131072)


def test_an_answer_fits_also_where_the_search_alone_has_none() -> None:
    """Full fine-tuning of a 7B model in 24 GB takes another optimizer, which the search leaves as it is."""
    config = run_config({}, max_length=8192)
    found = fewest_gpus(
        offers("RTX-4090", 1), config=config, model=catalog_model("mistralai/Mistral-7B-v0.3"), registry=REGISTRY
    )
    (answer,) = found.answers
    assert answer.best is not None
    assert answer.best.verdict not in ("over", "tight")
    assert answer.best.used_bytes == answer.needed_bytes < GPUS["RTX-4090"].usable_bytes
    assert {"galore", "update"} <= dict(answer.best.changes).keys()


def test_streamed_weights_need_fewer() -> None:
    resident, streamed = (fewest("A10", 1, 2, 3, 4, max_length=131072, registry=r) for r in (RESIDENT, REGISTRY))
    assert streamed.answers[0].cluster.num_gpus < resident.answers[0].cluster.num_gpus
    assert "weight_streaming" in dict(streamed.answers[0].best.changes)  # type: ignore[union-attr]


def test_longer_rows_never_need_fewer() -> None:
    lengths = (8192, 49152, 131072)
    counts = [fewest("A10", 1, 2, 3, 4, max_length=n, registry=RESIDENT).answers[0].cluster.num_gpus for n in lengths]
    assert counts == sorted(counts)


def test_what_is_rejected_says_when_and_by_how_much() -> None:
    found = fewest("RTX-3060-12G", 1, 2, registry=RESIDENT)
    assert not found.answers
    for sized in found.rejected:
        assert sized.peak_instant is not None
        assert sized.missing_bytes == sized.needed_bytes - GPUS["RTX-3060-12G"].usable_bytes > 0
        assert "GiB are missing" in sized.why


def test_a_refusal_is_said_once_and_has_its_reason() -> None:
    found = fewest("T4", 1, 2, 4)
    assert [sized.cluster.num_gpus for sized in found.rejected] == [1]
    assert "no bfloat16" in found.rejected[0].why


def best(goal: str, *gpus: str, **values: Any) -> Sizing:
    config = run_config(LORA, **values)
    return best_hardware(
        [offers(gpu, 1, 2) for gpu in gpus], config=config, model=QWEN_7B, registry=RESIDENT, goal=goal
    )


def test_each_goal_has_its_order() -> None:
    gpus = ("A10", "L4", "H100-80G", "RTX-3060-12G")
    fastest = best("fastest", *gpus)
    assert [sized.cluster.gpu.name for sized in fastest.answers] == ["H100-80G", "A10", "L4"]
    smallest = best("smallest", *gpus)
    sizes = [sized.cluster.num_gpus * sized.cluster.gpu.memory_bytes for sized in smallest.answers]
    assert sizes == sorted(sizes)
    cheapest = best("cheapest", *gpus)
    prices = [sized.dollars_per_million_tokens for sized in cheapest.answers]
    assert None not in prices
    assert prices == sorted(prices)  # type: ignore[type-var]
    assert [sized.cluster.gpu.name for sized in cheapest.without_price] == ["A10"]
    assert [sized.cluster.gpu.name for sized in cheapest.rejected] == ["RTX-3060-12G"]


def test_the_method_is_kept() -> None:
    found = best("fastest", "RTX-4090")
    assert "lora" in {setting.name for setting in found.answers[0].best.optimizations}  # type: ignore[union-attr]


def test_longest_is_no_question_about_hardware() -> None:
    with pytest.raises(ConfigError, match="cannot be ranked by the goal longest"):
        best("longest", "A10")
