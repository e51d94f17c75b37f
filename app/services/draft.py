"""A preset being edited: immutable, so that undo, what-if and comparison are plain values. Held by every face."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from app.services.presets import merge_overrides
from core.optimizations import REGISTRY
from planner.types import Preset

METHODS = ("full", "lora", "qlora")
# switched off by a value of one (or none): a degree of one is no parallelism
DEGREE_KEYS = frozenset({"sequence_parallel", "ulysses", "ring", "fake_parallel"})
AS_PRESET = "as preset"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """``values``: the preset's, with every edit laid over them; ``gpu`` and ``count`` override its hardware."""

    preset: Preset
    values: Mapping[str, Any] = field(default_factory=dict)
    gpu: str = AS_PRESET  # a catalog name, "cpu" or "here"
    count: int = 0  # 0: as the preset says

    @classmethod
    def of(cls, preset: Preset) -> Draft:
        return cls(preset=preset, values=dict(preset.values))

    @property
    def overrides(self) -> dict[str, Any]:
        """The edits as dotted keys, exactly what ``--set`` would say."""
        return overrides_between(self.preset.values, self.values)

    @property
    def argument(self) -> str:
        """What names the preset on a command line: its name, or its file where that is not among the presets."""
        return self.preset.path if self.preset.origin == "file" and self.preset.path else self.preset.name

    def as_preset(self, name: str) -> Preset:
        """What is at hand as a preset of its own."""
        return replace(self.preset, name=name, values=dict(self.values), measured=())

    @property
    def hardware(self) -> str:
        """What ``--gpu`` would say; empty when the preset's own hardware is meant."""
        if self.gpu == AS_PRESET and not self.count:
            return ""
        if self.gpu == "here":
            return "here"
        gpu = str(self.preset.hardware.get("gpu") or "cpu") if self.gpu == AS_PRESET else self.gpu
        count = self.count or int(self.preset.hardware.get("count") or 1)
        return f"{count}x{gpu}" if count > 1 else gpu

    @property
    def method(self) -> str:
        on = [name for name in ("qlora", "lora") if is_on(self.values.get(name))]
        return on[0] if on else "full"

    def get(self, key: str, default: Any = None) -> Any:
        """The value behind a dotted key; a knob of something switched off, or left at its default, is ``default``."""
        head, _, knob = key.partition(".")
        value = self.values.get(head)
        if not knob:
            return default if value is None else value
        return knobs_of(head, value).get(knob, default)

    def set(self, key: str, value: Any) -> Draft:
        if key == "method":
            return self._with_method(str(value))
        if key in DEGREE_KEYS and value in (None, "", False, 0, 1):
            value = None
        head, _, knob = key.partition(".")
        values = dict(self.values)
        if knob and head in values:
            values[head] = knobs_of(head, values[head])
        return replace(self, values=merge_overrides(values, {key: value}))

    def apply(self, changes: Iterable[tuple[str, Any]]) -> Draft:
        """Take over the changes of an alternative or of an issue's suggestion."""
        return replace(self, values=merge_overrides(self.values, dict(changes)))

    def _with_method(self, method: str) -> Draft:
        """Switch between full, LoRA and QLoRA; what both adapters know (rank, targets) is carried over."""
        if method == self.method:
            return self
        values = dict(self.values)
        knobs = {**knobs_of("lora", values.pop("lora", None)), **knobs_of("qlora", values.pop("qlora", None))}
        if method != "full":
            values[method] = {key: value for key, value in knobs.items() if key != "double_quant"} or True
        return replace(self, values=values)


def is_on(value: Any) -> bool:
    """Whether an optimization's preset value switches it on (``false``, ``null`` and absence do not)."""
    return value is not None and value is not False and value != "false"


def knobs_of(name: str, value: Any) -> dict[str, Any]:
    """The knobs that a preset value gives: a mapping as it is, ``lora: 64`` as {"rank": 64}, ``true`` as {}."""
    if isinstance(value, Mapping):
        return dict(value)
    main_knob = REGISTRY[name].main_knob if name in REGISTRY else None
    return {main_knob: value} if main_knob and is_on(value) and not isinstance(value, bool | str) else {}


def overrides_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The shortest dotted overrides that lead from one set of values to the other.

    ``merge_overrides(before, overrides_between(before, after)) == after`` for every pair of value sets.
    """
    overrides: dict[str, Any] = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if key in before and old == value and type(old) is type(value):
            continue
        knobs = _knob_changes(old, value) if key in before else None
        if knobs is None:
            overrides[key] = value
        else:
            overrides |= {f"{key}.{knob}": item for knob, item in knobs.items()}
    return overrides


def _knob_changes(old: Any, new: Any) -> dict[str, Any] | None:
    """Changed knobs, None when only the whole value can say it (a knob that left, or a scalar)."""
    if not isinstance(new, Mapping) or not new:
        return None
    if old is True:
        return dict(new)
    if not isinstance(old, Mapping) or any(knob not in new for knob in old):
        return None
    return {knob: item for knob, item in new.items() if knob not in old or old[knob] != item}
