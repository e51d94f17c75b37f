"""The run being set up, which each optimization's ``apply`` changes, in the order of their stages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from planner.types import ModelSpec, RunConfig

if TYPE_CHECKING:
    import torch
    from torch import nn

    from core.attention.kept import AttentionKeeper
    from core.attention.sequence import SequenceAttention
    from core.layer.engine import LayerEngine
    from core.loss.head_loss import HeadLoss
    from core.model.liger_ops import LigerOps
    from core.offload.host_tensors import HostTensors
    from core.offload.streamed_weights import StreamedWeights
    from core.parallel.mesh import Mesh
    from core.parallel.sharded import ShardedModel
    from core.train.galore_adamw import Projection


@dataclass(slots=True, kw_only=True)
class TrainingSetup:
    config: RunConfig
    spec: ModelSpec
    device: torch.device
    mesh: Mesh
    model: nn.Module  # transformers causal LM; a PeftModel around it once `lora` was applied
    attention: SequenceAttention  # what the registered attention function calls; ulysses and ring wrap it
    loss: HeadLoss  # hidden states -> summed loss; `fused_loss` replaces it
    emit: Callable[[str, Mapping[str, Any]], None]  # events: ("fallback", {...})
    keeper: AttentionKeeper | None = None  # attention outputs kept from a layer's forward to its recompute
    layer_inputs: HostTensors | None = None  # inputs of checkpointed layers, when they wait in host memory
    streamed: StreamedWeights | None = None  # frozen weights that wait in host memory
    liger: LigerOps | None = None  # modules that compute in Liger's kernels
    layer_engine: LayerEngine | None = None  # decoder layers by hand-written forwards and backwards
    projection: Projection | None = None  # of the optimizer's states
    sharded: ShardedModel | None = None  # weights, gradients and states as shards over all ranks
    optimizer: torch.optim.Optimizer | None = None  # once it is built, after every optimization was applied
    packing: bool = False  # several samples share a row
    pack_length: int = 0  # tokens of such a row; 0: max_length
    undo: list[Callable[[], None]] = field(default_factory=list)  # patches to take back, last first
    counts: Counter[str] = field(default_factory=Counter)  # what really happened, for ``verify``: "rows", "samples"
    seen: dict[str, set[str]] = field(default_factory=dict)  # the same by name: {"lora": {module, ...}}

    def restore(self) -> None:
        """Take every patch back."""
        while self.undo:
            self.undo.pop()()

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """What the optimizer updates, by the name in ``model``: its parameters, or this rank's rows of them."""
        if self.sharded is not None:
            return self.sharded.trained
        return {name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad}

    @property
    def causal_lm(self) -> nn.Module:
        """The transformers model itself, whether or not adapters are wrapped around it."""
        get_base_model = getattr(self.model, "get_base_model", None)
        return get_base_model() if get_base_model is not None else self.model
