"""What a checkpoint holds besides trainer_state.json: weights, optimizer state, RNG states, tokenizer files.

Only safetensors and json, never pickle: reading a checkpoint of a stranger cannot run code. Used by the trainer.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from peft import PeftModel, get_peft_model_state_dict
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.utils import cached_file

from core.parallel.sharded import ShardedModel, local_rows, own_rows
from core.train.optimizer import restore_state, state_tensors
from core.trained import ADAPTER_FILE, TOKENIZER_FILES
from planner.errors import ConfigError

OPTIMIZER_FILE = "optimizer.safetensors"
RNG_FILE = "rng.safetensors"


def weight_tensors(model: nn.Module) -> dict[str, Tensor]:
    """What a checkpoint has of the model, under its names there: an adapter, or everything. Tied weights are one
    tensor. Not copied: writing into them changes the model."""
    if isinstance(model, PeftModel):
        # Embeddings are saved only when they are trained: "auto" would ask the hub whether the vocabulary was resized.
        return get_peft_model_state_dict(model, save_embedding_layers=False)
    distinct: dict[int, Tensor] = {}
    tensors = model.state_dict(keep_vars=True)
    return {name: distinct.setdefault(id(tensor), tensor.detach()) for name, tensor in tensors.items()}


def save_weights(model: nn.Module, directory: Path, tensors: Mapping[str, Tensor] | None = None) -> None:
    """An adapter in PEFT's layout, or the whole model in the layout of ``save_pretrained``. ``tensors``: its
    ``weight_tensors`` whole, where it has shards of them."""
    tensors = weight_tensors(model) if tensors is None else tensors
    with _io_errors():
        if isinstance(model, PeftModel):
            config = copy.copy(model.peft_config["default"])
            config.inference_mode = True  # as PEFT saves it: loaded frozen unless told otherwise
            config.save_pretrained(str(directory))
            whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
            save_file(whole, directory / ADAPTER_FILE, metadata={"format": "pt"})
            return
        use_cache = model.config.use_cache
        model.config.use_cache = True  # off while training; whoever loads this wants to generate
        try:
            model.save_pretrained(directory, state_dict=dict(tensors))
        finally:
            model.config.use_cache = use_cache


def load_weights(model: nn.Module, directory: Path) -> None:
    """Bring saved weights, bit for bit, into a model built for the same config; a rank with shards reads its rows.

    Raises: ConfigError when the names of the tensors are not those of the model.
    """
    targets = weight_tensors(model)
    found: set[str] = set()
    pattern = ADAPTER_FILE if isinstance(model, PeftModel) else "model*.safetensors"
    for path in sorted(directory.glob(pattern)):
        with safe_open(path, framework="pt") as file, torch.no_grad():
            for name in set(file.keys()) & targets.keys():
                local_rows(targets[name]).copy_(_read(file, name, own_rows(targets[name])))
            found.update(file.keys())
    # Tied weights are saved once, under one of their names.
    stored = {id(targets[name]) for name in found & targets.keys()}
    tied = {name for name, tensor in targets.items() if id(tensor) in stored}
    _require_same_names(found | tied, targets, directory)


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, model: nn.Module, sharded: ShardedModel | None = None
) -> dict[str, Tensor]:
    """Every state tensor under "<parameter name>/<state name>"; hyperparameters come from the config."""
    return {
        f"{name}/{key}": value if sharded is None or value.ndim == 0 else sharded.as_shard(name, value)
        for name, parameter in _updated(model, sharded).items()
        for key, value in state_tensors(optimizer, parameter).items()
    }


def save_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module, directory: Path, tensors: Mapping[str, Tensor] | None = None
) -> None:
    """``tensors``: the optimizer's whole, where it has shards of them."""
    tensors = optimizer_tensors(optimizer, model) if tensors is None else tensors
    with _io_errors():
        save_file({name: value.contiguous() for name, value in tensors.items()}, directory / OPTIMIZER_FILE)


