"""Host memory of a node and disk bytes of a run: often the first walls that nobody planned for.

Keys say what kind of memory it is: ``pinned.`` stays where it is, ``pageable.`` can be swapped, ``page_cache.`` is
given back as soon as memory is short and is therefore shown and not judged.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.account import Account
from planner.experts import num_expert_parameters
from planner.parts.offload import offloaded_host_bytes, outputs_leave
from planner.parts.streaming import streamed_host_bytes
from planner.types import DTYPE_BYTES, INSTANTS, Basis, Instant, Part, Term

MIB = 1024**2
PROCESS_BYTES = 2400 * MIB  # interpreter, torch with CUDA libraries, pinned staging, of one training process; assumed
RUN_FILES_BYTES = 64 * MIB  # log, events, metrics, data store index of a run; assumed
ALWAYS: frozenset[Instant] = frozenset(INSTANTS)
PAGE_CACHE = "page_cache."


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """What a host or a disk holds at its worst moment."""

    terms: tuple[Term, ...]

    @property
    def bytes(self) -> int:
        return sum(term.bytes for term in self.terms)

    @property
    def needed_bytes(self) -> int:
        """What has to be there: without pages that are given back."""
        return sum(term.bytes for term in self.terms if not term.key.startswith(PAGE_CACHE))


def host_needed_bytes(result: Account, used_bytes: int) -> int:
    """RAM that the processes of one node cannot do without; the numeric path of ``host_store``."""
    processes = _processes(result)
    if result.ctx.cluster.gpu.kind == "cpu":
        return processes * used_bytes
    in_each = PROCESS_BYTES + _streamed_bytes(result) + _pinned_bytes(result) + _paged_bytes(result)
    return processes * in_each + _saved_copy_bytes(result) + _experts_beyond(result)


def host_store(result: Account, used_bytes: int) -> Store:
    """RAM of one node. ``used_bytes`` is what a CPU process holds."""
    ctx, processes = result.ctx, _processes(result)
    if ctx.cluster.gpu.kind == "cpu":
        text = f"{processes} process(es) * {used_bytes}: each as planned"
        return Store(terms=(_term("pageable.processes", "runtime", processes * used_bytes, text, "modelled"),))
    times = f"{processes} process{'es' * (processes > 1)} *"
    pinned, paged = _pinned_bytes(result), _paged_bytes(result)
    terms = [
        _term(
            "pageable.processes", "runtime", processes * PROCESS_BYTES,
            f"{times} {PROCESS_BYTES // MIB} MiB: interpreter, libraries, staging buffers", "assumed",
        )
    ]  # fmt: skip
    if streamed := _streamed_bytes(result):
        text = f"{times} {streamed}: frozen weights in pinned memory"
        terms.append(_term("pinned.weights", "weights", processes * streamed, text, "exact"))
    if pinned:
        what = "inputs and attention outputs" if outputs_leave(ctx.config, ctx.model) else "inputs"
        text = f"{times} {pinned}: layers' {what} in pinned slots"
        terms.append(_term("pinned.checkpoints", "checkpoints", processes * pinned, text, "exact"))
    if paged:
        text = f"{times} {paged}: optimizer states that have left the GPU"
        terms.append(_term("pageable.optimizer", "optimizer", processes * paged, text, "modelled"))
    copied = _saved_copy_bytes(result)
    text = f"{copied}: the larger of weights and optimizer states of a checkpoint, copied over as it is written"
    text += "; and both, put together from their shards" if ctx.config.optimization("fsdp") else ""
    terms.append(_term("pageable.checkpoint", "optimizer", copied, text, "modelled", frozenset({"save"})))
    if experts := _experts_beyond(result):
        text = (
            f"{times} {ctx.sizes.c} * {num_expert_parameters(ctx.model)}: experts, which a checkpoint has one by one, "
            "copied into one parameter a layer before they go to the GPU; less what takes their place later"
        )
        terms.append(_term("pageable.experts", "weights", experts, text, "modelled", frozenset({"load"})))
    checkpoint = DTYPE_BYTES[ctx.model.checkpoint_dtype] * ctx.model.num_parameters
    room = max(0, ctx.cluster.host_bytes_per_node - sum(term.bytes for term in terms))
    terms.append(
        _term(
            f"{PAGE_CACHE}weights", "weights", min(checkpoint, room),
            f"{DTYPE_BYTES[ctx.model.checkpoint_dtype]} * {ctx.model.num_parameters}: pages of the mapped weights, one "
            "copy for all processes, as far as there is room", "modelled", frozenset({"load"}),
        )
    )  # fmt: skip
    return Store(terms=tuple(terms))


def _experts_beyond(result: Account) -> int:
    """Of the experts that are put together in host memory while all processes of a node load, what is more than the
    pinned weights and slots, paged states and copies that the run holds there later. Resident after loading 1,175 MiB
    of which 1,152 are experts: 1,159 MiB (transformers 5.17, core_model_loading.py)."""
    if result.ctx.model.experts is None:
        return 0
    in_each = _streamed_bytes(result) + _pinned_bytes(result) + _paged_bytes(result)
    later = _processes(result) * in_each + _saved_copy_bytes(result)
    copies = _processes(result) * result.ctx.sizes.c * num_expert_parameters(result.ctx.model)
    return max(0, copies - later)


def checkpoint_bytes(result: Account) -> int:
    """One checkpoint: what is trained, and its optimizer states."""
    return sum(_checkpoint_files(result))


def _checkpoint_files(result: Account) -> tuple[int, int]:
    """What is trained, and its optimizer states: whole, also where ranks have shards."""
    ctx, specs = result.ctx, result.combined.specs
    shards = ctx.config.parallel.world if ctx.config.optimization("fsdp") else 1
    trained = shards * sum(spec.bytes for spec in specs if spec.key == "weights.adapters")
    if ctx.config.method == "full":
        trained = DTYPE_BYTES[ctx.config.dtype] * ctx.model.num_parameters
    return trained, shards * sum(spec.bytes for spec in specs if spec.key.startswith("optimizer."))


def disk_bytes(result: Account) -> int:
    """The numeric path of ``disk_store``."""
    return _num_checkpoints(result) * checkpoint_bytes(result) + RUN_FILES_BYTES + _download_bytes(result)


def disk_store(result: Account) -> Store:
    """The kept checkpoints, the one being written, the best one when it is kept apart, and weights still to come."""
    config, count, one = result.ctx.config, _num_checkpoints(result), checkpoint_bytes(result)
    terms = [
        _term(
            "checkpoints", "optimizer", count * one,
            f"{count} * {one}: {config.save_total_limit} kept, one being written{', the best' * config.keep_best}; "
            "what is trained, and its optimizer states", "exact", frozenset({"save"}),
        ),
        _term("run_files", "runtime", RUN_FILES_BYTES, f"{RUN_FILES_BYTES // MIB} MiB: log, events, data", "assumed"),
    ]  # fmt: skip
    if download := _download_bytes(result):
        text = f"{download} bytes: weights in the cache; they do not lie in a folder here"
        terms.append(_term("cache.weights", "weights", download, text, "exact"))
    return Store(terms=tuple(terms))


def _processes(result: Account) -> int:
    return min(result.ctx.config.parallel.world, result.ctx.cluster.num_gpus_per_node)


def _streamed_bytes(result: Account) -> int:
    """Weights that wait for their layer's turn, of one process."""
    return streamed_host_bytes(result.ctx.config, result.ctx.model)


