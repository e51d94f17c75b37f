"""Reads a pasted configuration: YAML or JSON, as axolotl, LLaMA-Factory, TRL and ms-swift take it. For paste.py."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from app.services.importing.pasted import Pasted, Setting, flag_name
from app.services.yaml_text import load_yaml
from planner.errors import ConfigError

_FULL_WIDTH_COLON = re.compile(r"^(\s*[\w-]+)：[ \t]*", re.MULTILINE)


def read_document(text: str) -> Pasted:
    """One setting a key. Raises nothing: ``problem`` says why it is no document."""
    try:
        values = load_yaml(_FULL_WIDTH_COLON.sub(r"\1: ", text), where="the text")
    except ConfigError as error:
        return Pasted(source="nothing", problem=f"{error.what} {error.why}".strip())
    except (ValueError, TypeError, AttributeError, RecursionError) as error:  # of PyYAML's constructors, on odd scalars
        return Pasted(source="nothing", problem=f"This is not valid YAML: {error}.")
    if not isinstance(values, Mapping) or not values or not all(isinstance(key, str) for key in values):
        return Pasted(source="nothing", problem="It holds neither a command with flags nor a configuration.")
    block = values.get("ENV")  # ms-swift's
    variables: Mapping[Any, Any] = block if isinstance(block, Mapping) else {}
    return Pasted(
        source="document",
        settings=tuple(document_setting(key, value) for key, value in values.items() if key != "ENV" or not variables),
        environment=tuple(
            Setting(name=str(name), value=str(value), written=f"{name}={value}") for name, value in variables.items()
        ),
    )


def document_setting(key: str, value: Any) -> Setting:
    return Setting(name=flag_name(key), value=value, written=f"{key}: {_shown(value)}")


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):  # a date, a recursive alias
        return str(value)
