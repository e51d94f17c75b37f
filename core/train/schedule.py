"""The learning rate as a pure function of the step, with the meanings of transformers' schedulers. For the trainer.

    factor                 warmup      stable          decay (wsd only)
      1 |          ________________________
        |        /                         \\
        |      /                             \\          linear and cosine fall from the end of the warmup
      0 |____/_________________________________\\___ step
"""

from __future__ import annotations

import math
from typing import Literal

SchedulerType = Literal["linear", "cosine", "constant", "wsd"]

# Share of all steps in which wsd decays, along 1 - sqrt(progress): both from Haegele et al., "Scaling Laws and
# Compute-Optimal Training Beyond Fixed Training Durations" (2024), section 3: 20 % reaches what longer decays reach.
WSD_DECAY_SHARE = 0.2


def warmup_length(*, total_steps: int, warmup_ratio: float, warmup_steps: int) -> int:
    """Steps of linear warmup: ``warmup_steps`` when positive, else the ratio of all steps, rounded up."""
    return warmup_steps if warmup_steps > 0 else math.ceil(total_steps * warmup_ratio)


def learning_rate_factor(kind: SchedulerType, step: int, *, total_steps: int, warmup_steps: int) -> float:
    """What the peak learning rate is multiplied by in optimizer step ``step`` (0 is the first), in [0, 1].

    As in transformers the first warmup step has factor 0, and step ``total_steps`` (never taken) is where linear,
    cosine and wsd reach 0. ``constant`` warms up too when asked to; transformers calls that constant_with_warmup.
    """
    if step < warmup_steps:
        return step / warmup_steps
    if kind == "constant":
        return 1.0
    if kind == "wsd":
        decay_steps = min(math.ceil(WSD_DECAY_SHARE * total_steps), total_steps - warmup_steps)
        start = total_steps - decay_steps
        if step < start or decay_steps <= 0:
            return 1.0
        return 1.0 - math.sqrt(min(1.0, (step - start) / decay_steps))
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    return 1.0 - progress if kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
