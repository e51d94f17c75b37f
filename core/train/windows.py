"""Which micro-batches make one optimizer step, and how many steps a run takes. Pure arithmetic, used by the trainer.

A window never crosses the end of an epoch: the last one of an epoch may be shorter and is divided by its own targets.

    10 micro-batches, accumulation 4:   | 0 1 2 3 | 4 5 6 7 | 8 9 |   3 steps an epoch, 6 in two epochs
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

NumMicroBatches = Callable[[int], int]  # epoch -> micro-batches of one data-parallel replica, the same for all


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where the next optimizer step starts; all that a resume needs to find its next sample."""

    epoch: int = 0
    micro_batch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The micro-batches of one optimizer step."""

    epoch: int
    micro_batches: range
    after: Position  # start of the next window
    epochs_done: float  # 1.5 after half of the second epoch


def next_window(position: Position, num_micro_batches: NumMicroBatches, accumulation: int) -> Window:
    in_epoch = num_micro_batches(position.epoch)
    if position.micro_batch >= in_epoch:  # saved with more micro-batches in an epoch, by fewer ranks for example
        position = Position(epoch=position.epoch + 1)
        in_epoch = num_micro_batches(position.epoch)
    end = min(position.micro_batch + accumulation, in_epoch)
    after = Position(epoch=position.epoch, micro_batch=end) if end < in_epoch else Position(epoch=position.epoch + 1)
    return Window(
        epoch=position.epoch,
        micro_batches=range(position.micro_batch, end),
        after=after,
        epochs_done=position.epoch + end / in_epoch,
    )


def count_steps(
    num_micro_batches: NumMicroBatches, *, accumulation: int, num_train_epochs: float, max_steps: int
) -> int:
    """Optimizer steps the run really takes. ``max_steps`` > 0 rules; part of an epoch is rounded up to whole steps."""
    if max_steps > 0:
        return max_steps
    whole = int(num_train_epochs)
    steps = sum(math.ceil(num_micro_batches(epoch) / accumulation) for epoch in range(whole))
    if num_train_epochs > whole:
        in_last_epoch = math.ceil(num_micro_batches(whole) / accumulation)
        # 1.1 - 1 is a little more than 0.1 in binary, and must not cost a step.
        steps += math.ceil((num_train_epochs - whole) * in_last_epoch - 1e-9)
    return steps
