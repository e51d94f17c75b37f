"""From weights that were loaded to where they train: in 4 bits for `qlora`, in host memory for `weight_streaming`.
Called by load.py and by core/rehearse/random_model.py, layer by layer, so that the device never holds the whole model
where it need not.
"""

from __future__ import annotations

import torch
from torch import nn

from core.model.nf4 import quantise_linears
from core.offload.streamed_tables import StreamedTables
from core.offload.streamed_weights import StreamedWeights
from planner.parts.streaming import streams_embeddings
from planner.types import RunConfig


class Placement:
    """``layer`` for every decoder layer, in their order, then ``rest``."""

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        self._config, self._device = config, device
        self._qlora = config.optimization("qlora")
        self._streamed = None if config.optimization("weight_streaming") is None else StreamedWeights(device)

    def layer(self, layer: nn.Module) -> None:
        """
        Raises:
            EnvironmentProblem: bitsandbytes is not installed, or the driver does not pin that much.
        """
        if self._qlora is not None:
            double_quant = self._qlora.as_dict().get("double_quant", True)
            dtype = getattr(torch, self._config.dtype)
            quantise_linears(layer, double_quant=double_quant, dtype=dtype, device=self._device)
        if self._streamed is not None:
            self._streamed.take(layer)

    def rest(self, causal_lm: nn.Module) -> StreamedTables | None:
        """The layers that wait on the host can be brought: `weight_streaming` finds ``causal_lm.streamed_weights``.
        Embeddings and head, where these wait, too.

        Raises:
            EnvironmentProblem: the driver does not pin that much.
        """
        if self._streamed is None:
            return None
        self._streamed.open()
        if streams_embeddings(self._config):
            self._streamed.tables = StreamedTables(causal_lm, self._device)
        causal_lm.streamed_weights = self._streamed
        return self._streamed.tables
