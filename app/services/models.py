"""From a model's name to its shape, and to the folder its weights lie in, without a network."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.services.locations import cache_dir
from planner.catalog.models import MODELS
from planner.errors import ConfigError
from planner.model_spec import model_spec_from_config
from planner.types import ModelSpec


def find_model(model: str) -> tuple[ModelSpec, str]:
    """(shape, what to load): a local folder, a converted model in our cache, the hub cache, or the catalog.

    Raises: ConfigError with the nearest known names.
    """
    folder = local_folder(model)
    if folder is not None:
        return model_spec_from_config(_name(model), _read_config(folder)), str(folder)
    known = {name.lower(): name for name in MODELS}
    name = known.get(model.lower()) or known.get(_by_short_name().get(model.lower(), ""))
    if name is not None:
        return model_spec_from_config(name, MODELS[name]), name
    if model.startswith((".", "/", "~")):
        raise ConfigError(f"There is no model folder {model}.", why="It would hold a config.json.")
    near = difflib.get_close_matches(model.lower(), [*known, *_by_short_name()], n=3, cutoff=0.5)
    raise ConfigError(
        f"The model {model!r} is not known here.",
        why="It is neither a folder with a config.json, nor in the hub cache, nor in the catalog.",
        fix=f"Did you mean {' or '.join(known.get(n, n) for n in near)}?"
        if near
        else "`longfit models` lists the catalog.",
    )


def is_model(model: str) -> bool:
    """Whether find_model has an answer; a name that could be one, and is wrong, has none."""
    try:
        find_model(model)
    except ConfigError:
        return False
    return True


def local_folder(model: str) -> Path | None:
    """The folder that holds the weights' config.json, when there is one on this machine."""
    path = Path(os.path.expanduser(model))
    if (path / "config.json").is_file():
        return path.resolve()
    converted = converted_model_dir(model)
    if (converted / "config.json").is_file():
        return converted
    hub = Path(
        os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME") or Path.home() / ".cache/huggingface") / "hub"
    )
    snapshots = hub / f"models--{model.replace('/', '--')}" / "snapshots"
    found = (
        [folder for folder in snapshots.glob("*") if (folder / "config.json").is_file()] if snapshots.is_dir() else []
    )
    return max(found, key=lambda folder: folder.stat().st_mtime) if found else None


def model_config(location: str) -> Mapping[str, Any]:
    """``config.json`` of what find_model located."""
    folder = local_folder(location)
    return MODELS[location] if folder is None else _read_config(folder)


def converted_model_dir(model: str) -> Path:
    return cache_dir() / "models" / model.replace("/", "--")


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder / 'config.json'} cannot be read.", why=f"{error}.") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{folder / 'config.json'} is not a model configuration.", why="It holds no mapping.")
    return config


def _name(model: str) -> str:
    return model if not model.startswith((".", "/", "~")) else Path(os.path.expanduser(model)).resolve().name


def _by_short_name() -> dict[str, str]:
    """``qwen2.5-7b-instruct`` -> ``qwen/qwen2.5-7b-instruct``, all lower case."""
    return {name.split("/")[-1].lower(): name.lower() for name in MODELS}
