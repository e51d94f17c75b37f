"""The post-mortem of a run without memory: its moment and parts, and changes that fit when they are planned again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.services.planning import plan_preset
from core.run.oom import explain_out_of_memory
from planner.plan_json import plan_to_dict
from planner.types import Preset


def planned(length, gpu="A10", **values):
    keys = {
        "model": "Qwen/Qwen2.5-7B-Instruct", "max_length": length, "data": {"train": ["x.jsonl"]},
        "lora": {"rank": 64, "adapter_dtype": "bfloat16"}, **values,
    }  # fmt: skip
    return plan_preset(Preset(name="p", description="", values=keys, hardware={"gpu": gpu})).plan


def advice(plan, instant="backward", **more):
    return explain_out_of_memory(plan.config, plan_to_dict(plan), instant=instant, **more)


def test_it_names_the_parts_of_the_moment_largest_first():
    plan = planned(8192)
    parts = advice(plan)["parts"]
    assert parts[0]["part"] in ("activations", "weights", "checkpoints")
    assert [entry["bytes"] for entry in parts] == sorted((entry["bytes"] for entry in parts), reverse=True)
    moments = ("loss_backward", "layer_backward", "attention_backward", "backward_end")
    assert sum(entry["bytes"] for entry in parts) == max(plan.worst_gpu.allocated.bytes_at(m) for m in moments)


@pytest.mark.parametrize(("length", "gpu"), [(8192, "A10"), (32768, "A100-80G")])
def test_three_changes_each_of_which_fits_when_planned_again(length, gpu):
    plan = planned(length, gpu)
    assert plan.verdict == "over"
    changes = advice(plan)["changes"]
    assert len(changes) == 3
    for entry in changes:
        values = {**entry["changes"]}
        again = planned(values.pop("max_length", length), gpu, **values)
        assert again.verdict != "over", entry
        assert again.config.method == plan.config.method


def test_a_plan_that_was_wrong_asks_for_less_than_it_said():
    plan = planned(8192, gradient_checkpointing=True, fused_loss=True, gpu="A100-40G")
    assert plan.verdict == "fits"
    needed = plan.worst_gpu.used_bytes
    for entry in advice(plan)["changes"]:
        values = {**entry["changes"]}
        length = values.pop("max_length", 8192)
        keys = {"gradient_checkpointing": True, "fused_loss": True, **values}
        assert planned(length, "A100-40G", **keys).worst_gpu.used_bytes < needed


def test_what_others_took_of_the_card_is_not_counted_on():
    """The plan was made for an empty card; when the run failed, tensors could have had 24 GiB of it."""
    plan = planned(32768, gpu="A100-80G")
    known = advice(plan, allocatable_bytes=24 * 1024**3)
    context = plan.worst_gpu.used_bytes - plan.worst_gpu.reserved_bytes
    assert known["usable_bytes"] == 24 * 1024**3 + context
    assert len(known["changes"]) == 3
    for entry in known["changes"]:
        values = {**entry["changes"]}
        again = planned(values.pop("max_length", 32768), "A100-80G", **values)
        assert again.worst_gpu.used_bytes <= known["usable_bytes"], entry


def test_a_run_without_a_plan_has_no_advice():
    plan = planned(8192)
    assert explain_out_of_memory(plan.config, {}, instant="forward") == {
        "instant": "forward", "parts": [], "changes": [], "usable_bytes": None
    }  # fmt: skip


def test_a_model_that_is_gone_leaves_the_parts():
    plan = planned(8192)
    known = explain_out_of_memory(replace(plan.config, model="/gone"), plan_to_dict(plan), instant="forward")
    assert known["parts"]
    assert known["changes"] == []
