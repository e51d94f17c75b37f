"""The preset that is being put together, with what is said about it: filled by rules, finished by settle steps.

Two kinds of things come out of a paste: keys that can be carried over one by one (``put``), and wishes that only make
sense together, such as a method with its quantisation, or a degree with a number of GPUs (``wish``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.services.importing.facts import Facts
from app.services.importing.finding import Finding, Kind
from app.services.importing.pasted import Setting
from app.services.importing.values import is_off
from app.services.preset_keys import DATA_KEYS, RUN_KEYS, PresetKey, check_value, optimization_keys
from planner.errors import ConfigError
from planner.types import ModelSpec, Preset


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    value: Any
    setting: Setting


@dataclass(slots=True)
class Draft:
    facts: Facts
    tool: str  # "ms-swift", for sentences
    values: dict[str, Any] = field(default_factory=dict)  # dotted preset keys: {"lora.rank": 8}
    decided: set[str] = field(default_factory=set)  # keys the text speaks of, those left at longfit's default included
    wishes: dict[str, Wish] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    runs_dir: str | None = None
    told_with: dict[str, list[str]] = field(default_factory=dict)  # a flag -> others that wished the same

    def wish(self, name: str, value: Any, setting: Setting) -> None:
        """Two flags with one meaning (load_in_8bit, load_in_4bit): what is switched on counts, both are told."""
        before = self.wishes.get(name)
        if before is not None and before.setting.written != setting.written:
            if is_off(value) and not is_off(before.value):
                value = before.value
            self.told_with.setdefault(setting.written, []).append(before.setting.written)
        self.wishes[name] = Wish(value=value, setting=setting)

    def take(self, name: str) -> Wish | None:
        return self.wishes.pop(name, None)

    def peek(self, name: str) -> Any:
        wish = self.wishes.get(name)
        return None if wish is None else wish.value

    def put(
        self, key: str, value: Any, *settings: Setting, what: str = "", why: str = "", fix: str = "",
        always: bool = False,
    ) -> None:  # fmt: skip
        """Carry a value over, unless longfit does the same by itself. ``always``: a preset reads better with it.

        A value that the key cannot have is told as not understood.
        """
        problem = self._problem(key, value)
        if problem:
            self.tell("unknown", settings, what=problem)
            return
        self.decided.add(key)
        if default_of(key, self.facts) == value and not (what or always):
            self.values.pop(key, None)
            self.tell("default", settings, keys={key: value})
        else:
            self.values[key] = value
            self.tell("translated", settings, what=what, why=why, fix=fix, keys={key: value})

    def _problem(self, key: str, value: Any) -> str:
        found = key_of(key, self.facts)
        if found is None:
            return ""
        try:
            check_value(found, value, where="")
        except ConfigError as error:
            return f"{key} cannot be {value!r}. {error.why}"
        return ""

    def imply(self, key: str, value: Any, why: str = "") -> None:
        """What the other tool would have done without being told; nothing when the text speaks of the key."""
        has_no_knob = "." in key and key_of(key, self.facts) is None
        if key in self.decided or has_no_knob or value == default_of(key, self.facts):
            return
        self.decided.add(key)
        self.values[key] = value
        self.tell("implied", (), keys={key: value}, why=why)

    def tell(
        self, kind: Kind, settings: Iterable[Setting | None], *, what: str = "", why: str = "", fix: str = "",
        keys: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        flags: list[str] = []
        for setting in settings:
            if setting is not None:
                flags += self._with_companions(setting.written)
        self.findings.append(
            Finding(
                kind=kind,
                flags=tuple(dict.fromkeys(flags)),
                what=what,
                why=why,
                fix=fix,
                keys=tuple((keys or {}).items()),
            )
        )

    def _with_companions(self, written: str) -> list[str]:
        flags = [written]
        for flag in flags:  # grows while it is read
            flags += [other for other in self.told_with.get(flag, ()) if other not in flags]
        return flags[::-1]

    def preset(self, name: str, description: str) -> Preset:
        body = nested(self.values)
        hardware = body.pop("hardware", {})
        order = {key.name: place for place, key in enumerate(RUN_KEYS)}
        values = dict(sorted({"data": {}, **body}.items(), key=lambda item: order.get(item[0], len(order))))
        return Preset(name=name, description=description, hardware=hardware, values=values)

    @property
    def model(self) -> ModelSpec | None:
        name = self.values.get("model")
        return self.facts.model(name) if name else None

    @property
    def method(self) -> str:
        return next((name for name in ("qlora", "lora") if name in self.values), "full")

    @property
    def num_gpus(self) -> int:
        return int(self.values.get("hardware.count", 1)) * int(self.values.get("hardware.nodes", 1))


def key_of(dotted: str, facts: Facts) -> PresetKey | None:
    """The preset key behind a dotted name; None for hardware and for an optimization as a whole."""
    name, _, knob = dotted.partition(".")
    if name == "data":
        return next((key for key in DATA_KEYS if key.name == knob), None)
    if name in facts.registry:
        return next((key for key in optimization_keys(name, facts.registry) if key.name == knob), None)
    return next((key for key in RUN_KEYS if key.name == dotted), None)


def default_of(key: str, facts: Facts) -> Any:
    """What longfit does when the key is absent; False for an optimization."""
    if key in facts.registry:
        return False
    if key in ("hardware.count", "hardware.nodes"):
        return 1
    found = key_of(key, facts)
    return None if found is None else found.default


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys to the mapping of a preset: {"lora": True, "lora.rank": 8} -> {"lora": {"rank": 8}}."""
    body: dict[str, Any] = {}
    for dotted, value in values.items():
        name, _, knob = dotted.partition(".")
        if not knob:
            body.setdefault(name, value)
        else:
            inner = body.get(name)
            body[name] = {**(inner if isinstance(inner, Mapping) else {}), knob: value}
    return body
