"""The Plan tab's form without widgets: which fields there are, what a preset shows in them, and what an edit means.

Fields come from the preset keys and from the registry's knobs; a form and a Draft turn into each other without loss.
Used by plan_tab.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from app.gui.confine import confined_path
from app.services.draft import DEGREE_KEYS, METHODS, Draft, is_on
from app.services.preset_keys import DATA_KEYS, RUN_KEYS, PresetKey, optimization_keys
from app.services.yaml_text import load_yaml
from app.views.parts import value_words
from planner.errors import ConfigError
from planner.optimization import Registry
from planner.types import Preset

Group = Literal["main", "switches", "degrees", "adapters", "training", "data"]
FieldKind = Literal["int", "float", "bool", "choice", "text", "texts", "mapping", "optional_bool"]

ADAPTER_METHODS = ("lora", "qlora")
ADAPTER_HEAD = "adapter."  # "adapter.rank" stands for the rank of whichever adapter method is chosen
_MAIN_KEYS = ("max_length", "per_device_train_batch_size", "gradient_accumulation_steps")
_MODEL_KEYS = ("model", "dtype", "autocast", "rope_scaling")
PATH_KEYS = ("model", "data.train", "data.eval")
_LABELS = {
    "max_length": "length, tokens", "per_device_train_batch_size": "rows",
    "per_device_eval_batch_size": "evaluation rows", "gradient_accumulation_steps": "accumulation",
    "ulysses": "Ulysses", "fake_parallel": "fake parallel",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One input. ``key`` is dotted as in ``--set``; ``default`` is what an absent key means."""

    key: str
    label: str
    kind: FieldKind
    group: Group
    default: Any = None
    choices: tuple[Any, ...] = ()
    help: str = ""


def form_fields(registry: Registry) -> tuple[Field, ...]:
    """Every field, in the order of the page."""
    run_keys = {key.name: key for key in RUN_KEYS}
    method = Field(key="method", label="method", kind="choice", group="main", default="full", choices=METHODS,
                   help="all weights, adapters on frozen weights, or adapters on 4-bit weights")  # fmt: skip
    fields = [method, *(_field(run_keys.pop(name), group="main") for name in _MAIN_KEYS)]
    model = [_field(run_keys.pop(name), group="data") for name in _MODEL_KEYS]
    fields.append(_field(run_keys.pop("sequence_parallel"), group="degrees"))
    for name, optimization in registry.items():
        if name in ADAPTER_METHODS:
            continue
        if name in DEGREE_KEYS:
            fields.append(Field(key=name, label=_LABELS.get(name, name), kind="int", group="degrees", default=1,
                                help=optimization.summary))  # fmt: skip
            continue
        title = optimization.title if optimization.available else f"{optimization.title} (planned only)"
        fields.append(Field(key=name, label=title, kind="bool", group="switches", default=False,
                            help=optimization.summary))  # fmt: skip
        fields += [_field(key, group="switches", head=f"{name}.") for key in optimization_keys(name, registry)]
    knobs = {key.name: key for name in ADAPTER_METHODS if name in registry for key in optimization_keys(name, registry)}
    fields += [_field(key, group="adapters", head=ADAPTER_HEAD) for key in knobs.values()]
    fields += [_field(key, group="training") for key in run_keys.values() if key.name != "data"]
    fields += [*model, *(_field(key, group="data", head="data.") for key in DATA_KEYS)]
    return tuple(fields)


def _field(key: PresetKey, *, group: Group, head: str = "") -> Field:
    kind: FieldKind = "choice" if key.choices and key.kind == "text" else key.kind
    if key.kind == "bool" and key.default is None:
        kind = "optional_bool"
    words = f"{head}{key.name}".removeprefix(ADAPTER_HEAD).removeprefix("data.").replace(".", ": ").replace("_", " ")
    label = _LABELS.get(head + key.name, words)
    default = False if kind == "bool" and key.default is None else key.default
    return Field(key=head + key.name, label=label, kind=kind, group=group, default=default, choices=key.choices,
                 help=key.help)  # fmt: skip


def form_of(draft: Draft, fields: Sequence[Field], registry: Registry) -> list[Any]:
    """What each field shows for a draft."""
    return [_shown(draft, field, registry) for field in fields]