def load_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module, directory: Path, sharded: ShardedModel | None = None
) -> None:
    """What ``save_optimizer`` wrote. Raises: ConfigError when it is of other parameters."""
    updated = _updated(model, sharded)
    parameters = dict(model.named_parameters())
    states: dict[str, dict[str, str]] = {}  # their names in the file
    with safe_open(directory / OPTIMIZER_FILE, framework="pt") as file:
        for full_name in file.keys():  # noqa: SIM118  (no mapping)
            name, _, key = full_name.rpartition("/")
            states.setdefault(name, {})[key] = full_name
        # A parameter that never got a gradient has no state.
        _require_same_names(states.keys() | updated.keys(), updated, directory)
        for name, keys in states.items():
            rows = own_rows(parameters[name])
            restore_state(optimizer, updated[name], {key: _read(file, full, rows) for key, full in keys.items()})


def gather_rng_states(device: torch.device, world: int) -> dict[str, torch.Tensor]:
    """The generators of every rank, on every rank: {"rank0.cpu": uint8, "rank0.cuda": uint8, ...}.

    Python's and numpy's generators are not in it: nothing in a run draws from them; data order is a function of seed,
    epoch and index. Collective: every rank of the world.
    """
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    if world == 1:
        return {f"rank0.{kind}": state for kind, state in states.items()}
    gathered: dict[str, torch.Tensor] = {}
    for kind, state in states.items():
        ranks = [torch.empty_like(state, device=device) for _ in range(world)]
        dist.all_gather(ranks, state.to(device))
        gathered |= {f"rank{rank}.{kind}": each.cpu() for rank, each in enumerate(ranks)}
    return gathered


def save_rng_states(states: Mapping[str, torch.Tensor], directory: Path) -> None:
    with _io_errors():
        save_file(dict(states), directory / RNG_FILE)


def restore_rng_state(rank: int, device: torch.device, directory: Path) -> bool:
    """Set this rank's generators; False when the checkpoint has none for it (other world size or device)."""
    states = load_file(directory / RNG_FILE)
    kinds = ["cpu", "cuda"] if device.type == "cuda" else ["cpu"]
    if any(f"rank{rank}.{kind}" not in states for kind in kinds):
        return False
    torch.set_rng_state(states[f"rank{rank}.cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[f"rank{rank}.cuda"], device)
    return True


def copy_tokenizer(source: str, directory: Path) -> None:
    """Copy the tokenizer files of a local folder, or of a hub id already in the cache, without loading a tokenizer
    (which would add its size to the measured memory)."""
    for name in TOKENIZER_FILES:
        file = cached_file(
            source,
            name,
            local_files_only=True,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
            _raise_exceptions_for_gated_repo=False,
        )
        if file is not None:
            shutil.copyfile(file, directory / name)


def _updated(model: nn.Module, sharded: ShardedModel | None) -> dict[str, nn.Parameter]:
    """What the optimizer has states of, by name."""
    if sharded is not None:
        return sharded.trained
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _read(file: Any, name: str, rows: slice | None) -> Tensor:
    """A tensor of a safetensors file, or ``rows`` of it; a scalar has none."""
    part = file.get_slice(name)
    if rows is None or not part.get_shape():
        return file.get_tensor(name)
    return part[rows] if rows.stop > rows.start else part[:1][:0]


def _require_same_names(saved: Iterable[str], expected: Iterable[str], directory: Path) -> None:
    missing, unknown = sorted(set(expected) - set(saved)), sorted(set(saved) - set(expected))
    if missing or unknown:
        raise ConfigError(
            f"The checkpoint {directory} does not belong to this model.",
            why=f"{len(missing)} tensors are missing {missing[:3]}, {len(unknown)} are unknown {unknown[:3]}.",
            fix="Resume with the model and the adapter settings that saved it.",
        )


@contextmanager
def _io_errors() -> Iterator[None]:
    """safetensors reports a full disk as its own error; the checkpoint writer speaks OSError."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(str(error)) from error
