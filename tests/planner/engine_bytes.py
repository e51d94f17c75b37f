"""What one training step of the real engine allocates, phase by phase, as torch dispatches it; for a tiny model on CPU.

Every operator's outputs are counted while their storage lives. The attention kernel is replaced by one that allocates
what torch's CUDA flash attention allocates, so that plans for GPUs can be compared without one.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM

from core.attention.kernel import AttentionKernel, CpuFlashKernel
from core.attention.register import ATTENTION_NAME, register_attention
from core.attention.sequence import LocalAttention
from core.data.row import Row
from core.loss.head_loss import StockLoss
from core.optimizations import REGISTRY
from core.parallel.layout import shard_row
from core.parallel.mesh import build_mesh
from core.train.build import enabled_optimizations
from core.train.forward import forward_loss
from core.train.optimizer import build_optimizer
from core.train.position_loss import PositionLoss, position_edges
from core.train.setup import TrainingSetup
from planner.model_spec import model_spec_from_config
from planner.types import RunConfig

CPU = torch.device("cpu")


class LiveBytes(TorchDispatchMode):
    """Bytes of the storages that operators made and that are still alive; ``peaks`` by the phase they occurred in."""

    def __init__(self, existing: Iterable[Tensor]) -> None:
        super().__init__()
        self.phase = ""
        self.peaks: dict[str, int] = {}
        self._live_bytes = 0
        self._sizes = {tensor.untyped_storage()._cdata: 0 for tensor in existing}  # not made by the step

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._count(tensor.untyped_storage())
        self.peaks[self.phase] = max(self.peaks.get(self.phase, 0), self._live_bytes)
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = storage.nbytes()
            self._live_bytes += storage.nbytes()
            weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self._live_bytes -= self._sizes.pop(key)


class CudaFlashAllocations:
    """Allocates as torch's CUDA flash attention does; computes nothing."""

    key = "torch"
    name = "allocations of torch CUDA flash"
    takes_segments = False
    max_elements = None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
        return _like(q), torch.zeros(q.shape[:-1])

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        per_query_head = _like(q), _like(q)  # dk and dv before they are summed over the heads of a group
        scratch = torch.zeros(q.shape), torch.zeros(q.shape[:-1])  # fp32 dq, row sums
        grads = _like(q), _like(k), _like(v)
        del per_query_head, scratch
        return grads


def _like(x: Tensor) -> Tensor:
    return torch.zeros(x.shape[0], x.shape[2], x.shape[1], x.shape[3], dtype=x.dtype).transpose(1, 2)


def step_peaks(model_config: dict[str, Any], config: RunConfig, *, as_cuda: bool) -> dict[str, int]:
    """Highest bytes above static in forward, backward, optimizer step and evaluation of the second step."""
    setup = build(model_config, config, CudaFlashAllocations() if as_cuda else CpuFlashKernel())
    tokens = config.max_length
    ids = torch.randint(0, model_config["vocab_size"], (tokens,))
    row = Row(
        input_ids=ids, labels=ids.roll(-1), position_ids=torch.arange(tokens), cu_seqlens=(0, tokens), sample_ids=(0,),
        num_targets=tokens,
    )  # fmt: skip
    optimizer = build_optimizer(
        setup.model, optim=config.optim, learning_rate=1e-4, weight_decay=0.0, betas=(0.9, 0.999), epsilon=1e-8,
        master_weights=config.master_weights,
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
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def enter(phase: str) -> None:
        if mode is not None:
            mode.phase = phase

    step()  # states exist from here on
    states = [x for state in optimizer.state.values() for x in state.values()]
    static = [*setup.model.parameters(), *setup.model.buffers(), *states]
    mode = LiveBytes([*static, row.input_ids, row.labels, row.position_ids])
    with mode:
        step()
        enter("evaluation")
        with torch.no_grad():
            shard = shard_row(row, setup.mesh, CPU)
            setup.loss = PositionLoss(setup.loss, position_edges(tokens), CPU)
            setup.loss.position_ids = shard.position_ids
            forward_loss(setup, shard)
    return mode.peaks


def build(model_config: dict[str, Any], config: RunConfig, kernel: AttentionKernel) -> TrainingSetup:
    register_attention()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**model_config, use_cache=False), attn_implementation=ATTENTION_NAME,
        dtype=getattr(torch, config.dtype),
    ).train()  # fmt: skip
    model.requires_grad_(config.method == "full")
    setup = TrainingSetup(
        config=config, spec=model_spec_from_config("tiny", model_config), device=CPU,
        mesh=build_mesh(config.parallel, rank=0, world=1), model=model, attention=LocalAttention(kernel),
        loss=StockLoss(), emit=lambda name, data: None,
    )  # fmt: skip
    for optimization in enabled_optimizations(config, REGISTRY):
        optimization.apply(setup)
    return setup
