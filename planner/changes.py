"""Preset keys that lead from one configuration to another. Called by the search, the ladder and the floor."""

from __future__ import annotations

from typing import Any

from planner.optimization import Registry, knob_defaults
from planner.types import OptimizationSetting, RunConfig


def changes_between(registry: Registry, old: RunConfig, new: RunConfig) -> tuple[tuple[str, Any], ...]:
    """Preset keys that lead from one config to the other; False switches an optimization off."""
    before = {setting.name: setting for setting in old.optimizations}
    after = {setting.name: setting for setting in new.optimizations}
    changes: list[tuple[str, Any]] = []
    if old.parallel != new.parallel:
        changes.append(("sequence_parallel", new.parallel.sequence))
    for name in registry:
        if before.get(name) == after.get(name):
            continue
        changes.append((name, False if name not in after else preset_value(registry, after[name])))
    for key in ("optim", "update", "max_grad_norm", "gradient_accumulation_steps", "engine"):
        if getattr(old, key) != getattr(new, key):
            changes.append((key, getattr(new, key)))
    return tuple(changes)


def preset_value(registry: Registry, setting: OptimizationSetting) -> Any:
    """As a person writes it: true, the main knob alone, or the knobs that differ from their defaults."""
    cls = registry[setting.name]
    defaults = knob_defaults(cls)
    set_knobs = {name: value for name, value in setting.knobs if value != defaults[name]}
    main = cls.main_knob
    if main is not None and not set_knobs.keys() - {main}:
        return setting.as_dict()[main]
    return set_knobs or True
