"""A preset in the words of another tool, with findings for what that tool cannot say. Called by `preset show --as`.

What got lost is not listed by hand: the written text is imported again, and every key that comes back different is put
into a line such as "# longfit: fake_parallel=2", which the importer reads. So a preset survives the way there and back.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.services.importing.draft import nested
from app.services.importing.effective import effective_values
from app.services.importing.export_targets import TARGETS, Item, Target
from app.services.importing.facts import Facts, facts_here
from app.services.importing.finding import Finding
from app.services.importing.imported import import_text
from planner.errors import ConfigError
from planner.types import Environment, Preset

_PLAIN = re.compile(r"[A-Za-z][\w./-]*")
_RESERVED = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
_NAMED_ANYWAY = ("flash_attention", "sequence_parallel")  # the target needs it, the preset leaves it to longfit
_PACKAGES = ("flash-attn", "flash-attn-3", "flash-attn-4")
_REASONS = {
    "fake_parallel": "there is no form for one GPU",
    "fused_loss": "logits are formed whole, or by Liger",
    "ulysses": "it chooses the degrees of Ulysses and ring by itself",
    "ring": "it chooses the degrees of Ulysses and ring by itself",
    "sequence_parallel": "it is no training argument there",
    "data.train": "names are written differently, or rows cannot be sampled by `#n`",
    "packing.length": "a pack is as long as the longest row there",
    "data.weights": "sets are joined whole there",
    "data.over_length": "longer rows have one fate there",
    "data.shape": "the shape of rows is recognised or registered there",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    text: str
    findings: tuple[Finding, ...]


def export_preset(preset: Preset, target: str, *, facts: Facts | None = None) -> Exported:
    """Raises: ConfigError for an unknown target, and for a preset without model, data or length."""
    if target not in TARGETS:
        raise ConfigError(f"{target!r} is no target.", fix=f"Use {', '.join(TARGETS)}.")
    # Imported again as on a machine that has every kernel: what this one lacks is not the target's fault.
    everywhere = Environment(source="assumed", packages=dict.fromkeys(_PACKAGES, "assumed"), compute_capability=(9, 0))
    facts = replace(facts or facts_here(), machine=lambda: everywhere)
    wanted = effective_values(preset.values, facts)
    for key in ("model", "max_length", "data.train"):
        if not wanted.get(key):
            raise ConfigError(f"The preset {preset.name} names no {key}.", fix=f"--set {key}=...")
    form = TARGETS[target]
    items = form.items(wanted)
    body = _command(items, preset) if form.is_command else _document(items)
    findings = [_carried(form, item) for item in items]
    lines, lost = _differences(preset, body, form, wanted, facts)
    head = [f"# {line}" for line in (f"The longfit preset {preset.name} for {form.title}.", *form.note(wanted))]
    return Exported(text="\n".join((*head, *lines, body)) + "\n", findings=(*lost, *findings))


def _command(items: list[Item], preset: Preset) -> str:
    count = int(preset.hardware.get("count", 1))
    flags = [f"    {_flag(item)}" for item in items]
    return " \\\n".join((f"NPROC_PER_NODE={count}", "swift sft", *flags))


def _flag(item: Item) -> str:
    return " ".join((f"--{item.name}", *(shlex.quote(word) for word in _words(item.value))))


def _words(value: Any) -> list[str]:
    if isinstance(value, (list, tuple)):
        return [word for inner in value for word in _words(inner)]
    return [str(value).lower() if isinstance(value, bool) else str(value)]


def _document(items: list[Item]) -> str:
    return "\n".join(f"{item.name}: {_yaml(item.value)}" for item in items)


def _yaml(value: Any) -> str:
    """One line that every YAML loader reads alike: PyYAML takes 1e-05 for text, and 1.0e-05 for a number."""
    if isinstance(value, float):
        mantissa, e, exponent = repr(value).partition("e")
        return f"{mantissa}{'' if '.' in mantissa else '.0'}{e}{exponent}" if e else mantissa
    is_plain = isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _RESERVED
    return str(value) if is_plain else json.dumps(value, ensure_ascii=False, default=list)


def _carried(form: Target, item: Item) -> Finding:
    written = _flag(item) if form.is_command else f"{item.name}: {_yaml(item.value)}"
    return Finding(kind="translated", flags=(written,), what=f"carries {', '.join(item.keys)}")


def _differences(
    preset: Preset, body: str, form: Target, wanted: Mapping[str, Any], facts: Facts
) -> tuple[list[str], list[Finding]]:
    """("# longfit:" lines, findings) for everything that an import of ``body`` would give otherwise."""
    back = import_text(body, name=preset.name, facts=facts).preset
    assert back is not None, "an exported text names at least a model"
    found = effective_values(back.values, facts)
    lines = [_line("name", preset.name)]
    if preset.description and preset.description != back.description:
        lines.append(_line("description", preset.description))
    if _hardware(preset) != _hardware(back):
        lines.append(_line("hardware", dict(preset.hardware)))
    given = nested({key: value for key, value in preset.values.items() if key != "data"})
    data = preset.values.get("data") or {}
    lost: list[Finding] = []
    for owner in dict.fromkeys(_owner(key, facts) for key in (*wanted, *found)):
        if all(wanted.get(key) == found.get(key) for key in (*wanted, *found) if _owner(key, facts) == owner):
            continue
        value = data.get(owner.removeprefix("data.")) if owner.startswith("data.") else given.get(owner)
        if owner in facts.registry and not wanted[owner]:
            value = None  # it came back although the preset has it off
        lines.append(_line(owner, value))
        if value is not None or owner not in _NAMED_ANYWAY:
            lost.append(_lost(form, owner, value))
    return lines, lost


def _lost(form: Target, owner: str, value: Any) -> Finding:
    reason = _REASONS.get(owner, "")
    what = f"{form.title} cannot say it." if value is not None else f"{form.title} does otherwise unless told."
    why = f"{reason[:1].upper()}{reason[1:]}." if reason else ""
    return Finding(
        kind="impossible", keys=((owner, value),), what=what, why=why,
        fix="It stands in a `# longfit:` line, which `longfit import` reads.",
    )  # fmt: skip


def _owner(key: str, facts: Facts) -> str:
    """Knobs of an optimization go together; keys of data one by one."""
    name = key.partition(".")[0]
    return name if name in facts.registry else key


def _line(key: str, value: Any) -> str:
    return f"# longfit: {key}={json.dumps(value, ensure_ascii=False, default=list)}"


def _hardware(preset: Preset) -> dict[str, Any]:
    return {"gpu": "here", "count": 1, **preset.hardware}
