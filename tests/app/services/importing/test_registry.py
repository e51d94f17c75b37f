"""What longfit learns later translates by itself: the importer asks the registry, it knows no list of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from app.services.importing.imported import import_text
from core.optimizations import REGISTRY
from planner.optimization import knob
from planner.types import Environment
from tests.app.services.importing.conftest import make_facts

COMMAND = "swift sft --model Qwen/Qwen3-8B --dataset rows.jsonl --max_length 2048 "


@dataclass(frozen=True, kw_only=True)
class Entry:
    name: ClassVar[str]
    available: ClassVar[bool] = True
    main_knob: ClassVar[str | None] = None


@dataclass(frozen=True, kw_only=True)
class Galore(Entry):
    name: ClassVar[str] = "galore"
    rank: int = knob(128, help="")
    update_proj_gap: int = knob(50, help="")
    scale: float = knob(1.0, help="")


@dataclass(frozen=True, kw_only=True)
class Fsdp(Entry):
    name: ClassVar[str] = "fsdp"


@dataclass(frozen=True, kw_only=True)
class TiledMlp(Entry):
    name: ClassVar[str] = "tiled_mlp"


@dataclass(frozen=True, kw_only=True)
class LigerWithLoss(Entry):
    name: ClassVar[str] = "liger"
    cross_entropy: bool = knob(True, help="")


@dataclass(frozen=True, kw_only=True)
class PlannedOnly(Entry):
    name: ClassVar[str] = "qlora"
    available: ClassVar[bool] = False
    rank: int = knob(16, help="")


def imported_with(flags: str, *entries: type, front: str = "", machine: Environment | None = None):
    without = {name: entry for name, entry in REGISTRY.items() if name not in ("galore", "fsdp", "tiled_mlp", "liger")}
    facts = make_facts(
        registry={**without, **{entry.name: entry for entry in entries}}, objections=lambda preset: (),
        **({"machine": lambda: machine} if machine else {}),
    )  # fmt: skip
    return import_text(front + COMMAND + flags, facts=facts)


def kind_of(imported, flag: str) -> str:
    return next(finding.kind for finding in imported.findings if any(flag in written for written in finding.flags))


def test_galore_is_lost_without_its_entry_and_translated_with_it():
    flags = "--tuner_type full --use_galore true --galore_rank 64 --galore_update_interval 200 --galore_scale 0.25"
    without = imported_with(flags)
    assert "galore" not in without.preset.values
    assert kind_of(without, "--use_galore") == "impossible"
    with_it = imported_with(flags, Galore)
    assert with_it.preset.values["galore"] == {"rank": 64, "update_proj_gap": 200, "scale": 0.25}
    assert kind_of(with_it, "--galore_update_interval") == "translated"


def test_galore_and_adapters_exclude_each_other_also_then():
    imported = imported_with("--use_galore true --galore_rank 64", Galore)
    assert "galore" not in imported.preset.values
    assert kind_of(imported, "--galore_rank") == "impossible"


def test_deepspeed_becomes_fsdp_once_there_is_one():
    front = "NPROC_PER_NODE=2 "
    assert kind_of(imported_with("--deepspeed zero3", front=front), "--deepspeed") == "impossible"
    imported = imported_with("--deepspeed zero3", Fsdp, front=front)
    assert imported.preset.values["fsdp"] is True
    assert kind_of(imported, "--deepspeed") == "translated"


def test_fake_parallel_takes_the_tiled_mlp_with_it():
    assert "tiled_mlp" not in imported_with("--sequence_parallel_size 2").preset.values
    assert imported_with("--sequence_parallel_size 2", TiledMlp).preset.values["tiled_mlp"] is True


def test_liger_keeps_its_loss_when_it_has_one():
    assert imported_with("--use_liger_kernel true").preset.values["fused_loss"] is True
    values = imported_with("--use_liger_kernel true", LigerWithLoss).preset.values
    assert values["liger"] is True
    assert "fused_loss" not in values


def test_a_method_that_is_only_planned_stays_in_the_preset_and_is_told():
    imported = imported_with("--train_type qlora --lora_rank 4", PlannedOnly)
    assert imported.preset.values["qlora"] == {"rank": 4}
    assert kind_of(imported, "--train_type qlora") == "impossible"


def test_a_kernel_by_number_stands_where_the_machine_has_it():
    hopper = Environment(source="detected", packages={"flash-attn-3": "3.0"}, compute_capability=(9, 0))
    ada = Environment(source="detected", packages={"flash-attn-3": "3.0"}, compute_capability=(8, 9))
    ampere = Environment(source="detected", packages={"flash-attn-3": "3.0"}, compute_capability=(8, 0))
    bare = Environment(source="detected", packages={}, compute_capability=(9, 0))
    flag = "--attn_impl flash_attention_3"
    assert imported_with(flag, machine=hopper).preset.values["flash_attention"] == "3"
    assert imported_with(flag, machine=ada).preset.values["flash_attention"] == "3"
    assert "flash_attention" not in imported_with(flag, machine=ampere).preset.values
    lacking = imported_with(flag, machine=bare)
    assert "flash_attention" not in lacking.preset.values
    assert "flash-attn-3" in next(f.why for f in lacking.findings if "attn_impl" in " ".join(f.flags))
