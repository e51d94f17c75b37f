"""One forward of one micro-batch: ids of this rank's shard in, summed loss out. Called by trainer and evaluation."""

from __future__ import annotations

import torch
from torch import Tensor

from core.attention.register import RowAttention
from core.parallel.layout import Shard
from core.train.setup import TrainingSetup


def forward_loss(setup: TrainingSetup, shard: Shard) -> Tensor:
    """Sum of the cross entropies of this shard's targets: scalar, float32 or wider, 0 without targets.

    The head is not called as a module: the loss multiplies by its weight, so that it can do so in chunks.
    Collective over the sequence group (forward and backward), with shards without targets too; over all ranks where
    the model is sharded.
    """
    if setup.sharded is not None:
        return setup.sharded.run(lambda: _forward_loss(setup, shard))
    return _forward_loss(setup, shard)


def _forward_loss(setup: TrainingSetup, shard: Shard) -> Tensor:
    layout = shard.layout
    setup.counts.update(
        rows=1,
        samples=layout.num_segments - (layout.padded_tokens > layout.num_tokens),
        tokens=layout.num_tokens,
        padding=layout.padded_tokens - layout.num_tokens,
    )
    causal_lm = setup.causal_lm
    dtype = getattr(torch, setup.config.dtype)
    with torch.autocast(setup.device.type, dtype=dtype, enabled=setup.config.autocast):
        hidden = causal_lm.get_decoder()(
            input_ids=shard.input_ids,
            position_ids=shard.position_ids,
            use_cache=False,
            longfit_row=RowAttention(setup.attention, layout, setup.keeper),
        ).last_hidden_state
        return setup.loss(hidden, _head_weight(setup), shard.labels, shard.target_index)


def _head_weight(setup: TrainingSetup) -> Tensor:
    """(V, d); where it waits in host memory, a copy on the device for this loss alone."""
    if setup.streamed is not None and setup.streamed.tables is not None:
        return setup.streamed.tables.head()
    return setup.causal_lm.get_output_embeddings().weight
