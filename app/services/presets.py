"""Find, read and write presets: a YAML file a run, the same for CLI, TUI and page."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from app.services.locations import built_in_presets_dir, project_presets_dir, user_presets_dir
from app.services.preset_keys import NOT_CONFIG
from app.services.yaml_text import dump_yaml, load_yaml
from core.optimizations import REGISTRY
from core.run.atomic import atomic_write
from planner.errors import ConfigError, EnvironmentProblem
from planner.types import Preset

Origin = Literal["built-in", "project", "user", "file"]
_DATA_SUFFIXES = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".txt", ".md", ".gz")  # .json may be either


def _folders() -> tuple[tuple[Origin, Path], ...]:
    """Later ones hide earlier ones of the same name."""
    return (("built-in", built_in_presets_dir()), ("user", user_presets_dir()), ("project", project_presets_dir()))


def preset_names() -> dict[str, tuple[Origin, Path]]:
    found: dict[str, tuple[Origin, Path]] = {}
    for origin, folder in _folders():
        for path in sorted(folder.glob("*.yaml")) if folder.is_dir() else ():
            found[path.stem] = (origin, path)
    return found


def list_presets() -> tuple[Preset, ...]:
    """Every preset that can be read; unreadable_presets tells of the others."""
    return tuple(found for found in _read_all() if isinstance(found, Preset))


def unreadable_presets() -> tuple[ConfigError, ...]:
    """What is wrong with each preset's file that cannot be read."""
    return tuple(found for found in _read_all() if isinstance(found, ConfigError))


def load_preset(name_or_path: str) -> Preset:
    """A preset by name, or by the path of a YAML file. Raises: ConfigError with the nearest name."""
    known = preset_names()
    if name_or_path in known:
        origin, path = known[name_or_path]
        return parse_preset(_read(path), path=path, origin=origin)
    path = Path(os.path.expanduser(name_or_path))
    if path.suffix in _DATA_SUFFIXES:
        raise ConfigError(
            f"{name_or_path} is data, not a preset.", why="A preset names the model, the data and how to train.",
            fix=f"longfit preset save PRESET mine --set data.train=[{name_or_path}]",
        )  # fmt: skip
    if path.is_file():
        return parse_preset(_read(path), path=path, origin="file")
    raise _no_preset(name_or_path, path, known)


def parse_preset(text: str, *, path: Path, origin: Origin) -> Preset:
    values = load_yaml(text, where=str(path))
    if not isinstance(values, dict) or not values:
        raise ConfigError(
            f"{path} is not a preset.", why="A preset is a mapping of keys to values.",
            fix="`longfit preset show demo-smollm2` shows one.",
        )  # fmt: skip
    hardware = values.get("hardware") or {}
    if not isinstance(hardware, Mapping):
        raise ConfigError(f"{path}: hardware is {hardware!r}.", fix="Write hardware: {gpu: A10, count: 2}.")
    return Preset(
        name=str(values.get("name") or path.stem),
        description=str(values.get("description") or ""),
        hardware=hardware,
        measured=tuple(values.get("measured") or ()),
        values={key: value for key, value in values.items() if key not in NOT_CONFIG},
        origin=origin,
        path=str(path),
    )


def preset_text(preset: Preset, overrides: Mapping[str, Any] | None = None) -> str:
    """The preset as YAML, with ``overrides`` (dotted keys) written into it."""
    body: dict[str, Any] = {"name": preset.name}
    if preset.description:
        body["description"] = preset.description
    if preset.hardware:
        body["hardware"] = dict(preset.hardware)
    if preset.measured:
        body["measured"] = [dict(facts) for facts in preset.measured]
    body |= merge_overrides(preset.values, overrides or {})
    return dump_yaml(body)


def save_preset(preset: Preset, *, overwrite: bool = False) -> Path:
    """Write it among the user's presets. Raises: ConfigError when the name is taken or no file name."""
    if not preset.name or Path(preset.name).name != preset.name or preset.name.startswith((".", "-")):
        raise ConfigError(
            f"{preset.name!r} cannot be a preset's name.",
            why="It becomes the name of a file: without a slash, and with no dot or dash in front.",
            fix="Use letters, digits, '.', '_' and '-'.",
        )
    path = user_presets_dir() / f"{preset.name}.yaml"
    if path.exists() and not overwrite:
        raise ConfigError(f"A preset named {preset.name!r} exists already: {path}.", fix="Choose another name.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, preset_text(preset))
    except OSError as error:
        raise EnvironmentProblem(
            f"The preset could not be written to {path}.", why=f"{error.strerror}.",
            fix="XDG_CONFIG_HOME names another folder for your own presets.",
        ) from None  # fmt: skip
    return path


def merge_overrides(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """``{"lora.rank": 8, "packing": None}`` laid over nested values; None takes a key away.

    A knob given for an optimization that stands as ``true`` keeps it on; one that stands as the value of its main knob
    keeps that value.
    """
    merged = {key: dict(value) if isinstance(value, Mapping) else value for key, value in values.items()}
    for dotted, value in overrides.items():
        key, _, knob = dotted.partition(".")
        if not knob:
            if value is None:
                merged.pop(key, None)
            else:
                merged[key] = value
            continue
        merged[key] = {**_knobs(key, merged.get(key)), knob: value}
    return merged


def _knobs(key: str, value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    main_knob = REGISTRY[key].main_knob if key in REGISTRY else None
    return {} if main_knob is None or value is None or isinstance(value, bool) else {main_knob: value}


def parse_override(text: str) -> tuple[str, Any]:
    """``lora.rank=8`` -> ("lora.rank", 8). Raises: ConfigError when there is no ``=``."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        missing = "no key before the '='" if separator else "no '='"
        raise ConfigError(
            f"--set {text}: there is {missing}.", fix="Write --set key=value, such as --set max_length=16384."
        )
    return key.strip(), load_yaml(value, where=f"--set {key.strip()}")


def _read_all() -> Iterator[Preset | ConfigError]:
    for origin, path in preset_names().values():
        try:
            yield parse_preset(_read(path), path=path, origin=origin)
        except ConfigError as error:
            yield error


def _no_preset(name: str, path: Path, known: Iterable[str]) -> ConfigError:
    """What is there instead, when something is: a folder, a model, or names like it."""
    from app.services.models import is_model  # here only: it reads catalogs

    if is_model(name):
        return ConfigError(
            f"{name} is a model, not a preset.",
            why="A preset says what is trained on and how, too.",
            fix=f"`longfit fit {name}` says which GPU it takes; `longfit preset save PRESET mine --set model={name}` "
            "makes a preset for it.",
        )
    if path.is_dir():
        return ConfigError(f"{name} is a folder, not a preset.", fix="Give the path of a YAML file in it.")
    if path.suffix in (".yaml", ".yml") or "/" in name:
        return ConfigError(f"There is no preset file {name}.", fix="`longfit preset list` shows the presets.")
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    return ConfigError(
        f"There is no preset named {name!r}.",
        fix=f"Did you mean {' or '.join(near)}?" if near else "`longfit preset list` shows the presets.",
    )


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"The preset {path} cannot be read.", why=f"{error}.", fix="A preset is a YAML file in UTF-8."
        ) from None
