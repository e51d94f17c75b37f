"""Registry entries whose kernels run on a GPU only, in a form that allocates the same and computes nothing.

Called by core/verify/dry_run.py.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar
from unittest.mock import patch

from core.optimizations.flash_attention import FlashAttention
from core.optimizations.liger import Liger
from planner.attention_kernels import BY_NUMBER, KernelName
from planner.optimization import Registry, setting_of
from planner.types import RunConfig

if TYPE_CHECKING:
    from core.train.setup import TrainingSetup


def with_cuda_entries(config: RunConfig, registry: Registry, kernel: KernelName) -> tuple[RunConfig, Registry]:
    """``config`` with an attention kernel, as every run has one, and a registry that can apply it here."""
    version = next((version for version, name in BY_NUMBER.items() if name == kernel), "sdpa")
    attention = DryCudnnAttention if kernel == "cudnn" else DryFlashAttention
    entries = {entry.name: entry for entry in (attention, DryLiger)}
    others = tuple(setting for setting in config.optimizations if setting.name != FlashAttention.name)
    config = replace(config, optimizations=(*others, setting_of(DryFlashAttention(version=version))))
    return config, {**registry, **entries}


def cuda_row_kernels() -> AbstractContextManager[Any]:
    """Inside, a layer engine (core/layer/engine.py) takes row kernels that allocate what its Triton kernels do."""
    import core.layer.engine
    from core.verify.row_allocations import RowAllocations

    return patch.object(core.layer.engine, "row_ops", lambda device: RowAllocations())


@dataclass(frozen=True, slots=True, kw_only=True)
class DryFlashAttention(FlashAttention):
    """Every kernel of planner/attention_kernels.py saves q, k, v, output and log-sum-exp, and so does this one."""

    without_number: ClassVar[KernelName] = "torch"

    def apply(self, setup: TrainingSetup) -> None:
        from core.attention.sequence import LocalAttention
        from core.verify.flash_allocations import FlashAllocations

        setup.attention = LocalAttention(FlashAllocations(BY_NUMBER.get(self.version, self.without_number)))


class DryCudnnAttention(DryFlashAttention):
    without_number = "cudnn"


@dataclass(frozen=True, slots=True, kw_only=True)
class DryLiger(Liger):
    def apply(self, setup: TrainingSetup) -> None:
        from core.verify import liger_allocations

        self.replace(setup, liger_allocations)
