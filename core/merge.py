"""Base weights and an adapter become one transformers folder: `python -P -m core.merge`, from `longfit export --merge`.

File by file and tensor by tensor, as they lie on disk: what is held at once is one file of the base, no model is built.
A weight that the adapter changes becomes round(W + s·B·A), W as the training had it (in the run's dtype), the product
and the sum in float32, rounded once. All others are W. The base of a QLoRA run is taken in the run's 16 bits: what its
training multiplied by was the same rounded to 4.

One JSON line on stdout: {"weights_bytes", "merged", "tensors"} or {"error": {what, why, fix, exit_code}}; progress on
stderr.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoConfig
from transformers.utils import cached_file
from transformers.utils import logging as transformers_logging

from core.export import require_space
from core.model.load import scale_rope
from core.run.config_file import read_config
from core.trained import ADAPTER_CONFIG, ADAPTER_FILE, TOKENIZER_FILES
from planner.errors import ConfigError, EnvironmentProblem, LongfitError
from planner.types import RunConfig

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_BESIDE = ("generation_config.json", "preprocessor_config.json", "processor_config.json")  # of the base
_PREFIX = "base_model.model."  # PEFT's, before a module's name in the model


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """The matrices of each adapted module: A (rank, inputs), B (outputs, rank). Adds ``scaling``·B·A to its weight."""

    scaling: float
    a: Mapping[str, torch.Tensor]
    b: Mapping[str, torch.Tensor]

    def merged(self, module: str, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """(outputs, inputs) in ``dtype``. Raises: ConfigError when the shapes do not fit."""
        a, b = self.a[module].float(), self.b[module].float()
        if (b.shape[0], a.shape[1]) != tuple(weight.shape):
            raise ConfigError(
                f"The adapter of {module} does not fit the base model.",
                why=f"It is for a weight of {b.shape[0]:,} x {a.shape[1]:,}, the base has "
                f"{' x '.join(f'{size:,}' for size in weight.shape)}.",
                fix="Put the base model back that the run was trained from.",
            )
        return torch.addmm(weight.to(dtype).float(), b, a, alpha=self.scaling).to(dtype)


def read_adapter(checkpoint: Path) -> Adapter:
    """Raises: ConfigError for an adapter that longfit does not write (DoRA, ranks by pattern)."""
    config = json.loads((checkpoint / ADAPTER_CONFIG).read_text("utf-8"))
    other = [key for key in ("use_dora", "rank_pattern", "alpha_pattern", "lora_bias", "modules_to_save")
             if config.get(key)]  # fmt: skip
    tensors = load_file(checkpoint / ADAPTER_FILE)
    names = {"a": ".lora_A.weight", "b": ".lora_B.weight"}
    parts = {
        which: {name[len(_PREFIX) : -len(end)]: tensor for name, tensor in tensors.items() if name.endswith(end)}
        for which, end in names.items()
    }
    if other or len(parts["a"]) + len(parts["b"]) != len(tensors) or parts["a"].keys() != parts["b"].keys():
        raise ConfigError(
            f"The adapter {checkpoint} cannot be merged.",
            why=f"It uses {', '.join(other)}." if other else "It has tensors other than pairs of A and B.",
            fix="Export the adapter alone, and merge it with PEFT.",
        )
    rank = config["r"]
    scaling = config["lora_alpha"] / (math.sqrt(rank) if config.get("use_rslora") else rank)
    return Adapter(scaling=scaling, **parts)


def base_files(model: str) -> list[Path]:
    """The files of a model's weights, from its folder or from what was downloaded; nothing is asked of a hub.

    Raises: ConfigError when one is missing.
    """
    index = _cached(model, _INDEX)
    if index is None:
        names = [_SINGLE]
    else:
        names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
    found = {name: _cached(model, name) for name in names}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        is_folder = Path(model).is_dir()
        raise ConfigError(
            f"The weights of the base model '{model}' are not on this machine.",
            why=f"{missing[0]} is missing.",
            fix="Put it back." if is_folder else f"Download it: hf download {model} ; then export again.",
        )
    return [path for path in found.values() if path is not None]


def weights_bytes(files: Iterable[Path], dtype: torch.dtype) -> int:
    """Of the merged model: every floating-point tensor in ``dtype``. Reads the files' heads only."""
    total = 0
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  # no mapping
                part = tensors.get_slice(name)
                itemsize = dtype.itemsize if part.get_dtype().startswith(("F", "BF")) else 8
                total += math.prod(part.get_shape()) * itemsize
    return total


