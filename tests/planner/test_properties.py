"""What holds for every plan, whatever the model, length, method and degrees."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from core.optimizations import REGISTRY
from planner.account import account
from planner.parallel import legal_ulysses_degrees
from planner.parts.galore import PROJ_TYPES
from planner.types import INSTANTS, MasterWeights, Optim, ParallelDegrees
from tests.planner.plans import account_of, catalog_model, cluster_of, cpu_cluster, environment_of, plan_of, run_config

MODELS = (
    "Qwen/Qwen2.5-0.5B",
    "Qwen/Qwen2.5-7B",
    "Qwen/Qwen3-4B",
    "meta-llama/Llama-3.1-8B",
    "mistralai/Mistral-7B-v0.3",
)
ADAPTERS = st.fixed_dictionaries(
    {
        "rank": st.sampled_from([1, 8, 64]),
        "targets": st.sampled_from(["all-linear", "q_proj,v_proj", "down_proj", "gate_proj,up_proj,o_proj"]),
        "adapter_dtype": st.sampled_from(["float32", "bfloat16"]),
        "dropout": st.sampled_from([0.0, 0.1]),
    }
)
GALORE = st.fixed_dictionaries({"rank": st.sampled_from([4, 128, 600]), "proj_type": st.sampled_from(PROJ_TYPES)})
CHECKPOINTING = st.fixed_dictionaries({"save_attention": st.booleans(), "kept_layers": st.sampled_from([0, 1, 2, 11])})


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    model = catalog_model(draw(st.sampled_from(MODELS)))
    chosen: dict[str, dict[str, Any]] = {}
    method = draw(st.sampled_from(["full", "lora", "qlora"]))
    if method != "full":
        chosen[method] = draw(ADAPTERS)
    elif draw(st.booleans()):
        chosen["galore"] = draw(GALORE)
    if draw(st.booleans()):
        chosen["packing"] = {}
    if draw(st.booleans()):
        chosen["gradient_checkpointing"] = draw(CHECKPOINTING)
        if draw(st.booleans()):
            chosen["checkpoint_offload"] = {"kept_layers": draw(st.sampled_from([1, 5]))}
    if draw(st.booleans()):
        chosen["fused_loss"] = {"chunk_tokens": draw(st.sampled_from([1, 256, 1024, 100_000]))}
    if draw(st.booleans()):
        chosen["tiled_mlp"] = {"tiles": draw(st.sampled_from([1, 3, 8]))}
    if method != "full" and draw(st.booleans()):
        chosen["weight_streaming"] = {"embeddings": draw(st.sampled_from(["resident", "streamed"]))}
    elif draw(st.booleans()):
        chosen["fsdp"] = {}
    degrees = ParallelDegrees(
        data=draw(st.sampled_from([1, 2])),
        ring=draw(st.sampled_from([1, 2, 3])),
        ulysses=draw(st.sampled_from(legal_ulysses_degrees(model, 8))),
    )
    if degrees.sequence == 1 and draw(st.booleans()):
        chosen["fake_parallel"] = {"groups": draw(st.sampled_from([1, 2]))}
    return {
        "optim": draw(st.sampled_from(get_args(Optim))),
        "master_weights": draw(st.sampled_from(get_args(MasterWeights))),
        "update": "step" if "fsdp" in chosen else draw(st.sampled_from(["step", "layer"])),  # refused with it
        "optimizations": chosen,
        "model": model,
        "max_length": draw(st.integers(128, 200_000)),
        "per_device_train_batch_size": draw(st.integers(1, 4)),
        "gradient_accumulation_steps": draw(st.sampled_from([1, 4])),
        "autocast": draw(st.booleans()),
        "parallel": degrees,
    }


PROFILE = settings(max_examples=60 if settings.default.derandomize else 3000, deadline=None)


@given(cases())
@PROFILE
def test_no_term_is_negative_and_instants_are_sums_of_terms(case: dict[str, Any]) -> None:
    plan = plan_of(**case)
    for gpu in plan.gpus:
        assert all(term.bytes > 0 and term.instants and term.formula for term in gpu.allocated.terms)
        by_instant = gpu.allocated.by_instant()
        for instant in INSTANTS:
            assert by_instant[instant] == sum(t.bytes for t in gpu.allocated.terms if instant in t.instants)
        assert gpu.allocated.peak_bytes == max(by_instant.values())
        assert gpu.allocated.peak_bytes <= gpu.reserved_bytes <= gpu.used_bytes
        low, high = gpu.band_bytes
        assert low <= gpu.used_bytes <= high
        assert len({term.key for term in gpu.allocated.terms}) == len(gpu.allocated.terms)


@given(cases(), st.randoms(use_true_random=False))
@PROFILE
def test_any_order_of_the_optimizations_gives_the_same_plan(case: dict[str, Any], random: Any) -> None:
    config = run_config(**{key: value for key, value in case.items() if key != "model"})
    shuffled = list(config.optimizations)
    random.shuffle(shuffled)
    cluster = cluster_of(count=config.parallel.world)
    both = [
        account(c, case["model"], cluster, environment_of(cluster), REGISTRY)
        for c in (config, replace(config, optimizations=tuple(shuffled)))
    ]
    assert both[0].combined.specs == both[1].combined.specs
    assert both[0].combined.work == both[1].combined.work
    assert both[0].combined.issues == both[1].combined.issues == ()


@given(cases(), st.integers(1, 50_000))
@PROFILE
def test_a_longer_row_never_needs_less(case: dict[str, Any], more: int) -> None:
    longer = {**case, "max_length": case["max_length"] + more}
    before, after = account_of(**case).combined.bytes_by_instant(), account_of(**longer).combined.bytes_by_instant()
    assert all(before[instant] <= after[instant] for instant in INSTANTS)


@given(cases(), st.sampled_from(["ring", "ulysses"]), st.sampled_from([2, 3]))
@PROFILE
def test_a_higher_sequence_degree_never_raises_what_a_row_costs(case: dict[str, Any], axis: str, factor: int) -> None:
    degrees = case["parallel"]
    higher = replace(degrees, **{axis: getattr(degrees, axis) * factor})
    assume(higher.ulysses in legal_ulysses_degrees(case["model"], higher.ulysses))
    assume("fake_parallel" not in case["optimizations"])
    # lengths that both divide: otherwise padding is compared, not degrees
    case = {**case, "max_length": -(-case["max_length"] // 144) * 144 * 7}
    parts = ("checkpoints", "activations", "logits")
    before, after = (account_of(**{**case, "parallel": d}).combined.breakdown() for d in (degrees, higher))
    for instant in ("layer_forward", "forward_loss", "loss_backward", "layer_backward", "backward_end", "evaluation"):
        assert sum(after.by_part(instant).get(p, 0) for p in parts) <= sum(
            before.by_part(instant).get(p, 0) for p in parts
        )


@given(cases())
@PROFILE
def test_each_lever_lowers_what_it_is_for(case: dict[str, Any]) -> None:
    optimizations = {k: v for k, v in case["optimizations"].items() if k not in ("lora", "qlora", "galore")}
    methods: tuple[dict[str, Any], ...] = ({}, {"lora": {"rank": 8}}, {"qlora": {"rank": 8}})
    full, adapted, quantised = (
        account_of(**{**case, "optimizations": {**optimizations, **method}}).combined.breakdown() for method in methods
    )
    assert adapted.by_part("optimizer_step")["optimizer"] < full.by_part("optimizer_step")["optimizer"]
    assert quantised.by_part("load")["weights"] < adapted.by_part("load")["weights"]
    # on very short rows the recompute's own temporaries outweigh what it saves
    case = {**case, "max_length": case["max_length"] + 1024}
    levers = ("gradient_checkpointing", "checkpoint_offload")
    plain = {name: knobs for name, knobs in case["optimizations"].items() if name not in levers}
    kept, recomputed = (
        account_of(**{**case, "optimizations": chosen}).combined.breakdown()
        for chosen in (plain, {**plain, "gradient_checkpointing": {}})
    )
    # where all gradients together are the peak, the first layer's input is there beside what is recomputed from it
    first_input = next(term.bytes for term in recomputed.terms if term.key == "layer_inputs.last")
    assert recomputed.peak_bytes <= kept.peak_bytes + first_input


@given(cases(), st.sampled_from([1, 4, 100]))
@PROFILE
def test_offload_never_raises_what_the_gpu_holds(case: dict[str, Any], kept_layers: int) -> None:
    without = {name: knobs for name, knobs in case["optimizations"].items() if name != "checkpoint_offload"}
    without.setdefault("gradient_checkpointing", {})
    offloaded = {**without, "checkpoint_offload": {"kept_layers": kept_layers}}
    here, there = (
        account_of(**{**case, "optimizations": chosen}).combined.bytes_by_instant() for chosen in (without, offloaded)
    )
    assert all(there[instant] <= here[instant] for instant in INSTANTS)


@given(cases(), st.sampled_from(["resident", "streamed"]))
@PROFILE
def test_streamed_weights_never_raise_what_the_gpu_holds(case: dict[str, Any], embeddings: str) -> None:
    assume("lora" in case["optimizations"] or "qlora" in case["optimizations"])
    without = {n: knobs for n, knobs in case["optimizations"].items() if n not in ("weight_streaming", "fsdp")}
    streamed = {**without, "weight_streaming": {"embeddings": embeddings}}
    here, there = (
        account_of(**{**case, "optimizations": chosen}).combined.bytes_by_instant() for chosen in (without, streamed)
    )
    assert all(there[instant] <= here[instant] for instant in INSTANTS)


@given(cases())
@PROFILE
def test_4_bit_weights_never_need_more_at_rest(case: dict[str, Any]) -> None:
    """Wherever the weights are: resident, streamed, or in shards."""
    others = {n: knobs for n, knobs in case["optimizations"].items() if n not in ("lora", "qlora", "galore")}
    lora, qlora = (
        account_of(**{**case, "optimizations": {**others, method: {"rank": 8}}}).combined.breakdown()
        for method in ("lora", "qlora")
    )
    for instant in ("load", "optimizer_step", "save"):
        assert qlora.by_part(instant)["weights"] <= lora.by_part(instant)["weights"]


@given(st.integers(1, 8192), st.sampled_from([1, 2, 4]), st.booleans(), st.booleans())
@PROFILE
def test_cpu_plans_hold_the_same(length: int, ring: int, checkpointing: bool, fused: bool) -> None:
    chosen: dict[str, Any] = {"lora": {}}
    if checkpointing:
        chosen["gradient_checkpointing"] = {}
    if fused:
        chosen["fused_loss"] = {}
    plan = plan_of(
        chosen, model=catalog_model("HuggingFaceTB/SmolLM2-135M"), cluster=cpu_cluster(ring), dtype="float32",
        max_length=length, parallel=ParallelDegrees(ring=ring),
    )  # fmt: skip
    gpu = plan.gpus[0]
    assert gpu.allocated.peak_bytes <= gpu.reserved_bytes <= gpu.used_bytes
    baseline = next(term for term in gpu.context_terms if term.key == "process_baseline")
    assert baseline.basis == "assumed"
    assert plan.host_bytes == ring * gpu.used_bytes
