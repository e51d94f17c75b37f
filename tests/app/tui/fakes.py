"""A stand-in for app/tui/services.py: plans built by hand in no time, and calls recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

from app.services.presets import merge_overrides
from app.tui.services import Services
from planner.errors import ConfigError
from planner.types import ClusterSpec, Preset
from tests.app import plans

PRESET = Preset(
    name="qwen2.5-7b-8k-1x24g",
    description="for one 24 GB card",
    values={
        "model": "Qwen/Qwen2.5-7B-Instruct",
        "max_length": 8192,
        "lora": {"rank": 64},
        "gradient_checkpointing": True,
        "data": {"train": ["a.jsonl"]},
    },
    hardware={"gpu": "A10", "count": 1},
    origin="built-in",
)
OTHER = replace(PRESET, name="[red]odd[/red] preset", values={**PRESET.values, "max_length": 4096})


REPORT = {
    "train": {
        "max_length": 64,
        "rows": {"read": 10, "kept": 6, "truncated": 2, "split": 0, "dropped": 0, "bad": 2, "blank_lines": 3},
        "samples": 8,
        "tokens": {"read": 500, "kept": 400, "targets": 100},
        "lengths": {
            "min": 10, "median": 40, "mean": 50.2, "p95": 90, "max": 120,
            "histogram": [{"upto": 64, "rows": 6}, {"upto": 128, "rows": 2}],
        },
        "longest_row": {"tokens": 120, "origin": "a.jsonl:3"},
        "packing": {"length": 64, "rows_without": 8, "rows_with": 7, "fill_without": 0.78, "fill_with": 0.89},
        "shapes": {"messages": 7, "alpaca": 1},
        "notes": {"unanswered end cut": 1},
        "problems": {
            "count": 2, "by_kind": {"blank": 2},
            "first": [{"file": "a.jsonl", "line": 3, "kind": "blank", "reason": "the answer is blank"}],
        },
        "files": [{"path": "a.jsonl", "rows": 10, "bad": 2, "blank_lines": 3}],
        "remarks": ["2 of 8 rows (25%) are longer than max_length 64 and were cut."],
        "preview": [
            {"origin": "a.jsonl:1", "shape": "messages", "tokens": 12, "targets": 2,
             "segments": [["<user>[red]合同[/red]\n<assistant>", False], ["Hello.\x1b[31m<end>", True]]},
        ],
    },
    "eval": None,
}  # fmt: skip


@dataclass(frozen=True)
class FakeResolved:
    values: Mapping[str, Any]
    cluster: ClusterSpec


class FakeServices(Services):
    """Plans follow tests/app/plans.py; ``max_length: 13`` is what cannot be."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, Any]] = []
        self.launched = Path("/nowhere")  # the run directory that a launch "creates"
        self.may_report = Event()  # a test clears it to hold the reading of data up
        self.may_report.set()

    def presets(self):
        return (PRESET, OTHER)

    def unreadable_presets(self):
        return ()

    def preset_names(self):
        return tuple(preset.name for preset in self.presets())

    def load_preset(self, name):
        return next((preset for preset in self.presets() if preset.name == name), None) or super().load_preset(name)

    def model_names(self):
        return ("Qwen/Qwen2.5-7B-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct")

    def gpu_names(self):
        return ("A10", "H200")

    def resolve(self, preset, overrides, hardware):
        values = merge_overrides(preset.values, overrides)
        if values["max_length"] == 13:
            raise ConfigError("max_length is 13.", why="Thirteen is not possible.", fix="Write 16.")
        return FakeResolved(values=values, cluster=plans.plan(usable_gib=141 if "H200" in hardware else 22).cluster)

    def plan_here(self, preset):
        return plans.plan(tokens=preset.values["max_length"], usable_gib=20)

    def plan_for_launch(self, preset, overrides, *, cpu):
        return self.plan(self.resolve(preset, overrides, ""))

    def plan(self, resolved):
        world = int(resolved.values.get("sequence_parallel") or 1)
        usable = resolved.cluster.gpu.usable_bytes / plans.GIB
        return plans.plan(tokens=resolved.values["max_length"], world=world, usable_gib=usable)

    def recommend(self, resolved, goal):
        self.calls.append(("recommend", goal))
        return plans.alternatives()

    def longest_length(self, resolved):
        return 9216

    def data_report(self, resolved, on_progress):
        self.calls.append(("data", resolved.values["max_length"]))
        on_progress(5, "a.jsonl", 0.5)
        self.may_report.wait(10)
        return REPORT

    def write_command(self, command):
        self.calls.append(("command", command))
        return Path("/tmp/command.sh")

    def stop(self, run, mode):
        self.calls.append(("stop", mode))

    def launch(self, preset, overrides, *, cpu, allow_over):
        self.calls.append(("launch", (preset.name, dict(overrides), cpu, allow_over)))
        return self.launched
