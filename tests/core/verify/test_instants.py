"""The hooks say which instant a run is in, in the order in which its gradients come."""

from __future__ import annotations

from itertools import groupby

import pytest
import torch

from core.parallel.layout import shard_row
from core.train.forward import forward_loss
from core.verify.instants import InstantMeter, watch
from planner.types import OptimizationSetting
from tests.core.model.tiny_models import CPU, random_row, setting, tiny_model, tiny_setup

FORWARD = ["layer_forward", "forward_loss"]
BACKWARD = ["layer_backward", "attention_backward", "middle_layers", "backward_end"]
EVALUATION = ["evaluation_forward", "evaluation"]


def visited(*optimizations: OptimizationSetting, engine: str = "module") -> list[str]:
    """A training forward and backward, then an evaluation, of three layers."""
    entered: list[str] = []
    setup = tiny_setup(tiny_model("llama", layers=3, dtype=torch.float32), *optimizations, engine=engine)
    watch(setup.causal_lm.get_decoder(), entered.append, engine=setup.layer_engine)
    shard = shard_row(random_row((9, 5)), setup.mesh, CPU)
    forward_loss(setup, shard).backward()
    with torch.no_grad():
        forward_loss(setup, shard)
    return [phase for phase, _ in groupby(entered)]


@pytest.mark.parametrize("checkpointing", [(), (setting("gradient_checkpointing"),)], ids=["kept", "recomputed"])
def test_a_backward_goes_from_the_last_layer_to_the_embeddings(checkpointing: tuple[OptimizationSetting, ...]) -> None:
    assert visited(*checkpointing) == [*FORWARD, *BACKWARD, "embedding_backward", *EVALUATION]


def test_frozen_embeddings_have_no_instant() -> None:
    adapters = setting("lora", rank=2, targets="all-linear")
    assert visited(adapters, setting("gradient_checkpointing")) == [*FORWARD, *BACKWARD, *EVALUATION]


def test_the_layer_engine_goes_the_same_way() -> None:
    adapters = setting("lora", rank=2, targets="all-linear")
    assert visited(adapters, engine="layer") == [*FORWARD, *BACKWARD, *EVALUATION]


def test_the_trainers_meter_begins_the_others() -> None:
    entered: list[str] = []
    meter = InstantMeter(entered.append)
    for moment in ("load", "evaluation", "forward", "backward", "step", "save"):
        with meter.during(moment):
            pass
    assert entered == ["load", "evaluation_forward", "layer_forward", "loss_backward", "optimizer_step", "save"]
    assert meter.rows(1) == []
