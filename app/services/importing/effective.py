"""A preset's values with every default put in, flat: {"lora": True, "lora.rank": 16, "data.shape": "auto", ...}.

Called by the exporter, which writes them in another tool's words, and compares two presets by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.services.importing.facts import Facts
from app.services.preset_keys import DATA_KEYS, RUN_KEYS


def effective_values(values: Mapping[str, Any], facts: Facts) -> dict[str, Any]:
    """Knobs stand there only for what is switched on. Lists become tuples, numbers of one value compare equal."""
    data = values.get("data")
    data = data if isinstance(data, Mapping) else {}
    flat = {key.name: _plain(values.get(key.name), key.default) for key in RUN_KEYS if key.name != "data"}
    flat |= {f"data.{key.name}": _plain(data.get(key.name), key.default) for key in DATA_KEYS}
    for name, optimization in facts.registry.items():
        value = values.get(name)
        flat[name] = value is not None and value is not False
        if flat[name]:
            main = optimization.main_knob
            given = value if isinstance(value, Mapping) else {} if value is True or main is None else {main: value}
            flat |= {f"{name}.{knob}": _plain(given.get(knob), default) for knob, default in facts.knobs(name).items()}
    return flat


def _plain(value: Any, default: Any) -> Any:
    value = default if value is None else value
    if isinstance(value, (list, tuple)):
        return tuple(value)
    return (value,) if isinstance(default, tuple) and isinstance(value, str) else value
