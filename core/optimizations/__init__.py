"""The registry: one line an optimization. Importing it imports no torch."""

from __future__ import annotations

from core.optimizations.checkpoint_offload import CheckpointOffload
from core.optimizations.fake_parallel import FakeParallel
from core.optimizations.flash_attention import FlashAttention
from core.optimizations.fsdp import Fsdp
from core.optimizations.fused_loss import FusedLoss
from core.optimizations.galore import Galore
from core.optimizations.gradient_checkpointing import GradientCheckpointing
from core.optimizations.liger import Liger
from core.optimizations.lora import Lora
from core.optimizations.packing import Packing
from core.optimizations.qlora import QLora
from core.optimizations.ring import Ring
from core.optimizations.tiled_mlp import TiledMlp
from core.optimizations.ulysses import Ulysses
from core.optimizations.weight_streaming import WeightStreaming

REGISTRY: dict[str, type] = {
    optimization.name: optimization
    for optimization in (
        Lora,
        QLora,
        Galore,
        Liger,
        GradientCheckpointing,
        CheckpointOffload,
        FusedLoss,
        Packing,
        FlashAttention,
        Ulysses,
        Ring,
        FakeParallel,
        TiledMlp,
        WeightStreaming,
        Fsdp,
    )
}
