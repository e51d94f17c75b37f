"""From a pasted text to a preset and an honest list of what became of each flag. Used by CLI, TUI and page alike.

text -> paste.py (what is it?) -> a dialect's rules -> Draft -> settle_* (what belongs together) -> preset + findings
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.services.importing import inference
from app.services.importing.axolotl import AXOLOTL
from app.services.importing.checks import check_draft
from app.services.importing.data_entries import settle_data
from app.services.importing.draft import Draft
from app.services.importing.environment import apply_launcher_flag, apply_variable
from app.services.importing.facts import Facts, facts_here
from app.services.importing.finding import MEANINGS, Finding, Kind
from app.services.importing.galore import settle_galore
from app.services.importing.huggingface import HUGGINGFACE
from app.services.importing.kernels import settle_kernels
from app.services.importing.lengths import settle_lengths
from app.services.importing.llamafactory import LLAMAFACTORY
from app.services.importing.method import settle_method
from app.services.importing.parallelism import settle_gpus, settle_parallelism
from app.services.importing.paste import read_paste
from app.services.importing.pasted import Pasted, Setting
from app.services.importing.rules import Dialect, Rule
from app.services.importing.schedule import settle_schedule
from app.services.importing.swift import SWIFT
from app.services.importing.values import NotUnderstood
from app.services.preset_keys import NOT_CONFIG, RUN_KEYS
from planner.types import Preset

DIALECTS: dict[str, Dialect] = {d.name: d for d in (SWIFT, LLAMAFACTORY, AXOLOTL, HUGGINGFACE)}
_PROGRAMS = {"swift": SWIFT, "longfit": SWIFT, "llamafactory": LLAMAFACTORY, "axolotl": AXOLOTL, "trl": HUGGINGFACE}
_TRAINS = frozenset({"", "sft", "pt", "train", "script"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    preset: Preset | None  # None: the text trains nothing
    findings: tuple[Finding, ...]
    dialect: str = ""  # swift | llamafactory | axolotl | hf | longfit; "" when nothing was recognised
    verb: str = ""
    runs_dir: str | None = None  # where the paste wants its output
    command: tuple[str, ...] = ()  # of a paste that trains nothing: the longfit line that does the same

    def count(self, kind: Kind) -> int:
        return sum(finding.kind == kind for finding in self.findings)


def import_text(text: str, *, name: str | None = None, facts: Facts | None = None) -> Imported:
    """A command, a configuration or training code of ms-swift, LLaMA-Factory, axolotl or TRL. Never raises.

    Args:
        name: of the preset; made of model, length and method otherwise.
        facts: what this longfit and this machine can do; what is found here otherwise.
    """
    return import_pasted(read_paste(text), name=name, facts=facts)


def import_pasted(pasted: Pasted, *, name: str | None = None, facts: Facts | None = None) -> Imported:
    """The same for what a reader has read already: the arguments of `longfit sft`."""
    facts = facts or facts_here()
    if pasted.source == "nothing" or not (pasted.settings or pasted.files):
        return _nothing(pasted)
    if own := _own_preset(pasted, facts, name):
        return own
    dialect = _PROGRAMS.get(pasted.program) or _by_names(pasted.settings)
    if pasted.program == "megatron" or pasted.verb not in _TRAINS | inference.VERBS:
        return _not_offered(pasted, dialect)
    draft = Draft(facts=facts, tool=dialect.title)
    if pasted.verb in inference.VERBS:
        _apply(draft, _last_of_each(draft, pasted.settings), inference.RULES)
        command = inference.infer_command(draft)
        return Imported(
            preset=None, findings=_sorted(draft.findings), dialect=dialect.name, verb=pasted.verb, command=command
        )
    for variable in pasted.environment:
        _guarded(draft, variable, apply_variable)
    for flag in pasted.launcher:
        _guarded(draft, flag, apply_launcher_flag)
    _apply(draft, _last_of_each(draft, pasted.settings), dialect.rules)
    if pasted.verb == "pt":
        draft.put("data.train_on", "all", what="Continued pretraining: every token is a target.")
    _tell_rest(draft, pasted)
    preset_name = _settle(draft, dialect, name)
    return Imported(
        preset=_preset(draft, pasted, dialect, preset_name), findings=_sorted(draft.findings), dialect=dialect.name,
        verb=pasted.verb, runs_dir=draft.runs_dir,
    )  # fmt: skip


def _settle(draft: Draft, dialect: Dialect, name: str | None) -> str:
    """What belongs together, in the order in which one thing rests on another."""
    _settle_model(draft)
    settle_method(draft, default="lora" if dialect in (SWIFT, LLAMAFACTORY) else "full")
    settle_galore(draft, needs_switch=dialect is SWIFT)
    settle_gpus(draft, follow_degree=dialect.gpus_follow_degree)
    settle_data(draft, hub=dialect.hub)
    settle_schedule(draft)
    settle_kernels(draft)
    settle_lengths(draft)
    asked_name = draft.take("name")
    if asked_name is not None:
        draft.tell("translated" if name is None else "ignored", [asked_name.setting], what="The preset's name.")
    dialect.finish(draft)
    settle_parallelism(draft)
    check_draft(draft)
    return file_name(name or (asked_name.value if asked_name else "") or _name_of(draft))


def _apply(draft: Draft, settings: Sequence[Setting], rules: dict[str, Rule] | Any) -> None:
    for setting in settings:
        rule = rules.get(setting.name)
        if rule is None:
            near = difflib.get_close_matches(setting.name, rules, n=1, cutoff=0.6)
            dashes = "--" if setting.written.startswith("-") else ""
            draft.tell(
                "unknown", [setting], what=f"{draft.tool} has no such flag, as far as longfit knows.",
                fix=f"Did you mean {dashes}{near[0]}?" if near else "",
            )  # fmt: skip
        elif isinstance(setting.value, str) and re.search(r"\$\{?\w", setting.value):
            draft.tell(
                "unknown", [setting], what="The value is not in the text: it is computed, or a shell variable.",
                fix="Put the value itself there.",
            )  # fmt: skip
        else:
            _guarded(draft, setting, rule)


def _guarded(draft: Draft, setting: Setting, rule: Rule) -> None:
    try:
        rule(draft, setting)
    except (NotUnderstood, ValueError, TypeError, OverflowError) as error:
        words = str(error) if isinstance(error, NotUnderstood) else f"{setting.value!r} is not understood."
        draft.tell("unknown", [setting], what=words)


def _last_of_each(draft: Draft, settings: Sequence[Setting]) -> list[Setting]:
    """A flag given twice counts as the last one says; several calls of Python code are not twice."""
    last = {setting.name: setting for setting in settings}
    for setting in settings:
        if last[setting.name] is not setting:
            draft.tell("ignored", [setting], why=f"Given again later: {last[setting.name].written}.")
    return [setting for setting in settings if last[setting.name] is setting]


def _tell_rest(draft: Draft, pasted: Pasted) -> None:
    for file in pasted.files:
        draft.tell(
            "impossible", (), what=f"The settings stand in {file}, which was not pasted.", fix=f"longfit import {file}"
        )
    if pasted.stray:
        draft.tell("unknown", (), what=f"Words that belong to no flag: {' '.join(pasted.stray)}.")
    for other in pasted.others:
        draft.tell("ignored", (), what=f"A second command in the text: {other}.", why="Import it by itself.")


def _settle_model(draft: Draft) -> None:
    wish = draft.take("model_type")
    if wish is None:
        return
    if draft.values.get("model"):
        draft.tell("ignored", [wish.setting], why="The architecture is read from the model's config.json.")
    else:
        draft.put("model", wish.value, wish.setting, why="It named the model in ms-swift 1 and 2.")


def _preset(draft: Draft, pasted: Pasted, dialect: Dialect, name: str) -> Preset:
    preset = draft.preset(name, f"Imported from {dialect.title} ({pasted.verb or pasted.source})")
    if not pasted.directives:
        return preset
    # "# longfit:" lines of an earlier export have the last word.
    body = {"name": preset.name, "description": preset.description, "hardware": preset.hardware, **preset.values}
    for key, value in pasted.directives.items():
        _lay_over(body, key, value)
    words = ", ".join(pasted.directives)
    draft.tell("translated", (), what=f"Lines of an earlier export: {words}.", keys=pasted.directives)
    hardware = body["hardware"]
    return Preset(
        name=file_name(str(body["name"])), description=str(body["description"]),
        hardware=hardware if isinstance(hardware, Mapping) else {},
        values={key: value for key, value in body.items() if key not in NOT_CONFIG},
    )  # fmt: skip


def _lay_over(body: dict[str, Any], dotted: str, value: Any) -> None:
    key, _, knob = dotted.partition(".")
    if not knob:
        if value is None:
            body.pop(key, None)
        else:
            body[key] = value
        return
    inner = dict(body[key]) if isinstance(body.get(key), dict) else {}
    inner.pop(knob, None)
    body[key] = inner if value is None else {**inner, knob: value}


def _own_preset(pasted: Pasted, facts: Facts, name: str | None) -> Imported | None:
    """A longfit preset that was pasted stays what it is."""
    values = {setting.name: setting.value for setting in pasted.settings}
    known = {*NOT_CONFIG, *(key.name for key in RUN_KEYS), *facts.registry}
    if pasted.source != "document" or not isinstance(values.get("data"), dict) or not set(values) <= known:
        return None
    hardware = values.get("hardware")
    preset = Preset(
        name=file_name(name or str(values.get("name") or "imported")), description=str(values.get("description") or ""),
        hardware=hardware if isinstance(hardware, dict) else {},
        values={key: value for key, value in values.items() if key not in NOT_CONFIG},
    )  # fmt: skip
    finding = Finding(kind="default", what="This is a longfit preset already.")
    return Imported(preset=preset, findings=(finding,), dialect="longfit")


def _by_names(settings: Sequence[Setting]) -> Dialect:
    """The dialect that knows most of the names; its own ones count double."""
    names = {setting.name for setting in settings}
    return max(DIALECTS.values(), key=lambda d: len(names & d.rules.keys()) + len(names & d.markers))


def _nothing(pasted: Pasted) -> Imported:
    title = f"{pasted.program} {pasted.verb}".strip()
    what = f"`{title}` stands there without a flag." if title else "Nothing to import was found."
    fix = "Paste a command such as `swift sft --model ... --dataset ...`, or a YAML of axolotl or LLaMA-Factory."
    return Imported(preset=None, findings=(Finding(kind="unknown", what=what, why=pasted.problem, fix=fix),))


def _not_offered(pasted: Pasted, dialect: Dialect) -> Imported:
    title = f"{pasted.program} {pasted.verb}".strip()
    why = {
        "rlhf": "longfit does supervised fine-tuning and continued pretraining.",
        "export": "A checkpoint is a folder in PEFT or Hugging Face layout, ready for other tools.",
        "merge-lora": "A checkpoint is a folder in PEFT layout; peft's merge_and_unload() merges it.",
        "deploy": "Adapters are in PEFT layout: vllm serve MODEL --enable-lora --lora-modules trained=DIR.",
    }.get(pasted.verb, "longfit plans, trains, watches and answers prompts.")
    settings = (*pasted.environment, *pasted.launcher, *pasted.settings)
    finding = Finding(
        kind="impossible", flags=tuple(setting.written for setting in settings),
        what=f"`{title}` has no counterpart in longfit.", why=why, fix="`longfit --help` lists what there is.",
    )  # fmt: skip
    return Imported(preset=None, findings=(finding,), dialect=dialect.name, verb=pasted.verb)


def _sorted(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """What needs an eye first: impossible, risk, unknown, then the rest in the order of the text."""
    rank = {kind: place for place, kind in enumerate(MEANINGS)}
    return tuple(sorted(findings, key=lambda finding: rank[finding.kind]))


def _name_of(draft: Draft) -> str:
    """qwen2.5-7b-instruct-8k-lora."""
    model = str(draft.values.get("model") or "imported").rstrip("/").rsplit("/", 1)[-1]
    length = int(draft.values.get("max_length") or 0)
    size = f"{length // 1024}k" if length >= 1024 and length % 1024 == 0 else str(length or "")
    return "-".join(part for part in (model, size, draft.method) if part)


def file_name(text: str) -> str:
    """A name that can be a file's: lower case, without odd characters."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")[:80] or "imported"
