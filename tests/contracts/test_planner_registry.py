"""What every registry entry owes the planner: names, knobs, checks, order-free effects, formulas, no torch."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from core.optimizations import REGISTRY
from planner.account import whole_shape
from planner.errors import ConfigError
from planner.optimization import Optimization, instantiate, knob_defaults, setting_of
from planner.types import INSTANTS, ParallelDegrees
from tests.planner.plans import LEAN_LORA, account_of, cluster_of, codes, environment_of, issue_of, plan_of

ROOT = Path(__file__).parents[2]
NAMES = list(REGISTRY)
# a configuration in which each entry is at home
HOME: dict[str, dict[str, Any]] = {
    "ulysses": {"parallel": ParallelDegrees(ulysses=2)},
    "ring": {"parallel": ParallelDegrees(ring=2)},
    "galore": {"optimizations": {**{k: v for k, v in LEAN_LORA.items() if k != "lora"}, "galore": {"rank": 128}}},
    "fsdp": {"parallel": ParallelDegrees(data=2), "optimizations": {**LEAN_LORA, "fsdp": {}}},
}
SPREAD = ("ulysses", "ring")


def home_of(name: str) -> dict[str, Any]:
    values = dict(HOME.get(name, {}))
    if name not in HOME:
        others = {k: v for k, v in LEAN_LORA.items() if not (name == "qlora" and k == "lora")}
        knobs = {"groups": 2} if name == "fake_parallel" else {}
        values["optimizations"] = {**others, name: knobs}
    return values


def without(name: str) -> dict[str, Any]:
    values = home_of(name)
    if name in SPREAD:
        return {}
    rest = {k: v for k, v in values["optimizations"].items() if k != name}
    return {**values, "optimizations": {**rest, "lora": {"rank": 16}} if name == "qlora" else rest}


@pytest.mark.parametrize("name", NAMES)
def test_entries_say_who_they_are(name: str) -> None:
    cls = REGISTRY[name]
    assert is_dataclass(cls)
    assert cls.name == name
    assert cls.title
    assert cls.summary.endswith(".")
    assert isinstance(cls(), Optimization) or not cls.available
    defaults = knob_defaults(cls)
    assert cls.main_knob is None or cls.main_knob in defaults
    for field in fields(cls):
        assert field.metadata["help"]
        assert not field.metadata["choices"] or field.default in field.metadata["choices"]


@pytest.mark.parametrize("name", NAMES)
def test_a_setting_gives_the_same_object_back(name: str) -> None:
    optimization = REGISTRY[name]()
    setting = setting_of(optimization)
    assert instantiate(setting, REGISTRY) == optimization
    assert dict(setting.knobs) == knob_defaults(REGISTRY[name])


@pytest.mark.parametrize("name", NAMES)
def test_entries_plan_without_errors_where_they_are_at_home(name: str) -> None:
    plan = plan_of(**home_of(name))
    assert [issue for issue in plan.issues if issue.severity == "error"] == []
    assert name in {setting.name for setting in plan.config.optimizations}


@pytest.mark.parametrize("name", NAMES)
def test_effects_explain_themselves(name: str) -> None:
    result = account_of(**home_of(name))
    effect = next(o for o in result.optimizations if o.name == name).effect(result.ctx)
    for claim in (*effect.add, *effect.drop, *effect.confine, *effect.scale, *effect.add_work, *effect.drop_work):
        assert claim.formula, claim.key
    for term in effect.add:
        assert term.bytes >= 0
        assert term.instants <= set(INSTANTS)
    assert result.combined.issues == ()


LOWERS = {
    "lora": "optimizer_step", "qlora": "load", "gradient_checkpointing": "forward_loss",
    "fused_loss": "loss_backward", "ulysses": "layer_backward", "ring": "layer_backward",
    "fake_parallel": "layer_backward", "liger": "layer_backward", "checkpoint_offload": "forward_loss",
    "galore": "optimizer_step", "tiled_mlp": "layer_backward", "weight_streaming": "load", "fsdp": "load",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_each_lowers_the_instant_it_is_for(name: str) -> None:
    with_it, bare = account_of(**home_of(name)).combined, account_of(**without(name)).combined
    # a plan is made for a full row, which packing does not change; flash_attention is for time
    if name in ("packing", "flash_attention"):
        assert with_it.specs == bare.specs
        return
    instant = LOWERS[name]
    assert with_it.bytes_by_instant()[instant] < bare.bytes_by_instant()[instant]  # type: ignore[index]


@pytest.mark.parametrize("name", NAMES)
def test_reshape_keeps_whole_numbers_and_the_identity_at_one(name: str) -> None:
    result = account_of(parallel=ParallelDegrees(), max_length=1000)
    shape = whole_shape(result.ctx.config, result.ctx.model)
    knobs = {"degree": 1} if name in SPREAD else {}
    assert REGISTRY[name](**knobs).reshape(shape) == shape


BELOW_MINIMUM: list[tuple[str, str, Any]] = [
    ("lora", "rank", 0), ("lora", "alpha", 0), ("lora", "dropout", -0.1), ("lora", "adapter_dtype", "int8"),
    ("fused_loss", "chunk_tokens", 0), ("fake_parallel", "groups", 0), ("ulysses", "degree", 0), ("ring", "degree", 0),
]  # fmt: skip


@pytest.mark.parametrize(("name", "knob", "value"), BELOW_MINIMUM)
def test_knobs_outside_their_range_are_refused_by_name(name: str, knob: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name}.{knob} is {value!r}"):
        plan_of({**LEAN_LORA, name: {knob: value}})


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("lora", {"dropout": 1.0}, "lora-dropout"),
    ("lora", {"targets": "q_proj,wq"}, "lora-targets"),
    ("lora", {"targets": "lm_head"}, "lora-targets"),
    ("lora", {"targets": ""}, "lora-targets"),
    ("fake_parallel", {"groups": 3}, "fake-parallel-groups"),
    ("ulysses", {"degree": 2}, "ulysses-degree-gpus"),
]


@pytest.mark.parametrize(("name", "knobs", "code"), REFUSED)
def test_impossible_knobs_are_refused_with_what_why_and_fix(name: str, knobs: dict[str, Any], code: str) -> None:
    issue = issue_of(plan_of({**LEAN_LORA, name: knobs}), code)
    assert issue.severity == "error"
    assert issue.what
    assert issue.why
    assert issue.fix


def test_a_head_adapter_is_refused_because_it_could_not_train() -> None:
    assert "chunked loss" in issue_of(plan_of({"lora": {"targets": "lm_head"}}), "lora-targets").why


def test_an_illegal_ulysses_degree_lists_the_legal_ones() -> None:
    issue = issue_of(plan_of(parallel=ParallelDegrees(ulysses=7), cluster=cluster_of(count=7)), "ulysses-degree-heads")
    assert "28 query heads" in issue.why
    assert "1, 2, 4" in issue.fix


def test_head_groups_go_with_ranks_when_the_heads_allow_and_never_with_dropout() -> None:
    groups = {**LEAN_LORA, "fake_parallel": {"groups": 2}}
    two = {"cluster": cluster_of(count=2)}
    assert codes(plan_of(groups, parallel=ParallelDegrees(ulysses=2), **two)) == {"never-measured"}
    four = {"parallel": ParallelDegrees(ulysses=4), "cluster": cluster_of(count=4)}
    assert "14 query and 2 KV heads" in issue_of(plan_of(groups, **four), "fake-parallel-ulysses").why
    dropout = {**groups, "lora": {"dropout": 0.1}}
    assert "fake-parallel-dropout" in codes(plan_of(dropout))


def test_lora_and_qlora_exclude_each_other() -> None:
    assert "lora-and-qlora" in codes(plan_of({"lora": {}, "qlora": {}}))


def test_missing_packages_are_named_only_for_the_hardware_at_hand() -> None:
    here = cluster_of(source="detected")
    bare = environment_of(here, packages=("torch",), source="detected")
    assert {"package-peft", "package-bitsandbytes"} <= codes(plan_of({"qlora": {}}, cluster=here, environment=bare))
    assert "package-peft" not in codes(plan_of({"lora": {}}, environment=environment_of(cluster_of(), ())))


def test_qlora_needs_a_gpu() -> None:
    cpu = cluster_of(replace(cluster_of().gpu, kind="cpu", compute_capability=None))
    assert "qlora-device" in codes(plan_of({"qlora": {}}, cluster=cpu, dtype="float32"))


def test_the_registry_imports_no_torch() -> None:
    code = (
        "import core.optimizations, sys; print(sorted({'torch', 'peft', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
