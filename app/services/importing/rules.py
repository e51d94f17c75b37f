"""What a dialect says about one flag: carry it over, keep it for later, or tell why nothing follows from it.

A dialect is a table from names to rules; a rule is a function of the draft and the setting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.services.importing.draft import Draft
from app.services.importing.finding import Kind
from app.services.importing.pasted import Setting
from app.services.importing.values import is_off, number, one, text, truth, whole
from app.services.preset_keys import RUN_KEYS

Rule = Callable[[Draft, Setting], None]
Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    name: str
    title: str  # as people call the tool
    rules: Mapping[str, Rule]
    finish: Callable[[Draft], None]  # what the tool does by itself: Draft.imply
    hub: str = "hf"  # where its dataset ids live
    has_flags: bool = True  # written as --flags rather than as keys of a document
    gpus_follow_degree: bool = False  # its texts name no number of GPUs: a degree of 4 means 4 GPUs
    markers: frozenset[str] = field(default_factory=frozenset)  # names that only this tool has


def sets(key: str, convert: Convert, *, what: str = "") -> Rule:
    """One preset key, as it is."""

    def rule(draft: Draft, setting: Setting) -> None:
        draft.put(key, convert(setting.value), setting, what=what)

    return rule


def wishes(name: str, convert: Convert) -> Rule:
    """Part of a decision that a settle step takes."""

    def rule(draft: Draft, setting: Setting) -> None:
        draft.wish(name, convert(setting.value), setting)

    return rule


def default(why: str, *, while_: Convert = truth) -> Rule:
    """longfit does this anyway; the contrary is told as ignored."""

    def rule(draft: Draft, setting: Setting) -> None:
        kind: Kind = "default" if while_(setting.value) else "ignored"
        draft.tell(kind, [setting], why=why)

    return rule


def ignored(why: str) -> Rule:
    def rule(draft: Draft, setting: Setting) -> None:
        draft.tell("ignored", [setting], why=why)

    return rule


def impossible(why: str, fix: str = "", *, off: Callable[[Any], bool] = is_off) -> Rule:
    """Something longfit does not do; switched off it says nothing."""

    def rule(draft: Draft, setting: Setting) -> None:
        if off(setting.value):
            draft.tell("default", [setting], why="It is off here too.")
        else:
            draft.tell("impossible", [setting], what="longfit does not do this.", why=why, fix=fix)

    return rule


def choice(key: str, names: Mapping[str, str], *, other: str, fix: str = "") -> Rule:
    """One of several words; a word that has no counterpart leaves the key at longfit's default."""

    def rule(draft: Draft, setting: Setting) -> None:
        word = text(setting.value).strip().lower()
        if word in names:
            draft.put(key, names[word], setting)
        else:
            draft.decided.add(key)
            draft.tell("impossible", [setting], what=f"{one(setting.value)!r} is not offered here.", why=other, fix=fix)

    return rule


def optimizer(draft: Draft, setting: Setting) -> None:
    """AdamW by its many names; GaLore as Transformers spells it; the rest is told."""
    word = text(setting.value).strip().lower().removeprefix("optimizernames.")
    known = next(key.choices for key in RUN_KEYS if key.name == "optim")
    same = {
        "adamw_hf": "adamw_torch", "adamw": "adamw_torch", "adamw_apex_fused": "adamw_torch_fused",
        "adamw_bnb_8bit": "adamw_8bit",  # Transformers' older name of the same
    }.get(word, word)  # fmt: skip
    if same in known:
        draft.put("optim", same, setting)
    elif word.startswith("galore"):
        draft.wish("galore", True, setting)
    else:
        draft.decided.add("optim")
        why = "With adapters the optimizer states are small: 8 bytes for each trained parameter."
        draft.tell(
            "impossible", [setting], what=f"The optimizer {word} is not offered; adamw_torch takes its place.",
            why=why, fix=f"Offered: {', '.join(known)}.", keys={"optim": "adamw_torch"},
        )  # fmt: skip


def checkpointing(draft: Draft, setting: Setting) -> None:
    """On or off; `offload` (axolotl) and `unsloth` also send the layer inputs to host memory."""
    word = text(setting.value).strip().lower()
    is_sent = word.startswith("offload") or word == "unsloth"
    draft.wish("gradient_checkpointing", is_sent or truth(setting.value), setting)
    if is_sent:
        draft.wish("checkpoint_offload", True, setting)


def scheduler(draft: Draft, setting: Setting) -> None:
    """transformers' constant has no warm-up, its constant_with_warmup is our constant."""
    word = text(setting.value).strip().lower().removeprefix("schedulertype.")
    names = {
        "linear": "linear", "cosine": "cosine", "constant_with_warmup": "constant", "constant": "constant",
        "warmup_stable_decay": "wsd", "wsd": "wsd",
    }  # fmt: skip
    nearest = {"cosine_with_min_lr": "cosine", "cosine_with_restarts": "cosine", "cosine_warmup_with_min_lr": "cosine"}
    if word in names:
        draft.put("lr_scheduler_type", names[word], setting)
        if word == "constant":
            draft.wish("no_warmup", True, setting)
        return
    substitute = nearest.get(word, "linear")
    draft.decided.add("lr_scheduler_type")
    draft.values["lr_scheduler_type"] = substitute
    draft.tell(
        "impossible", [setting], what=f"The schedule {word} is not offered; {substitute} takes its place.",
        fix="Offered: linear, cosine, constant, wsd.", keys={"lr_scheduler_type": substitute},
    )  # fmt: skip


def trackers(value: Any) -> tuple[str, ...]:
    """``report_to``: what longfit can hand its metrics to; "all" is all of it."""
    items = value if isinstance(value, (list, tuple)) else str(value).split(",")
    words = [str(item).strip().lower() for item in items if str(item).strip()]
    known = next(key.choices for key in RUN_KEYS if key.name == "report_to")
    return tuple(known) if "all" in words else tuple(word for word in words if word in known)


def report_to(draft: Draft, setting: Setting) -> None:
    known = trackers(setting.value)
    words = str(setting.value).lower()
    lost = [word for word in ("swanlab", "mlflow", "comet_ml", "neptune", "clearml", "dvclive") if word in words]
    if lost:
        draft.decided.add("report_to")
        draft.values |= {"report_to": list(known)} if known else {}
        draft.tell(
            "impossible", [setting], what=f"Metrics cannot be sent to {', '.join(lost)}.",
            fix="metrics.jsonl is always written; tensorboard, trackio and wandb are offered.",
            keys={"report_to": list(known)},
        )  # fmt: skip
    elif known:
        draft.put("report_to", list(known), setting)
    else:
        draft.decided.add("report_to")
        draft.tell("default", [setting], why="metrics.jsonl is always written, and nothing else unless asked.")


def steps(key: str) -> Rule:
    """``save_steps``, ``eval_steps``: a number of steps; below 1 a share of them, which is not known yet."""

    def rule(draft: Draft, setting: Setting) -> None:
        value = one(setting.value)
        if 0 < number(value) < 1:
            draft.decided.add(key)
            draft.tell(
                "impossible", [setting], what="A share of the steps is not offered; a number of steps is.",
                fix=f"--set {key}=100, for example.",
            )  # fmt: skip
        else:
            draft.wish(key, whole(value), setting)

    return rule
