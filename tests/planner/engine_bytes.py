"""What one training step of the real engine allocates, phase by phase, as torch dispatches it; for a tiny model on CPU.

Every operator's outputs are counted while their storage lives. The attention kernel is replaced by one that allocates
what torch's CUDA flash attention allocates, so that plans for GPUs can be compared without one.
"""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM

import core.loss.chunked
from core.attention.kernel import AttentionKernel, CpuFlashKernel
from core.attention.register import ATTENTION_NAME, register_attention
from core.attention.sequence import LocalAttention
from core.data.row import Row
from core.layer.engine import LayerEngine
from core.loss.head_loss import StockLoss
from core.optimizations import REGISTRY
from core.parallel.layout import shard_row
from core.parallel.mesh import build_mesh
from core.parallel.sharded import local_rows
from core.train.build import enabled_optimizations
from core.train.forward import forward_loss
from core.train.optimizer import build_optimizer
from core.train.position_loss import PositionLoss, position_edges
from core.train.setup import TrainingSetup
from core.verify import loss_allocations
from core.verify.flash_allocations import FlashAllocations
from core.verify.host_copies import HostCopies, MetaSlots
from core.verify.live_bytes import LiveBytes
from core.verify.row_allocations import RowAllocations
from planner.layer_policy import CARRIED_OUT
from planner.model_spec import model_spec_from_config
from planner.types import RunConfig

CPU = torch.device("cpu")


def step_peaks(
    model_config: dict[str, Any],
    config: RunConfig,
    *,
    as_cuda: bool,
    kernel: AttentionKernel | None = None,
    counted: type[LiveBytes] = LiveBytes,
) -> dict[str, int]:
    """Highest bytes above static in forward, backward, optimizer step and evaluation of the second step. On a CPU the
    slots of checkpoint_offload are in the process, too. Of several ranks each calls it."""
    setup = build(model_config, config, kernel or (FlashAllocations() if as_cuda else CpuFlashKernel()), as_cuda)
    tokens = config.max_length
    ids = torch.randint(0, model_config["vocab_size"], (tokens,))
    row = Row(
        input_ids=ids, labels=ids.roll(-1), position_ids=torch.arange(tokens), cu_seqlens=(0, tokens), sample_ids=(0,),
        num_targets=tokens,
    )  # fmt: skip
    optimizer = build_optimizer(
        setup.model, optim=config.optim, learning_rate=1e-4, weight_decay=0.0, betas=(0.9, 0.999), epsilon=1e-8,
        master_weights=config.master_weights, projection=setup.projection, trained=setup.trained.values(),
    )  # fmt: skip
    for group in optimizer.param_groups:
        group["foreach"] = as_cuda  # torch's own choice on the device that is planned for
    mode: LiveBytes | None = None

    def step() -> None:
        enter("forward")
        loss = forward_loss(setup, shard_row(row, setup.mesh, CPU))
        enter("backward")
        loss.backward()
        del loss
        enter("optimizer_step")
        if setup.sharded is not None:
            setup.sharded.take_gradients()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def enter(phase: str) -> None:
        if mode is not None:
            mode.phase = phase

    step()  # states exist from here on
    states = [x for state in optimizer.state.values() for x in state.values()]
    static = [*map(local_rows, setup.model.parameters()), *setup.model.buffers(), *states]
    mode = counted([*static, row.input_ids, row.labels, row.position_ids])
    replaced = patch.object(core.loss.chunked, "cross_entropy_", loss_allocations.cross_entropy_)
    try:
        with mode, replaced if as_cuda else nullcontext():
            step()
            enter("evaluation")
            with torch.no_grad():
                shard = shard_row(row, setup.mesh, CPU)
                setup.loss = PositionLoss(setup.loss, position_edges(tokens), CPU)
                setup.loss.position_ids = shard.position_ids
                forward_loss(setup, shard)
    finally:
        setup.restore()  # liger has replaced a function of this process
    return mode.peaks


def build(
    model_config: dict[str, Any], config: RunConfig, kernel: AttentionKernel, as_cuda: bool = True
) -> TrainingSetup:  # fmt: skip
    register_attention()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**model_config, use_cache=False), attn_implementation=ATTENTION_NAME,
        dtype=getattr(torch, config.dtype),
    ).train()  # fmt: skip
    model.requires_grad_(config.method == "full")
    rank = dist.get_rank() if dist.is_initialized() else 0
    setup = TrainingSetup(
        config=config, spec=model_spec_from_config("tiny", model_config), device=CPU,
        mesh=build_mesh(config.parallel, rank=rank, world=config.parallel.world), model=model,
        attention=LocalAttention(kernel),
        loss=StockLoss(), emit=lambda name, data: None,
    )  # fmt: skip
    with ExitStack() as stack:
        stack.enter_context(patch("core.layer.engine.row_ops", lambda device: RowAllocations()))
        if as_cuda:
            stack.enter_context(patch("core.offload.host_tensors.HostSlots", MetaSlots))
            stack.enter_context(patch("core.offload.copies.InTurn", HostCopies))
        for optimization in enabled_optimizations(config, REGISTRY):
            if not (config.engine == "layer" and optimization.name in CARRIED_OUT):
                optimization.apply(setup)
        if config.engine == "layer":
            setup.attention = LocalAttention(kernel)
            setup.layer_engine = LayerEngine(setup)
    return setup
