"""Host memory of a node and disk bytes of a run: often the first walls that nobody planned for."""

from __future__ import annotations

from planner.account import Account
from planner.parts.offload import offloaded_host_bytes
from planner.types import DTYPE_BYTES

MIB = 1024**2
PROCESS_BYTES = 2400 * MIB  # interpreter, torch with CUDA libraries, pinned staging, of one training process; assumed
RUN_FILES_BYTES = 64 * MIB  # log, events, metrics, data store index of a run; assumed


def host_bytes(result: Account, used_bytes: int) -> int:
    """RAM of one node at its worst moment.

    A process on a GPU maps the checkpoint and moves it over: its pages are the node's, one copy for all processes.
    """
    ctx = result.ctx
    processes = min(ctx.config.parallel.world, ctx.cluster.num_gpus_per_node)
    if ctx.cluster.gpu.kind == "cpu":
        return processes * used_bytes
    checkpoint = DTYPE_BYTES[ctx.config.dtype] * ctx.model.num_parameters
    return checkpoint + processes * (PROCESS_BYTES + offloaded_host_bytes(ctx.config, ctx.model))


def checkpoint_bytes(result: Account) -> int:
    """One checkpoint: what is trained, and its optimizer states."""
    # what is trained has the bytes of its gradients
    return sum(
        spec.bytes for spec in result.combined.specs if spec.key.startswith("optimizer.") or spec.key.endswith(".all")
    )


def disk_bytes(result: Account) -> int:
    """The kept checkpoints, the one being written, and the best one when it is kept apart."""
    config = result.ctx.config
    kept = config.save_total_limit + 1 + config.keep_best
    return kept * checkpoint_bytes(result) + RUN_FILES_BYTES
