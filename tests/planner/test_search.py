"""The recommendation and the inverse questions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from core.optimizations import REGISTRY
from planner.account import account
from planner.catalog.gpus import GPUS
from planner.errors import ConfigError
from planner.optimization import setting_of
from planner.plan import make_plan
from planner.price import ROOMY, price
from planner.search import largest, largest_batch, longest_length, recommend
from planner.space import Problem, candidates
from planner.spend import spend
from planner.types import Alternative, ParallelDegrees
from tests.planner.plans import GIB, LEAN_LORA, QWEN_7B, SMOLLM2, cluster_of, cpu_cluster, environment_of, run_config


def arguments(
    optimizations: dict[str, Any] | None = None, gpu: str = "A10", count: int = 1, **values: Any
) -> dict[str, Any]:
    cluster = cluster_of(gpu, count)
    values.setdefault("parallel", ParallelDegrees(data=count))
    return {
        "config": run_config(LEAN_LORA if optimizations is None else optimizations, **values), "model": QWEN_7B,
        "cluster": cluster, "environment": environment_of(cluster), "registry": REGISTRY,
    }  # fmt: skip


def names(alternative: Alternative) -> set[str]:
    return {setting.name for setting in alternative.optimizations}


def test_the_whole_space_is_priced_as_plans_are() -> None:
    """The numeric path and the plan give equal bytes, for every candidate."""
    given = arguments(count=4, gpu="A100-40G", autocast=True)
    problem = Problem(**given, expandable_segments=True)
    seen = 0
    for config in candidates(problem):
        candidate = price(problem, config)
        if candidate is None:
            continue
        plan = make_plan(**{**given, "config": config})
        gpu = plan.gpus[0]
        assert candidate.sizes.by_instant == gpu.allocated.by_instant()
        assert (candidate.sizes.reserved, candidate.sizes.used) == (gpu.reserved_bytes, gpu.used_bytes)
        assert (candidate.verdict, candidate.tokens_per_second) == (plan.verdict, plan.tokens_per_second)
        seen += 1
    assert seen >= 32  # 6 splits of 4 GPUs, head groups, checkpointing and fused loss on or off


def test_what_the_layer_engine_does_anyway_is_no_candidate() -> None:
    """With Liger it is the same run, priced once."""
    given = arguments({**LEAN_LORA, "liger": {}}, gpu="H100-80G", count=2, engine="layer")
    problem = Problem(**given)
    liger = setting_of(REGISTRY["liger"]())
    configs = list(candidates(problem))
    assert not any(config.optimization("liger") for config in configs)
    for config in configs:
        without, with_it = (
            price(problem, replace(config, optimizations=settings))
            for settings in (config.optimizations, (liger, *config.optimizations))
        )
        assert (without is None) == (with_it is None)
        if without is not None and with_it is not None:
            assert with_it.sizes.by_instant == without.sizes.by_instant
            assert with_it.tokens_per_second == without.tokens_per_second
    modules = candidates(Problem(**{**given, "config": replace(given["config"], engine="module")}))
    assert any(config.optimization("liger") for config in modules)


def test_the_fastest_that_fits_comes_first() -> None:
    found = recommend(**arguments(count=2, gpu="A10", autocast=True), limit=100)
    fitting = [a for a in found if a.verdict in ROOMY]
    assert fitting
    assert all(a.verdict in ROOMY for a in found[: len(fitting)])
    speeds = [a.tokens_per_second for a in fitting if "lora" in names(a)]  # the method at hand comes first
    assert speeds == sorted(speeds, reverse=True)
    assert "the fastest that fits" in fitting[0].why
    assert "fused_loss" in names(fitting[0])


def test_the_cost_against_the_best_is_a_number_too() -> None:
    fitting = [a for a in recommend(**arguments(gpu="A40"), limit=100) if a.verdict in ROOMY and "lora" in names(a)]
    assert fitting[0].share_of_best == 1
    for alternative in fitting:
        assert alternative.share_of_best == alternative.tokens_per_second / fitting[0].tokens_per_second
        assert alternative.missing_bytes == 0


def test_memory_left_over_buys_layers_that_are_not_recomputed() -> None:
    given = arguments(gpu="A40")
    best = recommend(**given)[0]
    kept = next(s for s in best.optimizations if s.name == "gradient_checkpointing").as_dict()["kept_layers"]
    assert 0 < kept < QWEN_7B.num_layers
    config = replace(given["config"], optimizations=best.optimizations)
    problem = Problem(**{**given, "config": config})
    one_more = spend(problem, price(problem, config))  # type: ignore[arg-type]
    assert one_more is None
    settings = tuple(
        replace(s, knobs=tuple({**s.as_dict(), "kept_layers": kept + 1}.items()))
        if s.name == "gradient_checkpointing"
        else s
        for s in best.optimizations
    )
    fuller = price(problem, replace(config, optimizations=settings))
    assert fuller is not None
    assert fuller.verdict not in ROOMY


def test_cheapest_has_a_price_or_says_that_there_is_none() -> None:
    found = recommend(**arguments(gpu="L40S", count=2), goal="cheapest")
    assert found[0].dollars_per_million_tokens == pytest.approx(
        2 * GPUS["L40S"].dollars_per_hour / 3600 * 1e6 / found[0].tokens_per_second
    )
    assert [a.tokens_per_second for a in found] == [
        a.tokens_per_second for a in recommend(**arguments(gpu="L40S", count=2))
    ]
    with pytest.raises(ConfigError, match="cheapest has no answer on T4"):
        recommend(**arguments(gpu="T4"), goal="cheapest")
    assert recommend(**arguments(gpu="A10"))[0].dollars_per_million_tokens is None


def test_with_memory_to_spare_nothing_is_recomputed() -> None:
    best = recommend(**arguments(gpu="H200", autocast=True))[0]
    assert "gradient_checkpointing" not in names(best)


def test_what_is_over_says_when_and_by_how_much() -> None:
    found = recommend(**arguments({"lora": {"rank": 64}}, max_length=16384), limit=1000)
    over = [a for a in found if a.verdict == "over"]
    assert any("in the backward of the loss" in a.why for a in over)
    for alternative in over:
        assert "GiB are missing" in alternative.why
        assert alternative.peak_instant is not None
        assert alternative.missing_bytes == alternative.used_bytes - GPUS["A10"].usable_bytes > 0


def test_what_the_host_cannot_hold_says_how_much_is_missing() -> None:
    given = arguments(LEAN_LORA)
    given["cluster"] = replace(given["cluster"], host_bytes_per_node=3 * GIB)
    found = recommend(**given, limit=100)
    short = [a for a in found if a.verdict == "over" and "host memory" in a.why]
    assert short
    for alternative in short:
        assert alternative.used_bytes <= GPUS["A10"].usable_bytes
        assert f"{alternative.missing_bytes / GIB:.1f} GiB of host memory are missing" in alternative.why


def test_changes_lead_from_the_config_to_the_alternative() -> None:
    found = recommend(**arguments({"lora": {"rank": 64}}, count=2), limit=100)
    wanted = {"gradient_checkpointing": True, "fused_loss": 1024, "sequence_parallel": 2, "ulysses": 2}
    assert any(dict(a.changes) == wanted for a in found)
    same = recommend(**arguments(LEAN_LORA), limit=100)
    assert any(a.changes == () for a in same)


def test_head_groups_that_change_nothing_are_not_listed() -> None:
    found = recommend(**arguments(LEAN_LORA), limit=100)
    assert len({(a.used_bytes, a.tokens_per_second) for a in found}) == len(found)


def test_switching_off_is_false() -> None:
    found = recommend(**arguments(LEAN_LORA, gpu="H200"), limit=100)
    assert any(dict(a.changes).get("gradient_checkpointing") is False for a in found)


def test_knobs_stay_as_they_are() -> None:
    for alternative in recommend(**arguments({"lora": {"rank": 7, "targets": "q_proj"}}), limit=100):
        adapters = next(s for s in alternative.optimizations if s.name in ("lora", "qlora")).as_dict()
        assert (adapters["rank"], adapters["targets"]) == (7, "q_proj")


def test_full_training_stays_ahead_of_adapters_where_it_fits() -> None:
    found = recommend(**arguments({}, gpu="H200"), limit=100)
    methods = [bool(names(a) & {"lora", "qlora"}) for a in found if a.verdict in ROOMY]
    assert methods == sorted(methods)
    assert True in methods
    assert False in methods


def test_what_is_not_available_is_never_recommended() -> None:
    class Hidden(REGISTRY["fused_loss"]):  # type: ignore[misc, name-defined]
        available = False

    given = arguments({"lora": {"rank": 64}})
    given["registry"] = {**REGISTRY, "fused_loss": Hidden}
    assert all("fused_loss" not in names(a) for a in recommend(**given, limit=100))


def test_a_cpu_gets_no_gpu_only_method() -> None:
    cluster = cpu_cluster(2)
    found = recommend(
        config=run_config({"lora": {}}, dtype="float32", max_length=1024, parallel=ParallelDegrees(data=2)),
        model=SMOLLM2, cluster=cluster, environment=environment_of(cluster), registry=REGISTRY, limit=100,
    )  # fmt: skip
    assert found
    assert all("qlora" not in names(a) for a in found)
    assert any("ring" in names(a) for a in found)
    assert all("ulysses" not in names(a) for a in found)  # 9 and 3 heads


@pytest.mark.parametrize("goal", ["smallest", "longest"])
def test_other_goals_rank_differently(goal: str) -> None:
    given = arguments(gpu="H200", autocast=True)
    found = recommend(**given, goal=goal, limit=3)
    fastest = recommend(**given, limit=1)[0]
    assert found[0].used_bytes < fastest.used_bytes
    if goal == "smallest":
        assert [a.used_bytes for a in found] == sorted(a.used_bytes for a in found)


def test_the_longest_rows_are_those_of_the_longest_length() -> None:
    given = arguments(gpu="A10")
    found = recommend(**given, goal="longest", limit=4)
    lengths = [int(a.why.split("up to ")[1].split()[0]) for a in found]
    assert lengths == sorted(lengths, reverse=True)
    for alternative, length in zip(found, lengths, strict=True):
        config = replace(given["config"], optimizations=alternative.optimizations)
        assert longest_length(**{**given, "config": config}) == length


def test_an_unknown_goal_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="prettiest") as refused:
        recommend(**arguments(), goal="prettiest")
    assert "fastest" in refused.value.why


def test_longest_length_ends_at_the_positions_of_the_model_and_of_its_scaling() -> None:
    def longest(**values: Any) -> int:
        return longest_length(**arguments(gpu="H200", autocast=True, **values))

    assert longest() == 32768
    assert longest(rope_scaling=(("factor", 2.0), ("type", "yarn"))) == 65536


def test_longest_length_is_the_edge() -> None:
    given = arguments(autocast=True)
    longest = longest_length(**given)
    assert longest % 256 == 0
    assert longest > 8192

    def verdict(length: int) -> str:
        return make_plan(**{**given, "config": replace(given["config"], max_length=length)}).verdict

    assert verdict(longest) == "tight"
    assert verdict(longest + 256) == "over"


def test_longest_length_grows_with_the_sequence_degree_and_is_zero_when_weights_do_not_fit() -> None:
    one = longest_length(**arguments(autocast=True))
    stretched = (("factor", 4.0), ("type", "yarn"))
    four = longest_length(
        **arguments(count=4, parallel=ParallelDegrees(ulysses=4), autocast=True, rope_scaling=stretched)
    )
    # exchange buffers and NCCL are paid for; the row is shared
    assert 2.5 * one < four < 4 * one
    assert longest_length(**arguments(gpu="T4")) == 0


def test_largest_batch_is_the_edge() -> None:
    given = arguments(gpu="A100-80G", autocast=True)
    batch = largest_batch(**given)
    assert batch > 1

    def used(rows: int) -> int:
        result = make_plan(**{**given, "config": replace(given["config"], per_device_train_batch_size=rows)})
        return result.gpus[0].used_bytes

    usable = GPUS["A100-80G"].usable_bytes
    assert used(batch) <= usable < used(batch + 1)
    assert largest_batch(**arguments(gpu="T4")) == 0


@pytest.mark.parametrize("edge", [0, 1, 2, 3, 7, 8, 9, 64, 99, 100])
def test_largest_finds_every_edge(edge: int) -> None:
    assert largest(lambda n: n <= edge, 100) == edge


def test_largest_stops_at_its_bound() -> None:
    assert largest(lambda n: True, 100) == 100


def test_candidates_only_differ_in_what_may_change() -> None:
    given = arguments(LEAN_LORA, count=2, autocast=True)
    problem = Problem(**given, expandable_segments=True)
    for config in candidates(problem):
        assert (
            replace(config, optimizations=given["config"].optimizations, parallel=given["config"].parallel)
            == given["config"]
        )
        assert config.parallel.world == 2
        assert account(config, QWEN_7B, given["cluster"], given["environment"], REGISTRY).combined.issues == ()


def test_where_nothing_fits_the_lowest_are_tried_with_the_mlp_by_tiles() -> None:
    given = arguments({"lora": {"rank": 16, "adapter_dtype": "bfloat16"}}, gpu="A10", max_length=49152)
    given["registry"] = {name: entry for name, entry in REGISTRY.items() if name != "weight_streaming"}
    best = recommend(**given)[0]
    assert best.verdict != "over"
    assert "tiled_mlp" in names(best)
    assert dict(best.changes)["tiled_mlp"] == 8
    short = recommend(**{**given, "config": replace(given["config"], max_length=4096)}, limit=100)
    assert all("tiled_mlp" not in names(alternative) for alternative in short)


@pytest.mark.parametrize("gpu", ["RTX-3060-12G", "A10"])
def test_streamed_weights_are_recommended_where_resident_ones_do_not_fit(gpu: str) -> None:
    """Without a word of it in the preset: LoRA on 7B weights, 14.2 GiB of them, at 8K in 12 GB."""
    best, *others = recommend(**arguments({"lora": {"rank": 16}}, gpu=gpu, max_length=8192), limit=1000)
    assert best.verdict in ROOMY
    assert ("weight_streaming" in names(best)) == (gpu == "RTX-3060-12G")
    if gpu == "A10":
        assert all("weight_streaming" not in names(other) for other in others)


def test_the_head_is_streamed_with_the_chunked_loss_only() -> None:
    found = recommend(**arguments({"lora": {"rank": 16}}, gpu="RTX-3060-12G", max_length=8192), limit=1000)
    streamed = [a for a in found if dict(a.changes).get("weight_streaming") == "streamed"]
    assert streamed
    assert all("fused_loss" in names(alternative) for alternative in streamed)