def draft_of(preset: Preset, fields: Sequence[Field], values: Sequence[Any], registry: Registry) -> Draft:
    """The preset with the edits of the form laid over it; untouched fields leave no trace.

    Paths that were typed into the page must lie below the folder the page was started in.
    Raises: ConfigError for a value that is none of its kind, and for a path outside.
    """
    start = Draft.of(preset)
    draft = start
    for field, value in zip(fields, values, strict=True):
        if field.key == "method" and value != start.method:
            draft = draft.set("method", value)
    for field, value in zip(fields, values, strict=True):
        if field.key == "method" or value == _shown(draft, field, registry):
            continue
        draft = _with_edit(draft, field, _meant(field, value), registry)
    return draft


def _with_edit(draft: Draft, field: Field, value: Any, registry: Registry) -> Draft:
    if field.key in PATH_KEYS:
        for text in [value] if isinstance(value, str) else value or ():
            confined_path(text, what=field.label)
    if field.kind == "bool" and field.key in registry and not value:
        return draft.set(field.key, None)
    head, _, knob = _real_key(field.key, draft).partition(".")
    if field.key.startswith(ADAPTER_HEAD) and not _has_knob(registry, head, knob):
        return draft  # full fine-tuning has no adapters, LoRA has no 4-bit weights
    if knob and head in registry:
        if not is_on(draft.values.get(head)):
            return draft  # a knob of something that is off says nothing
        scalar = draft.values[head]
        if not isinstance(scalar, Mapping | bool):  # `fused_loss: 512`: keep the main knob beside the new one
            draft = draft.set(head, {registry[head].main_knob: scalar})
        return draft.set(f"{head}.{knob}", field.default if value is None else value)
    return draft.set(field.key, value)


def _has_knob(registry: Registry, name: str, knob: str) -> bool:
    return name in registry and any(key.name == knob for key in optimization_keys(name, registry))


def _shown(draft: Draft, field: Field, registry: Registry) -> Any:
    key = _real_key(field.key, draft)
    if key == "method":
        return draft.method
    head, _, knob = key.partition(".")
    value = draft.values.get(head)
    if field.kind == "bool" and key in registry:
        return is_on(value)
    if head in registry:
        knob = knob or registry[head].main_knob
        if isinstance(value, Mapping):
            value = value.get(knob)
        elif isinstance(value, bool) or knob != registry[head].main_knob:
            value = None
    elif knob:
        value = value.get(knob) if isinstance(value, Mapping) else None
    return _in_widget(field, field.default if value is None else value)


def _in_widget(field: Field, value: Any) -> Any:
    """A preset's value as its widget can hold it; what is of the wrong kind is left to the resolver's message."""
    match field.kind:
        case "texts":
            return (
                "\n".join(map(str, value)) if isinstance(value, list | tuple) else "" if value is None else str(value)
            )
        case "mapping":
            return value_words(value) if value else ""
        case "optional_bool":
            return value_words(value) if isinstance(value, bool) else "auto"
        case "text" | "choice":
            return "" if value is None else str(value)
        case "int" | "float":
            return value if isinstance(value, int | float) and not isinstance(value, bool) else None
    return bool(value)


def _meant(field: Field, value: Any) -> Any:
    """What a widget's value says in a preset. An emptied field means the default: the key is left out."""
    if value is None or value == "":
        return None
    match field.kind:
        case "texts":
            return [line.strip() for line in str(value).splitlines() if line.strip()]
        case "mapping":
            return load_yaml(str(value), where=field.key)
        case "optional_bool":
            return {"true": True, "false": False}.get(str(value))
        case "int" if isinstance(value, float) and not value.is_integer():
            raise ConfigError(f"{field.label} is {value}.", why="It must be a whole number.")
        case "int":
            return int(value)
        case "text" | "choice":
            return str(value)
    return value


def _real_key(key: str, draft: Draft) -> str:
    """``adapter.rank`` -> ``lora.rank``."""
    return f"{draft.method}.{key.removeprefix(ADAPTER_HEAD)}" if key.startswith(ADAPTER_HEAD) else key
