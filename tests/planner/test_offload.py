"""The plan of offloaded layer inputs: less on the GPU, the same bytes on the host, copies that hide behind compute."""

from __future__ import annotations

import pytest

from app.views.parts import setting_words
from core.optimizations.checkpoint_offload import CheckpointOffload
from planner.explain import COSTS
from planner.model_spec import model_spec_from_config
from planner.optimization import setting_of
from tests.planner.engine_bytes import step_peaks
from tests.planner.plans import (
    LEAN_LORA,
    QWEN_7B,
    SMOLLM2,
    account_of,
    cluster_of,
    codes,
    cpu_cluster,
    issue_of,
    plan_of,
    run_config,
)

GIB = 1024**3
OFFLOADED = {**LEAN_LORA, "checkpoint_offload": {}}


def layer_inputs(result, instant):
    specs = result.combined.specs
    return sum(spec.bytes for spec in specs if spec.key.startswith("layer_inputs") and instant in spec.instants)


@pytest.mark.parametrize(("kept", "on_gpu"), [(1, (2, 1, 1)), (10, (11, 10, 9)), (99, (28, 28, 28))])
def test_kept_layers_and_one_on_its_way_stay_on_the_gpu(kept, on_gpu):
    one = 2 * QWEN_7B.hidden_size * 8192
    result = account_of({**LEAN_LORA, "checkpoint_offload": {"kept_layers": kept}})
    instants = ("layer_forward", "forward_loss", "attention_backward")
    assert tuple(layer_inputs(result, instant) // one for instant in instants) == on_gpu


@pytest.mark.parametrize(("whole", "kept", "on_gpu"), [(1, 1, 1), (1, 3, 3), (12, 1, 1), (12, 3, 3)])
def test_nothing_is_on_its_way_beside_a_last_layer_that_is_not_recomputed(whole, kept, on_gpu):
    """One that is recomputed has its own input no more when its MLP runs backward, and the next one's on its way."""
    result = account_of(
        {
            "fused_loss": {}, "gradient_checkpointing": {"save_attention": True, "kept_layers": whole},
            "checkpoint_offload": {"kept_layers": kept},
        }
    )  # fmt: skip
    for instant in ("layer_backward", "attention_backward"):
        assert layer_inputs(result, instant) == on_gpu * 2 * QWEN_7B.hidden_size * 8192
        outputs = [spec for spec in result.combined.specs if spec.key.startswith("kept_attention.output")]
        held = sum(spec.bytes for spec in outputs if instant in spec.instants)
        assert held == on_gpu * 2 * QWEN_7B.q_width * 8192


def test_what_leaves_the_gpu_is_needed_on_the_host():
    plain, offloaded = (plan_of(optimizations, max_length=131072) for optimizations in (LEAN_LORA, OFFLOADED))
    moved = 27 * 2 * QWEN_7B.hidden_size * 131072
    assert offloaded.host_bytes - plain.host_bytes == moved
    saved = plain.worst_gpu.allocated.bytes_at("forward_loss") - offloaded.worst_gpu.allocated.bytes_at("forward_loss")
    assert saved == moved
    assert offloaded.seconds_per_step == pytest.approx(plain.seconds_per_step)  # 55 GB/s hides behind compute


@pytest.mark.parametrize(
    ("save_attention", "words"), [(False, "layers' inputs in"), (True, "layers' inputs and attention outputs in")]
)
def test_words_say_what_leaves(save_attention, words):
    keeping = {**OFFLOADED, "gradient_checkpointing": {"save_attention": save_attention}}
    host = {term.key: term.formula for term in plan_of(keeping).host_terms}
    assert words in host["pinned.checkpoints"]
    faces = (COSTS["checkpoint_offload"], CheckpointOffload.summary, setting_words(setting_of(CheckpointOffload())))
    assert all("inputs" not in face or "attention output" in face for face in faces)


def test_a_host_that_is_too_small_is_told():
    plan = plan_of(OFFLOADED, max_length=131072, cluster=cluster_of("H200", host_bytes_per_node=20 * GIB))
    assert plan.host_verdict == "over"


@pytest.mark.parametrize("save_attention", [False, True])
@pytest.mark.parametrize("engine", ["module", "layer"])
def test_on_a_cpu_it_moves_nothing_out_of_the_process(engine, save_attention):
    keeping = {"lora": {}, "gradient_checkpointing": {"save_attention": save_attention}, "fused_loss": {}}
    values = {"dtype": "float32", "max_length": 2048, "model": SMOLLM2, "engine": engine}
    plain, offloaded = (
        plan_of({**keeping, **extra}, cluster=cpu_cluster(), **values) for extra in ({}, {"checkpoint_offload": {}})
    )
    widths = SMOLLM2.hidden_size + (SMOLLM2.q_width if save_attention else 0)
    more = offloaded.worst_gpu.allocated.peak_bytes - plain.worst_gpu.allocated.peak_bytes
    assert 0 <= more <= 2 * 4 * widths * 2048  # of the layer at work and the one that arrives, which have slots as well
    assert offloaded.host_bytes > 0
    assert offloaded.host_bytes == offloaded.worst_gpu.used_bytes
    assert offloaded.seconds_per_step > plain.seconds_per_step
    assert "offload-on-cpu" in codes(offloaded)


CPU_SHAPE = {
    "model_type": "llama", "hidden_size": 192, "intermediate_size": 256, "num_hidden_layers": 6,
    "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 500, "tie_word_embeddings": True,
}  # fmt: skip


@pytest.mark.parametrize("kept", [1, 3])
@pytest.mark.parametrize("save_attention", [False, True])
@pytest.mark.parametrize("engine", ["module", "layer"])
def test_what_a_cpu_process_holds_with_it(engine, save_attention, kept):
    """Tensors and slots, counted as torch makes them."""
    checkpointing = {"gradient_checkpointing": {"save_attention": save_attention}}
    values = {
        "optimizations": {
            "lora": {"rank": 8}, "fused_loss": {"chunk_tokens": 64}, **checkpointing,
            "checkpoint_offload": {"kept_layers": kept},
        },
        "dtype": "float32", "max_length": 512, "engine": engine,
    }  # fmt: skip
    measured = step_peaks(CPU_SHAPE, run_config(**values), as_cuda=False)
    combined = account_of(model=model_spec_from_config("tiny", CPU_SHAPE), cluster=cpu_cluster(), **values).combined
    static = sum(
        spec.bytes for spec in combined.specs
        if spec.key.startswith(("weights", "optimizer")) or (spec.part == "runtime" and spec.key != "load.file_pages")
    )  # fmt: skip
    by_instant = combined.bytes_by_instant()
    of_backward = ("loss_backward", "layer_backward", "attention_backward", "backward_end")
    assert max(by_instant[i] for i in of_backward) - static == pytest.approx(measured["backward"], rel=0.03)
    assert by_instant["optimizer_step"] - static == pytest.approx(measured["optimizer_step"], rel=0.03)


def test_it_asks_for_checkpointing():
    without = {name: knobs for name, knobs in OFFLOADED.items() if name != "gradient_checkpointing"}
    plan = plan_of(without)
    assert "offload-without-checkpointing" in codes(plan)
    assert issue_of(plan, "offload-without-checkpointing").suggestion == (("gradient_checkpointing", True),)
