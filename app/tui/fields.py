"""The fields of the Plan form: the important ones by hand, all others generated from preset keys and the registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from app.services.draft import AS_PRESET, METHODS, Draft, is_on, knobs_of
from app.services.preset_keys import DATA_KEYS, RUN_KEYS, PresetKey, check_value, optimization_keys
from app.services.yaml_text import load_yaml
from app.views.parts import value_words
from core.optimizations import REGISTRY
from planner.errors import ConfigError

FieldKind = Literal["choice", "number", "switch", "text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSpec:
    """One row of the form. ``key`` is a dotted preset key, or ``preset``, ``gpu``, ``count``, ``method``."""

    key: str
    label: str
    kind: FieldKind
    help: str
    group: str
    preset_key: PresetKey | None = None
    free_text: bool = False  # a choice that also takes what is not in its list

    def parse(self, text: str) -> Any:
        """The typed value. Raises: ConfigError as the preset file itself would, naming the key."""
        if self.kind == "switch":
            return text == "true"
        if self.preset_key is None:
            return text
        if is_open(self.preset_key):
            return None if text == AUTO else text == "true"
        value: Any = text
        if self.kind != "choice":  # a choice is a text, whatever YAML would read into it
            value = load_yaml(text, where=self.label) if text.strip() else None
        return check_value(self.preset_key, value, where="form")


AUTO = "auto"
_RUN = {key.name: key for key in RUN_KEYS}
_TOP_RUN = ("max_length", "per_device_train_batch_size", "gradient_accumulation_steps")
_LABELS = {
    "max_length": "length", "per_device_train_batch_size": "batch", "gradient_accumulation_steps": "accumulation",
    "sequence_parallel": "seq. parallel", "fake_parallel": "fake parallel", "gradient_checkpointing": "checkpointing",
    "num_train_epochs": "epochs", "per_device_eval_batch_size": "eval batch", "lr_scheduler_type": "schedule",
    "save_total_limit": "keep saves", "checkpoint_offload": "offload", "weight_streaming": "streaming",
    "flash_attention": "flash attn", "rope_scaling": "rope scaling",
}  # fmt: skip


def is_open(key: PresetKey) -> bool:
    """A switch with a third position: absent means that longfit decides."""
    return key.kind == "bool" and key.default is None


def form_fields() -> tuple[FieldSpec, ...]:
    """All rows in order; groups are headed by their names."""
    return (*_main_fields(), *_parallel_fields(), *_knob_fields(), *_training_fields(), *_data_fields())


def _main_fields() -> tuple[FieldSpec, ...]:
    switches = [
        name
        for name, cls in REGISTRY.items()
        if name not in ("lora", "qlora", "ulysses", "ring", "fake_parallel") and cls.available
    ]
    return (
        FieldSpec(key="preset", label="preset", kind="choice", help="start from this preset", group=""),
        FieldSpec(key="model", label="model", kind="choice", help=_RUN["model"].help, group="",
                  preset_key=_RUN["model"], free_text=True),
        FieldSpec(key="method", label="method", kind="choice", group="",
                  help="what is trained: every weight, or adapters on a base in 16 bit (lora) or 4 bit (qlora)"),
        FieldSpec(key="gpu", label="GPU", kind="choice", free_text=True, group="",
                  help="hardware to plan for: a card of the catalog, this machine (here), or its CPU"),
        FieldSpec(key="count", label="GPUs", kind="number", help="how many of them", group="",
                  preset_key=PresetKey(name="count", kind="int", help="how many of them", minimum=1, maximum=4096)),
        *(_run_field(name, "") for name in _TOP_RUN),
        *(_switch(name) for name in switches),
    )  # fmt: skip


def _switch(name: str) -> FieldSpec:
    return FieldSpec(key=name, label=_label(name), kind="switch", help=REGISTRY[name].summary, group="")


def _parallel_fields() -> tuple[FieldSpec, ...]:
    degrees = tuple(
        FieldSpec(
            key=name, label=_label(name), kind="number", help=REGISTRY[name].summary, group="",
            preset_key=PresetKey(name=name, kind="int", help=REGISTRY[name].summary, minimum=0),
        )
        for name in ("fake_parallel", "ulysses", "ring")
        if name in REGISTRY
    )  # fmt: skip
    return (_run_field("sequence_parallel", ""), *degrees)


def _knob_fields() -> tuple[FieldSpec, ...]:
    """The knobs of the optimizations, except degrees, which are fields of their own."""
    return tuple(
        FieldSpec(
            key=f"{name}.{key.name}", label=key.name.replace("_", " "), help=key.help, group=_label(name),
            kind="switch" if key.kind == "bool" else "choice" if key.choices else _kind(key), preset_key=key,
        )
        for name, cls in REGISTRY.items()
        if name not in ("ulysses", "ring", "fake_parallel") and cls.available
        for key in optimization_keys(name, REGISTRY)
    )  # fmt: skip


def _training_fields() -> tuple[FieldSpec, ...]:
    shown = {"model", "data", "sequence_parallel", *_TOP_RUN}
    return tuple(_run_field(key.name, "training") for key in RUN_KEYS if key.name not in shown)


def _data_fields() -> tuple[FieldSpec, ...]:
    return tuple(
        FieldSpec(
            key=f"data.{key.name}", label=key.name.replace("_", " "), kind=_kind(key), help=key.help, group="data",
            preset_key=key,
        )
        for key in DATA_KEYS
    )  # fmt: skip


def _run_field(name: str, group: str) -> FieldSpec:
    key = _RUN[name]
    return FieldSpec(key=name, label=_label(name), kind=_kind(key), help=key.help, group=group, preset_key=key)


def _kind(key: PresetKey) -> FieldKind:
    if key.kind == "bool":
        return "choice" if is_open(key) else "switch"
    if key.choices and key.kind == "text":
        return "choice"
    return "number" if key.kind in ("int", "float") else "text"


def _label(name: str) -> str:
    return _LABELS.get(name, name.replace("_", " "))


def field_value(spec: FieldSpec, draft: Draft) -> Any:
    """What the form shows for a draft."""
    match spec.key:
        case "preset":
            return draft.preset.name
        case "method":
            return draft.method
        case "gpu":
            return draft.gpu
        case "count":
            return draft.count or int(draft.preset.hardware.get("count") or 1)
    if spec.kind == "switch" and "." not in spec.key and spec.key in REGISTRY:
        return is_on(draft.values.get(spec.key))
    value = draft.get(spec.key, spec.preset_key.default if spec.preset_key else None)
    if spec.key in ("fake_parallel", "ulysses", "ring"):
        return knobs_of(spec.key, value).get(REGISTRY[spec.key].main_knob, 1)
    return value


def field_text(spec: FieldSpec, draft: Draft) -> str:
    value = field_value(spec, draft)
    if value is None and spec.preset_key is not None and is_open(spec.preset_key):
        return AUTO
    if isinstance(value, tuple | list) and len(value) == 1:
        return str(value[0])
    return "" if value in (None, ()) else value_words(list(value) if isinstance(value, tuple) else value)


def field_choices(
    spec: FieldSpec, *, presets: tuple[str, ...], models: tuple[str, ...], gpus: tuple[str, ...]
) -> tuple[str, ...]:
    """The list a choice opens."""
    named = {"preset": presets, "model": models, "gpu": (AS_PRESET, "here", "cpu", *gpus), "method": METHODS}
    if spec.key in named:
        return named[spec.key]
    if spec.preset_key is None:
        return ()
    if is_open(spec.preset_key):
        return (AUTO, "true", "false")
    return tuple(str(choice) for choice in spec.preset_key.choices)


def field_help(spec: FieldSpec, text: str, choices: tuple[str, ...]) -> str:
    """Everything there is to know about a field: its key, what it means, what it can be, what it is now."""
    lines = [spec.key, "", spec.help]
    key = spec.preset_key
    if key is not None:
        kinds = {"int": "a whole number", "float": "a number", "text": "a text", "texts": "a text, or [one, another]",
                 "bool": "on or off", "mapping": "{key: value, ...}"}  # fmt: skip
        bounds = [f"at least {key.minimum:g}"] if key.minimum is not None else []
        bounds += [f"at most {key.maximum:g}"] if key.maximum is not None else []
        lines += ["", ", ".join([kinds[key.kind], *bounds])]
        lines.append("It must be there." if key.required else f"Left out: {value_words(key.default)}")
    if choices and not spec.free_text:
        lines.append(f"It can be {', '.join(choices)}.")
    elif choices:
        lines.append("Enter opens the list; any other value can be typed there.")
    return "\n".join([*lines, "", f"now: {text or '(empty)'}"])


def field_is_active(spec: FieldSpec, draft: Draft) -> bool:
    """Knobs of something that is switched off are not offered."""
    head, _, knob = spec.key.partition(".")
    if not knob or head not in REGISTRY:
        return True
    return is_on(draft.values.get(head))


def field_of_error(error: ConfigError, specs: tuple[FieldSpec, ...]) -> str | None:
    """The key of the field an error speaks of: the one most of which occurs in its first sentence."""
    words = error.what.replace(":", " ").replace("'", " ").split()
    found = [spec.key for spec in specs if spec.key.rpartition(".")[2] in words]
    return max(found, key=lambda key: (sum(part in words for part in key.split(".")), len(key)), default=None)
