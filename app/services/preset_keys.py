"""The keys a preset may hold, with their types, limits and help: the source of checks, flags, forms and docs.

Optimization keys are not listed here: they come from the registry's dataclasses.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, get_args

from planner.errors import ConfigError
from planner.optimization import Registry
from planner.types import DataConfig, MasterWeights, Optim, RunConfig

Kind = Literal["int", "float", "bool", "text", "texts", "mapping"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetKey:
    name: str
    kind: Kind
    help: str
    default: Any = None
    choices: tuple[Any, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    required: bool = False


def _default(name: str, source: type = RunConfig) -> Any:
    default = next(f.default for f in fields(source) if f.name == name)
    return None if default is MISSING else default


def _key(name: str, kind: Kind, help: str, **more: Any) -> PresetKey:
    return PresetKey(name=name, kind=kind, help=help, default=more.pop("default", _default(name)), **more)


RUN_KEYS: tuple[PresetKey, ...] = (
    _key("model", "text", "catalog name, hub id or local folder", required=True, default=None),
    _key("max_length", "int", "tokens of the longest row; with packing, of a pack", minimum=8, required=True),
    PresetKey(name="data", kind="mapping", help="what to train on, see the data keys", required=True),
    _key("dtype", "text", "of the base weights and the compute", choices=("bfloat16", "float16", "float32"),
         default="bfloat16"),
    PresetKey(name="autocast", kind="bool", default=None,
              help="mixed precision around the forward; on by itself where adapters are wider than the base"),
    PresetKey(name="rope_scaling", kind="mapping",
              help="{type: yarn|linear|dynamic, factor: 4.0}, for a length beyond the model"),
    _key("per_device_train_batch_size", "int", "rows per data-parallel replica and micro-batch", minimum=1),
    _key("per_device_eval_batch_size", "int", "rows per replica in evaluation", minimum=1),
    _key("gradient_accumulation_steps", "int", "micro-batches per optimizer step", minimum=1),
    _key("num_train_epochs", "float", "passes over the data, unless max_steps says otherwise", minimum=0),
    _key("max_steps", "int", "optimizer steps in all; -1: by epochs", minimum=-1),
    _key("learning_rate", "float", "peak learning rate", minimum=0),
    _key("lr_scheduler_type", "text", "shape of the learning rate", choices=("linear", "cosine", "constant", "wsd")),
    _key("warmup_ratio", "float", "share of the steps spent warming up", minimum=0, maximum=1),
    _key("warmup_steps", "int", "steps spent warming up; above 0 it rules over warmup_ratio", minimum=0),
    _key("weight_decay", "float", "AdamW weight decay on matrices", minimum=0),
    _key("max_grad_norm", "float", "clip the global gradient norm here; 0: never", minimum=0),
    _key("optim", "text", "optimizer; the 8-bit ones are bitsandbytes'", choices=get_args(Optim)),
    _key("master_weights", "text", "how 16-bit parameters keep small updates: a float32 copy, or rounding by chance",
         choices=get_args(MasterWeights)),
    _key("update", "text", "when: after the backward, or layer by layer within it, which never holds all gradients",
         choices=("step", "layer")),
    _key("adam_beta1", "float", "AdamW beta 1", minimum=0, maximum=1),
    _key("adam_beta2", "float", "AdamW beta 2", minimum=0, maximum=1),
    _key("adam_epsilon", "float", "AdamW epsilon", minimum=0),
    _key("seed", "int", "of data order, initialisation and dropout", minimum=0),
    _key("logging_steps", "int", "write a metrics row every n steps", minimum=1),
    _key("eval_steps", "int", "evaluate every n steps; 0: only at the start and the end", minimum=0),
    _key("save_steps", "int", "save a checkpoint every n steps; 0: only at the end and on stop", minimum=0),
    _key("save_total_limit", "int", "checkpoints kept on disk", minimum=1),
    _key("keep_best", "bool", "never delete the checkpoint with the lowest evaluation loss"),
    PresetKey(name="report_to", kind="texts", default=(), choices=("tensorboard", "trackio", "wandb"),
              help="also log there; metrics.jsonl is always written"),
    _key("deterministic", "bool", "bit-identical repeats on a GPU, slower"),
    PresetKey(name="engine", kind="text", default="auto", choices=("auto", "layer", "module"),
              help="who computes decoder layers: longfit's layer engine, or transformers' modules"),
    PresetKey(name="sequence_parallel", kind="int", default=1, minimum=1,
              help="ranks that share one row; longfit chooses Ulysses and ring degrees"),
)  # fmt: skip

DATA_KEYS: tuple[PresetKey, ...] = (
    PresetKey(name="train", kind="texts", help="files, folders or ids; `name#500` samples 500 rows", required=True),
    PresetKey(name="weights", kind="mapping", default={},
              help="{entry of train: its share of the rows}, e.g. {chat.jsonl: 0.7, docs/: 0.3}"),
    PresetKey(name="eval", kind="texts", default=(), help="held-out files"),
    PresetKey(name="eval_fraction", kind="float", default=0.0, minimum=0, maximum=0.5,
              help="share of the training rows held out when eval is empty"),
    PresetKey(name="shape", kind="text", default="auto",
              help="auto, messages, alpaca, sharegpt, query_response, text, ..."),
    PresetKey(name="system", kind="text", default=None, help="system prompt for rows that bring none"),
    PresetKey(name="over_length", kind="text", default=_default("over_length", DataConfig),
              choices=("drop", "truncate_left", "truncate_right", "split"),
              help="what happens to rows beyond max_length"),
    PresetKey(name="on_bad_row", kind="text", default="stop", choices=("stop", "skip"),
              help="what a malformed row does"),
    PresetKey(name="train_on", kind="text", default="assistant", choices=("assistant", "last", "all"),
              help="which tokens are targets"),
    PresetKey(name="columns", kind="mapping", default={}, help="{our key: the name in your data}, e.g. {query: frage}"),
    PresetKey(name="same_role", kind="text", default=_default("same_role", DataConfig), choices=("join", "refuse"),
              help="what two neighbouring turns of one role do"),
    PresetKey(name="split_at", kind="text", default="", help="over_length split: cut behind this text where it can be"),
    PresetKey(name="split_overlap", kind="int", default=_default("split_overlap", DataConfig), minimum=1,
              help="over_length split: tokens a piece repeats of the one before, as context"),
)  # fmt: skip

NOT_CONFIG = ("name", "description", "hardware", "measured")  # keys of a preset that do not reach the run


def check_keys(values: Mapping[str, Any], allowed: Iterable[str], *, where: str) -> None:
    """Raises: ConfigError naming the unknown key and its nearest relative."""
    names = sorted(set(allowed))
    for key in values:
        if key not in names:
            near = difflib.get_close_matches(str(key), names, n=1, cutoff=0.5)
            raise ConfigError(
                f"{where}: unknown key {str(key)!r}.",
                fix=f"Did you mean {near[0]!r}?" if near else f"Known keys: {', '.join(names)}.",
            )


def check_value(key: PresetKey, value: Any, *, where: str) -> Any:
    """The value in the key's own type. Raises: ConfigError saying what came, what is allowed, and how to write it."""
    name = f"{where}: {key.name}"
    if value is None and not key.required:
        return key.default
    if key.kind == "texts":
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
            raise ConfigError(f"{name} is {value!r}.", why="It must be a text or a list of texts.")
        value = tuple(items)
        for item in value:
            _check_choice(key, item, name)
        return value
    if key.kind == "mapping":
        if not isinstance(value, Mapping):
            raise ConfigError(f"{name} is {value!r}.", why=f"It must be a mapping: {key.help}.")
        return dict(value)
    if key.kind == "text" and isinstance(value, int) and str(value) in key.choices:
        value = str(value)  # `flash_attention: 2` is as good as "2"
    value = _scalar(key.kind, value, name)
    _check_choice(key, value, name)
    if key.minimum is not None and value < key.minimum:
        raise ConfigError(f"{name} is {value}.", why=f"The least it can be is {key.minimum:g}.")
    if key.maximum is not None and value > key.maximum:
        raise ConfigError(f"{name} is {value}.", why=f"The most it can be is {key.maximum:g}.")
    return value


