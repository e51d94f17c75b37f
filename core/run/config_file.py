"""run.yaml: a RunConfig as YAML and back, without loss. Written by RunDirectory.create, read by worker and readers."""

from __future__ import annotations

import difflib
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

from core.run.atomic import atomic_write
from planner.errors import ConfigError, RunNotFound
from planner.types import RunConfig

FILE_NAME = "run.yaml"


def write_config(run_dir: Path, config: RunConfig) -> None:
    atomic_write(run_dir / FILE_NAME, config_to_yaml(config))


def read_config(run_dir: Path) -> RunConfig:
    """Raises: RunNotFound when the directory holds no run, ConfigError when run.yaml is not what we wrote."""
    path = run_dir / FILE_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise RunNotFound(f"{run_dir} is not a run directory.", why=f"It has no {FILE_NAME}.") from None
    return config_from_yaml(text, where=str(path))


def config_to_yaml(config: RunConfig) -> str:
    values = _to_plain(config)
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=10_000)


def config_from_yaml(text: str, *, where: str = FILE_NAME) -> RunConfig:
    """Raises: ConfigError for broken YAML, an unknown or missing key, a wrong type, or another schema version."""
    try:
        values = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise ConfigError(f"{where} is not YAML.", why=str(error)) from error
    if isinstance(values, Mapping) and values.get("schema") != 1:
        raise ConfigError(
            f"{where} has schema {values.get('schema')!r}.", why="This longfit reads schema 1.",
            fix="Use the version of longfit that wrote it (env.json names it).",
        )  # fmt: skip
    config: RunConfig = _from_plain(RunConfig, values, where)
    return config


def _to_plain(value: Any) -> Any:
    """Dataclasses become mappings, tuples of (name, value) pairs too, other tuples lists."""
    if is_dataclass(value):
        hints = get_type_hints(type(value))
        return {f.name: _plain_field(getattr(value, f.name), hints[f.name]) for f in fields(value)}
    if isinstance(value, tuple | list):
        return [_to_plain(item) for item in value]
    return value


_PAIRS = tuple[tuple[str, Any], ...]  # a mapping in YAML


def _plain_field(value: Any, hint: Any) -> Any:
    return {key: _to_plain(item) for key, item in value} if hint == _PAIRS else _to_plain(value)


def _from_plain(cls: type, values: Any, where: str) -> Any:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where} is {_shown(values)}.", why=f"It must be a mapping of {cls.__name__}'s keys.")
    known = {f.name: f for f in fields(cls)}
    for key in values:
        if key not in known:
            nearest = difflib.get_close_matches(str(key), known, n=1)
            raise ConfigError(
                f"{where}: unknown key {key!r}.", why=f"Known are: {', '.join(known)}.",
                fix=f"Did you mean {nearest[0]!r}?" if nearest else "",
            )  # fmt: skip
    missing = [
        name for name, f in known.items()
        if name not in values and f.default is MISSING and f.default_factory is MISSING
    ]  # fmt: skip
    if missing:
        raise ConfigError(f"{where}: the key {missing[0]!r} is missing.")
    hints = get_type_hints(cls)
    return cls(**{key: _field_from_plain(key, hints[key], value, where) for key, value in values.items()})


def _field_from_plain(name: str, hint: Any, value: Any, where: str) -> Any:
    path = f"{where}: {name}"
    if hint == _PAIRS:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{path} is {_shown(value)}.", why="It must be a mapping.")
        return tuple((str(key), _as_tuple(item)) for key, item in value.items())
    return _typed(hint, value, path)


def _typed(hint: Any, value: Any, path: str) -> Any:
    if is_dataclass(hint):
        return _from_plain(hint, value, path)  # type: ignore[arg-type]
    if get_origin(hint) is tuple:
        item_hint = get_args(hint)[0]
        if not isinstance(value, list):
            raise ConfigError(f"{path} is {_shown(value)}.", why="It must be a list.")
        return tuple(_typed(item_hint, item, f"{path}[{index}]") for index, item in enumerate(value))
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ConfigError(f"{path} is {_shown(value)}.", why=f"It must be one of {', '.join(get_args(hint))}.")
        return value
    allowed = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if not any(_is_a(value, kind) for kind in allowed):
        names = " or ".join(kind.__name__ for kind in allowed)
        raise ConfigError(f"{path} is {_shown(value)}.", why=f"It must be {names}.")
    return value


def _is_a(value: Any, kind: type) -> bool:
    """bool is no int here; an int may stand for a float and stays the int it was, for an exact round trip."""
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float) if kind is float else isinstance(value, kind)


def _as_tuple(value: Any) -> Any:
    return tuple(_as_tuple(item) for item in value) if isinstance(value, list) else value


def _shown(value: Any) -> str:
    return f"{value!r} ({type(value).__name__})"