def _saved_copy_bytes(result: Account) -> int:
    """safetensors copies every tensor of a file over before it writes the first (core/train/saved_state.py). Shards are
    put together on the host of rank 0, for both files, before that (core/train/saver.py)."""
    files = _checkpoint_files(result)
    return max(files) + (sum(files) if result.ctx.config.optimization("fsdp") else 0)


def _pinned_bytes(result: Account) -> int:
    """Layer inputs and attention outputs, of one process; a CPU process has them among its tensors."""
    return 0 if result.ctx.sizes.on_cpu else offloaded_host_bytes(result.ctx.config, result.ctx.model)


def _paged_bytes(result: Account) -> int:
    """Optimizer states in managed memory that have left the GPU, of one process."""
    specs = result.combined.specs
    return sum(spec.bytes for spec in specs if spec.key.startswith("optimizer.") and spec.key.endswith(".paged"))


def _num_checkpoints(result: Account) -> int:
    config = result.ctx.config
    return config.save_total_limit + 1 + config.keep_best


def _download_bytes(result: Account) -> int:
    """A model that is named by a folder lies there already; app/services/models.py resolves to one when it can."""
    model = result.ctx.model
    if result.ctx.config.model.startswith("/"):
        return 0
    return DTYPE_BYTES[model.checkpoint_dtype] * model.num_parameters


def _term(
    key: str, part: Part, size_bytes: int, formula: str, basis: Basis, instants: frozenset[Instant] = ALWAYS
) -> Term:  # fmt: skip
    return Term(key=key, part=part, instants=instants, bytes=size_bytes, formula=formula, basis=basis)