def optimization_keys(name: str, registry: Registry) -> tuple[PresetKey, ...]:
    """The knobs of one optimization as keys, from its dataclass fields."""
    kinds: dict[type, Kind] = {int: "int", float: "float", bool: "bool", str: "text"}
    return tuple(
        PresetKey(
            name=f.name, kind=kinds[type(f.default)], default=f.default, help=f.metadata.get("help", ""),
            choices=tuple(f.metadata.get("choices", ())), minimum=f.metadata.get("minimum"),
        )
        for f in fields(registry[name])
    )  # fmt: skip


def _check_choice(key: PresetKey, value: Any, name: str) -> None:
    if key.choices and value not in key.choices:
        near = difflib.get_close_matches(str(value), [str(choice) for choice in key.choices], n=1, cutoff=0.5)
        raise ConfigError(
            f"{name} is {value!r}.",
            why=f"It can be {', '.join(str(choice) for choice in key.choices)}.",
            fix=f"Did you mean {near[0]!r}?" if near else "",
        )


def _scalar(kind: Kind, value: Any, name: str) -> Any:
    if kind == "bool":
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if not isinstance(value, bool):
            raise ConfigError(f"{name} is {value!r}.", why="It must be true or false.")
        return value
    if kind == "text":
        if not isinstance(value, str):
            hint = " (YAML reads a bare yes, no, on or off as true or false)" if isinstance(value, bool) else ""
            raise ConfigError(f"{name} is {value!r}.", why=f"It must be a text{hint}.", fix="Put it in quotes.")
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        if isinstance(value, str) and value[:1] == "0" and value.strip("0123456789_") == "" and kind == "int":
            plain = value.replace("_", "").lstrip("0") or "0"
            raise ConfigError(
                f"{name} is {value}.", why="A leading zero reads as octal to some programs.", fix=f"Write {plain}."
            )
        plain = _written_out(value, kind) if isinstance(value, str) else ""
        write = "Write it without quotes:" if plain == value else "Write"
        raise ConfigError(
            f"{name} is the text {value!r}." if isinstance(value, str) else f"{name} is {value!r}.",
            why=f"It must be {'a whole number' if kind == 'int' else 'a number'}.",
            fix=f"{write} {name.split()[-1]}: {plain}" if plain else "",
        )
    if kind == "int":
        if isinstance(value, float) and not value.is_integer():
            raise ConfigError(f"{name} is {value}.", why="It must be a whole number.")
        return int(value)
    if value != value or value in (float("inf"), float("-inf")):
        raise ConfigError(f"{name} is {value}.", why="It must be a finite number.")
    return float(value)


def _written_out(text: str, kind: Kind) -> str:
    """The number that was meant by `16k`, `1M`, `16,384` or `"8192"`; empty when none was."""
    text = text.strip()
    if kind == "int" and (short := re.fullmatch(r"(\d+)([kKmM])", text)):
        return str(int(short[1]) * (1024 if short[2] in "kK" else 1024**2))
    if kind == "int" and re.fullmatch(r"\d{1,3}(,\d{3})+", text):
        return text.replace(",", "")
    try:
        return text if math.isfinite(float(text)) else ""
    except ValueError:
        return ""
