"""Ulysses sequence parallelism: exchange tokens for heads around any inner attention. `ulysses` puts it into the run.

With LocalAttention inside it is plain Ulysses, with RingAttention inside it is the hybrid. Each rank attends with H/U
query heads over all tokens of its Ulysses group. Source: DeepSpeed Ulysses (arXiv 2309.14509).
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from core.attention.kept import KeptOutput
from core.attention.sequence import SequenceAttention
from core.parallel.all_to_all import gather_heads, scatter_heads
from core.parallel.layout import SequenceLayout
from planner.errors import ConfigError
from planner.parallel import is_legal_ulysses_degree


class UlyssesAttention:
    """A SequenceAttention over the ranks of ``group``. Collective in forward and backward, with empty shards too."""

    def __init__(self, inner: SequenceAttention, group: dist.ProcessGroup) -> None:
        self.inner = inner
        self.group = group
        self.degree = dist.get_world_size(group)
        self.num_calls = 0

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, layout: SequenceLayout, scale: float, kept: KeptOutput | None = None,
        window: int | None = None,
    ) -> Tensor:  # fmt: skip
        """q (1, H, L, D), k and v (1, K, L, D), L = layout.tokens_per_rank -> (1, H, L, D).

        Raises:
            ConfigError: U does not divide H, or U neither divides K nor is a multiple of it.
        """
        num_heads, num_kv_heads = q.shape[1], k.shape[1]
        if not is_legal_ulysses_degree(num_heads, num_kv_heads, self.degree):
            raise ConfigError(
                f"Ulysses degree {self.degree} does not fit {num_heads} query and {num_kv_heads} KV heads.",
                why="A rank attends with whole query heads and whole (or wholly copied) KV heads.",
                fix="Choose a degree that divides both, or use ring.",
            )
        self.num_calls += 1
        copies = max(self.degree // num_kv_heads, 1)
        if copies > 1:  # fewer KV heads than ranks: each rank gets a copy, and autograd sums the copies' gradients
            k, v = (x[:, :, None].expand(-1, -1, copies, -1, -1).flatten(1, 2) for x in (k, v))
        q, k, v = (scatter_heads(x, self.group) for x in (q, k, v))
        return gather_heads(self.inner(q, k, v, layout, scale, kept, window), self.group)

    def known(self, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner.known(scatter_heads(out.detach(), self.group), lse)
