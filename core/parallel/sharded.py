"""The parameters of a model as shards over all ranks, by PyTorch's FSDP2. Built by `fsdp` (core/optimizations/fsdp.py).

    groups      each decoder layer, gathered while it computes; and the root: embeddings, head, last norm
    gathered    a layer for its forward and again for its backward; the root from the forward to the end of backward
    gradients   summed over the ranks, never averaged, in float32 or wider, as soon as a layer's backward ends

A parameter is cut into rows: of n rows, rank r has ceil(n / world) from r * ceil(n / world) on, the last ranks fewer or
none. The model holds DTensors; optimizer, norm and clipping work on ``trained``, plain tensors that share their memory.

The head is not called as a module: the loss multiplies by its weight (core/train/forward.py). So the root of FSDP is a
module of our own around model and loss, whose forward is whatever it is given to compute: inside it the head's weight
is whole, and its gradient, that of tied embeddings too, is summed like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard


class ShardedModel:
    """One a run. Everything here is collective over all ranks unless it says otherwise."""

    def __init__(self, model: nn.Module, causal_lm: nn.Module, *, device: torch.device, world: int) -> None:
        """``model``: ``causal_lm``, or the adapters around it, on ``device`` or on the host: a layer at a time goes to
        the device whole, and its shard stays. Parameters become DTensors; the hooks on their gradients move over."""
        self.world = world
        hooks = {name: _gradient_hooks(parameter) for name, parameter in model.named_parameters()}
        widest = {torch.promote_types(p.dtype, torch.float32) for p in model.parameters() if p.requires_grad}
        policy = MixedPrecisionPolicy(reduce_dtype=widest.pop() if len(widest) == 1 else None)
        mesh = init_device_mesh(device.type, (world,))
        self._root = _Root(causal_lm)
        layers = causal_lm.get_decoder().layers  # type: ignore[operator]
        groups = [
            *(fully_shard(layer, mesh=mesh, reshard_after_forward=True, mp_policy=policy) for layer in layers),
            fully_shard(self._root, mesh=mesh, reshard_after_forward=False, mp_policy=policy),
        ]
        for group in groups:  # a plain sum, in operations that every backend has
            group.set_gradient_divide_factor(1.0)
            group.set_force_sum_reduction_for_comms(True)
        self.sharded: dict[str, DTensor] = {}
        for name, parameter in model.named_parameters():
            assert isinstance(parameter, DTensor), name
            self.sharded[name] = parameter
            for hook in hooks[name]:
                parameter.register_post_accumulate_grad_hook(hook)
        # what the optimizer updates: this rank's rows of what is trained, by the name of the parameter
        self.trained = {
            name: nn.Parameter(local_rows(parameter.detach()))
            for name, parameter in self.sharded.items()
            if parameter.requires_grad
        }

    def run(self, compute: Callable[[], Tensor]) -> Tensor:
        """``compute()``, which calls the decoder and multiplies by the head, while the root is gathered."""
        loss: Tensor = self._root(compute)
        if not torch.is_grad_enabled():
            self._root.reshard()  # type: ignore[operator]  # no backward will let go of it
        return loss

    def take_gradients(self) -> list[nn.Parameter]:
        """``trained`` with the gradients of this rank's rows, which the model gives up; sums over the ranks and over
        the micro-batches so far. Not collective."""
        for name, own in self.trained.items():
            gradient = self.sharded[name].grad
            own.grad = None if gradient is None else local_rows(gradient)
            self.sharded[name].grad = None
        return list(self.trained.values())

    def as_shard(self, name: str, rows: Tensor) -> DTensor:
        """This rank's rows of a tensor that is cut as parameter ``name`` is. Not collective."""
        parameter = self.sharded[name]
        return DTensor.from_local(
            rows, parameter.device_mesh, parameter.placements, shape=parameter.shape, stride=parameter.stride()
        )

    def held_bytes(self) -> tuple[int, int, int]:
        """Bytes of weights: what this rank holds, its share, the whole. Not collective."""
        held = sum(local_rows(parameter).untyped_storage().nbytes() for parameter in self.sharded.values())
        whole = sum(parameter.nbytes for parameter in self.sharded.values())
        share = sum(
            -(-parameter.shape[0] // self.world) * (parameter.nbytes // parameter.shape[0])
            for parameter in self.sharded.values()
        )
        return held, share, whole


class _Root(nn.Module):
    """What FSDP takes for the whole model."""

    def __init__(self, causal_lm: nn.Module) -> None:
        super().__init__()
        self.causal_lm = causal_lm

    def forward(self, compute: Callable[[], Tensor]) -> Tensor:
        return compute()


def local_rows(tensor: Tensor) -> Tensor:
    """What this rank has of ``tensor``: its rows of a DTensor, all of any other."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def own_rows(tensor: Tensor) -> slice | None:
    """Which rows of the whole tensor this rank has; None: all, it is no shard."""
    if not isinstance(tensor, DTensor):
        return None
    assert tensor.placements == (Shard(0),), tensor.placements
    num_rows, mesh = tensor.shape[0], tensor.device_mesh
    size = -(-num_rows // mesh.size())
    start = min(mesh.get_rank() * size, num_rows)
    return slice(start, min(start + size, num_rows))


def gather(tensors: Mapping[str, Tensor], *, rank: int) -> dict[str, Tensor]:
    """``tensors`` whole, on the host of rank 0; {} on all others. One tensor at a time is whole on a device. Names of
    one tensor keep sharing it.

    Collective over the ranks of the DTensors among them, in the order of the mapping.
    """
    whole: dict[int, Tensor] = {}
    for tensor in tensors.values():
        if id(tensor) in whole:
            continue
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        whole[id(tensor)] = full.cpu() if rank == 0 else torch.empty(0)
        del full
    return {name: whole[id(tensor)] for name, tensor in tensors.items()} if rank == 0 else {}


def _gradient_hooks(parameter: nn.Parameter) -> list[Callable[[Tensor], None]]:
    hooks = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
    return list(hooks.values())
