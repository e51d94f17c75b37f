"""One training run of the real model code and the real trainer on tensors without memory, its bytes by instant.

Called by core/verify/worker.py. The model is built at two small depths: a stack of equal layers adds the same bytes to
an instant with every layer, so two of them tell any depth, in seconds and on any machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from core.data.row import Row
from core.optimizations import REGISTRY
from core.parallel.mesh import build_mesh
from core.rehearse.random_model import random_model
from core.rehearse.rows import LongestRows
from core.rehearse.worker import NothingSaved
from core.run.channel import NullChannel
from core.train.build import build_setup, optimizer_of
from core.train.position_loss import FIRST_EDGE_TOKENS
from core.train.report import Reports
from core.train.trainer import Trainer
from core.verify.cuda_device import cuda_allocations
from core.verify.cuda_entries import cuda_row_kernels, with_cuda_entries
from core.verify.instants import InstantMeter, Phase, watch
from core.verify.live_bytes import LiveBytes
from planner.attention_kernels import KernelName
from planner.errors import ConfigError
from planner.gemma3 import text_config
from planner.model_spec import model_spec_from_config
from planner.parts.recompute import num_inputs_at_end
from planner.types import INSTANTS, Instant, ModelSpec, RunConfig

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """Bytes of live tensors at the fullest moment of each instant that a run has without saving."""

    by_instant: Mapping[Instant, int]

    @property
    def peak_bytes(self) -> int:
        return max(self.by_instant.values())


def dry_run(config: RunConfig, model_config: Mapping[str, Any], *, kernel: KernelName = "torch") -> DryRun:
    """What ``config`` allocates on a CUDA device, by the engine that it names; ``model_config`` is the model's
    ``config.json``, ``kernel`` the one that attends.

    Raises:
        ConfigError: as a run would refuse it, or more than one rank.
    """
    if config.parallel.world > 1:
        raise ConfigError(
            f"A dry run has one rank, and this configuration has {config.parallel.world}.",
            why="Nothing is sent between ranks without memory.",
            fix="Verify its model instead: longfit verify MODEL.",
        )
    model_config = text_config(config.model, model_config)
    num_layers = int(model_config["num_hidden_layers"])
    depth = _smallest_depth(config, model_spec_from_config(config.model, model_config))
    depth += max(0, len(set(model_config.get("layer_types") or ())) - 1)  # one of each type, and its tensors
    if depth + 1 < num_layers:
        few, more = (depth_peaks(config, with_depth(model_config, n), kernel=kernel) for n in (depth, depth + 1))
        whole = {phase: few[phase] + (more[phase] - few[phase]) * (num_layers - depth) for phase in few}
    else:
        whole = depth_peaks(config, model_config, kernel=kernel)
    # the planner has one instant for both: which of them is larger may change with depth
    whole["optimizer_step"] = max(whole["optimizer_step"], whole.pop("embedding_backward", 0))
    return DryRun(by_instant={instant: whole[instant] for instant in INSTANTS if instant in whole})


def _num_lowest(config: RunConfig, model: ModelSpec) -> int:
    """Layers whose backward is "backward_end". Of the layer engine the lowest two, whatever they recompute: the second
    one waits with more of the forward, the first one with more gradients."""
    return 2 if config.engine == "layer" else max(1, num_inputs_at_end(config, model))


def _smallest_depth(config: RunConfig, model: ModelSpec) -> int:
    """From here on every layer more is like the others: the lowest, the last and the special ones are all there."""
    return (
        1
        + _num_lowest(config, model)
        + sum(setting.as_dict().get("kept_layers", 0) for setting in config.optimizations)
    )


def depth_peaks(
    config: RunConfig,
    model_config: Mapping[str, Any],
    allocations: Callable[[], AbstractContextManager[LiveBytes]] = cuda_allocations,
    *,
    kernel: KernelName = "torch",
) -> dict[Phase, int]:
    """The highest sums of an evaluation, two optimizer steps and another evaluation, at the depth of ``model_config``.

    ``allocations``: where tensors are made and counted.
    """
    config, registry = with_cuda_entries(config, REGISTRY, kernel)
    config = replace(
        config, max_steps=2, logging_steps=1, save_steps=0, eval_steps=0, keep_best=False, report_to=(),
        lr_scheduler_type="constant", warmup_ratio=0.0, warmup_steps=0,
    )  # fmt: skip
    mesh = build_mesh(config.parallel, rank=0, world=1)
    with cuda_row_kernels(), allocations() as live:

        def enter(phase: Phase) -> None:
            live.phase = phase

        meter = InstantMeter(enter)
        with meter.during("load"):
            model, spec = random_model(config, model_config, CPU)
            setup = build_setup(config, spec, model, mesh, CPU, lambda name, data: None, registry)
            optimizer = optimizer_of(setup)
        for group in optimizer.param_groups:
            if "foreach" in group:  # what torch chooses on a GPU
                group["foreach"] = not group["fused"]
        watch(setup.causal_lm.get_decoder(), enter, num_lowest=_num_lowest(config, spec), engine=setup.layer_engine)

        def rows(samples: int, count: int, kind: type[LongestRows] = LongestRows) -> LongestRows:
            return kind(
                max_length=config.max_length, samples_per_row=samples, rows_per_epoch=count,
                vocab_size=spec.vocab_size, mesh=mesh,
            )  # fmt: skip

        try:
            Trainer(
                setup,
                optimizer=optimizer,
                batches=rows(config.per_device_train_batch_size, config.gradient_accumulation_steps),
                eval_batches=rows(config.per_device_eval_batch_size, 1, kind=OneRange),
                registry=registry,
                saver=NothingSaved(),
                channel=NullChannel(),
                meter=meter,
                open_reports=lambda step: Reports((), Path(), {}, first_step=step, warn=lambda message: None),
            ).run()
        finally:
            setup.restore()
    return live.peaks


class OneRange(LongestRows):
    """Every position is within the first range of core/train/position_loss.py: the evaluation that holds the most."""

    longest_sample = FIRST_EDGE_TOKENS

    def row(self, epoch: int, index: int) -> Row:
        row = super().row(epoch, index)
        return replace(row, position_ids=row.position_ids % FIRST_EDGE_TOKENS)


def with_depth(model_config: Mapping[str, Any], num_layers: int) -> dict[str, Any]:
    """The same model with fewer layers, and lists of one value for each layer as short: the first layers' and the last
    one's, and before it those that no other has."""
    whole = model_config["num_hidden_layers"]

    def cut(value: Any) -> Any:
        if not isinstance(value, list | tuple) or len(value) != whole:
            return value
        first, last = value[: num_layers - 1], value[whole - 1]
        lost = [item for item in dict.fromkeys(value) if item not in (*first, last)]
        return [*first[: len(first) - len(lost)], *lost, last]

    return {**{key: cut(value) for key, value in model_config.items()}, "num_hidden_layers": num_layers}
