"""Where the search cuts weights over the ranks, without a word of it in the preset, and where it does not."""

from __future__ import annotations

from typing import Any

import pytest

from core.optimizations import REGISTRY
from planner.price import ROOMY
from planner.search import recommend
from planner.types import Alternative, ModelSpec, ParallelDegrees
from tests.planner.plans import QWEN_7B, catalog_model, cluster_of, environment_of, run_config

LORA: dict[str, Any] = {"lora": {"rank": 64, "adapter_dtype": "bfloat16"}}
LLAMA_70B = "meta-llama/Llama-3.3-70B-Instruct"


def found(
    optimizations: dict[str, Any], gpu: str, count: int, model: ModelSpec = QWEN_7B, **values: Any
) -> tuple[Alternative, ...]:
    cluster = cluster_of(gpu, count)
    config = run_config(optimizations, parallel=ParallelDegrees(data=count), **values)
    return recommend(
        config=config, model=model, cluster=cluster, environment=environment_of(cluster), registry=REGISTRY, limit=1000
    )  # fmt: skip


def names(alternative: Alternative) -> set[str]:
    return {setting.name for setting in alternative.optimizations}


def test_full_fine_tuning_that_fits_on_shards_only() -> None:
    alternatives = found({}, "H100-80G", 8, master_weights="fp32")
    assert alternatives[0].verdict in ROOMY
    roomy = [names(alternative) for alternative in alternatives if alternative.verdict in ROOMY]
    own = [chosen for chosen in roomy if not chosen & {"lora", "qlora"}]
    assert own
    assert all("fsdp" in chosen for chosen in own)


def test_adapters_of_a_model_that_no_gpu_holds() -> None:
    best = found(LORA, "H100-80G", 8, catalog_model(LLAMA_70B), engine="layer")[0]
    assert best.verdict in ROOMY
    assert "fsdp" in names(best)
    assert dict(best.changes)["engine"] == "module"


@pytest.mark.parametrize(
    ("optimizations", "count"), [(LORA, 8), (LORA, 1), ({"qlora": {}}, 8)], ids=["room", "one GPU", "NF4"]
)
def test_where_weights_stay_whole(optimizations: dict[str, Any], count: int) -> None:
    alternatives = found(optimizations, "H200", count)
    assert alternatives[0].verdict in ROOMY
    assert all("fsdp" not in names(alternative) for alternative in alternatives)


def test_full_fine_tuning_with_room_has_both_and_ranks_them_by_speed() -> None:
    """On shards nothing has to be recomputed."""
    alternatives = [a for a in found({}, "H100-80G", 8) if a.verdict in ROOMY]
    whole = [a for a in alternatives if "fsdp" not in names(a)]
    assert whole
    assert "fsdp" in names(alternatives[0])
    assert "gradient_checkpointing" not in names(alternatives[0])
    assert alternatives[0].tokens_per_second > max(a.tokens_per_second for a in whole)
