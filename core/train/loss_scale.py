"""Dynamic loss scaling for float16, whose gradients would vanish below 6e-8. A pure value; the trainer keeps it.

The loss is multiplied by a power of two before the backward and the gradients are divided by it before clipping, which
changes no bit of a gradient that fits. One that overflows costs its step and halves the scale.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

GROWTH_INTERVAL = 2000  # steps without overflow before the scale doubles; this and 2^16 are those of torch.amp
SMALLEST = 2.0**-14


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScale:
    value: float = 65536.0
    num_good_steps: int = 0  # since the last change

    @property
    def is_exhausted(self) -> bool:
        """Gradients overflow whatever the scale: they are not finite for another reason."""
        return self.value <= SMALLEST

    def after_good_step(self) -> LossScale:
        if self.num_good_steps + 1 == GROWTH_INTERVAL:
            return LossScale(value=self.value * 2)
        return replace(self, num_good_steps=self.num_good_steps + 1)

    def after_overflow(self) -> LossScale:
        return LossScale(value=self.value / 2)
