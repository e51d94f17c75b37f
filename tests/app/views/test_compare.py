"""app/views/compare.py: two runs side by side."""

from dataclasses import dataclass, field, replace

from app.views.compare import result_rows, setting_rows
from app.views.memory_view import MemoryHistory
from app.views.series import LossHistory
from planner.types import OptimizationSetting, RunState
from tests.app import plans
from tests.app.plans import GIB


@dataclass
class Seen:
    config: object = field(default_factory=plans.run_config)
    state: RunState = field(default_factory=RunState)
    plan: dict = field(default_factory=dict)
    loss: LossHistory = field(default_factory=LossHistory)
    memory: MemoryHistory = field(default_factory=MemoryHistory)


def test_only_what_differs_is_shown_optimizations_by_knob():
    first = plans.run_config()
    rank_8 = OptimizationSetting(name="lora", knobs=(("rank", 8), ("alpha", 128)))
    fused = OptimizationSetting(name="fused_loss")
    second = replace(first, name="other", max_length=4096, optimizations=(rank_8, first.optimizations[1], fused))
    assert setting_rows(first, second) == (
        ("max_length", "8192", "4096"), ("lora.rank", "64", "8"), ("fused_loss", "-", "on"),
    )  # fmt: skip
    assert setting_rows(first, first) == ()


def test_results_are_laid_side_by_side_and_unknown_ones_say_so():
    run = Seen(state=RunState(status="done", step=20, total_steps=20))
    run.plan = {"tokens_per_second": 2000.0, "gpus": [{"peak": {"allocated_bytes": 10 * GIB}}]}
    run.loss.extend(
        [{"step": 10, "loss": 2.0, "tokens": 3000, "seconds": 2.0}, {"step": 10, "eval_loss": 1.9},
         {"step": 20, "loss": 1.0, "tokens": 3000, "seconds": 2.0}, {"step": 20, "eval_loss": 2.1}]
    )  # fmt: skip
    run.memory.extend([{"rank": 0, "step": 1, "instant": "backward", "allocated_bytes": 11 * GIB}])
    rows = {name: (first, second) for name, first, second in result_rows(run, Seen())}
    assert rows["state"] == ("done", "created")
    assert rows["steps"] == ("20 of 20", "0")
    assert rows["loss"] == ("1.0000", "n/a")
    assert (rows["eval last"][0], rows["eval best"][0]) == ("2.1000", "1.9000")
    assert (rows["speed"][0], rows["of plan"][0]) == ("1,500 tokens/s", "75 %")
    assert rows["peak"] == ("11.0 GiB", "n/a")
    assert rows["off by"][0] == "+10.0 %"