def merge(config: RunConfig, checkpoint: Path, into: Path) -> dict[str, int]:
    """Fill the folder ``into``: config.json with the run's dtype and RoPE, weights under the base's names, tokenizer.

    Raises: ConfigError when base and adapter do not belong together, EnvironmentProblem when the disk has no room.
    """
    dtype = getattr(torch, config.dtype)
    model_config = AutoConfig.from_pretrained(config.model, local_files_only=True)
    if getattr(model_config, "quantization_config", None):
        raise ConfigError(
            f"The base model '{config.model}' is stored quantised.",
            why="An adapter is added to weights of 16 or 32 bits; quantising the sum again would lose the training.",
            fix="Export the adapter alone, without --merge.",
        )
    adapter = read_adapter(checkpoint)
    files = base_files(config.model)
    by_tensor = _places(adapter, files, checkpoint)
    require_space(into, weights_bytes(files, dtype))
    index: dict[str, str] = {}
    total = 0
    for number, file in enumerate(files, 1):
        sys.stderr.write(f"merging {file.name}, {number} of {len(files)}\n")
        merged = dict(_tensors(file, adapter, by_tensor, dtype))
        save_file(merged, into / file.name, metadata={"format": "pt"})
        index |= dict.fromkeys(merged, file.name)
        total += sum(tensor.nbytes for tensor in merged.values())
    if len(files) > 1:
        content = {"metadata": {"total_size": total}, "weight_map": dict(sorted(index.items()))}
        (into / _INDEX).write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    scale_rope(model_config.get_text_config(), dict(config.rope_scaling))
    for part in (model_config, model_config.get_text_config()):
        part.dtype = dtype
    model_config.save_pretrained(into)
    for file in into.glob("*.safetensors"):
        shutil.copymode(into / "config.json", file)  # safetensors keeps a file to its owner
    for name in (*_BESIDE, *TOKENIZER_FILES):
        saved = checkpoint / name
        path = saved if saved.is_file() else _cached(config.model, name)
        if path is not None:
            shutil.copyfile(path, into / name)
    return {"weights_bytes": total, "merged": len(by_tensor), "tensors": len(index)}


def _places(adapter: Adapter, files: Sequence[Path], checkpoint: Path) -> dict[str, str]:
    """{a tensor's name in the files: the adapted module}.

    Raises: ConfigError when an adapted module has no weight among them: it would be lost without a word.
    """
    stored: set[str] = set()
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            stored |= set(tensors.keys())
    found: dict[str, str] = {}
    lost = []
    for module in adapter.a:
        name = next((name for name in _names_on_disk(module) if name in stored), None)
        if name is None:
            lost.append(module)
        else:
            found[name] = module
    if lost:
        raise ConfigError(
            f"{len(lost)} of {len(adapter.a)} adapted weights are not among the base model's, the first is {lost[0]}.",
            why="This model's files have other names than its modules, and longfit does not know them.",
            fix=f"Export the adapter alone; PEFT's merge_and_unload merges {checkpoint.name}.",
        )
    return found


def _names_on_disk(module: str) -> Iterator[str]:
    """What a file may call a module's weight: as the module; as older transformers called the text model of one that
    reads pictures; or without the prefix of the head's model, as a base model is saved."""
    yield f"{module}.weight"
    yield f"{module.replace('model.language_model.', 'language_model.model.', 1)}.weight"
    yield f"{module.removeprefix('model.')}.weight"


def _tensors(
    file: Path, adapter: Adapter, by_tensor: Mapping[str, str], dtype: torch.dtype
) -> Iterator[tuple[str, torch.Tensor]]:
    with safe_open(file, framework="pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118  # no mapping
            tensor = tensors.get_tensor(name)
            if name in by_tensor:
                yield name, adapter.merged(by_tensor[name], tensor, dtype)
            else:
                yield name, tensor.to(dtype) if tensor.is_floating_point() else tensor


def _cached(model: str, name: str) -> Path | None:
    path = cached_file(
        model, name, local_files_only=True, _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False, _raise_exceptions_for_gated_repo=False,
    )  # fmt: skip
    return None if path is None else Path(path)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -P -m core.merge", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="run directory")
    parser.add_argument("--checkpoint", type=Path, required=True, help="of the run, with an adapter")
    parser.add_argument("--into", type=Path, required=True, help="an empty folder")
    args = parser.parse_args(arguments)
    transformers_logging.set_verbosity_error()
    try:
        answer: dict[str, Any] = merge(read_config(args.run), args.checkpoint, args.into)
    except LongfitError as error:
        answer = {"error": _words(error)}
    except (OSError, SafetensorError) as error:
        answer = {"error": _words(EnvironmentProblem("Base and adapter could not be merged.", why=f"{error}."))}
    sys.stdout.write(json.dumps(answer) + "\n")
    return int(answer["error"]["exit_code"]) if "error" in answer else 0


def _words(error: LongfitError) -> dict[str, Any]:
    return {"what": error.what, "why": error.why, "fix": error.fix, "exit_code": error.exit_code}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
