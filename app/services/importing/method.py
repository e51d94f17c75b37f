"""Settles what is trained: everything, LoRA, or LoRA on a 4-bit base, with the adapters' knobs. For imported.py."""

from __future__ import annotations

import math
from collections.abc import Sequence

from app.services.importing.draft import Draft, Wish
from app.services.importing.pasted import Setting

_EVERY_LINEAR = frozenset({"all-linear", "all_linear", "all", "auto", "default"})
_KNOBS = ("rank", "alpha", "dropout", "targets", "adapter_dtype", "double_quant")


def settle_method(draft: Draft, *, default: str) -> None:
    """``default``: what the tool trains when nobody says."""
    asked, peft = draft.take("method"), draft.take("use_peft")
    said = [wish.setting for wish in (asked, peft) if wish is not None]
    word = str(asked.value).lower() if asked else ("lora" if peft.value else "full") if peft else default
    if word not in ("lora", "qlora", "full"):
        draft.tell(
            "impossible", said, what=f"{word} is not offered; lora takes its place.",
            fix="Offered: lora, qlora, and full fine-tuning.", keys={"lora": True},
        )  # fmt: skip
        word, said = "lora", []
    name = _quantised(draft, word)
    if name == "full":
        draft.decided |= {"lora", "qlora"}
        if said:
            draft.tell("translated", said, what="Full fine-tuning: every parameter is trained.")
        _drop_knobs(draft)
        return
    draft.values[name] = True
    draft.decided |= {"lora", "qlora"}
    if not said and word == name:
        draft.tell("implied", (), keys={name: True})
    elif said:
        draft.tell("translated", said, keys={name: True})
    if not draft.facts.offers(name):
        draft.tell(
            "impossible", said, what=f"{name} can be planned, and not yet trained with.", keys={name: True},
            fix="--set qlora=null --set lora.rank=16 trains on the 16-bit base, which needs more memory.",
        )  # fmt: skip
    _carry_knobs(draft, name)


def _quantised(draft: Draft, word: str) -> str:
    """The method once the quantisation of the base is known."""
    bits, method = draft.take("quant_bits"), draft.take("quant_method")
    said = [wish.setting for wish in (bits, method) if wish is not None]
    num_bits = int(bits.value) if bits else 4 if method and str(method.value).lower() not in ("none", "") else 0
    if num_bits == 0:
        if bits or method:
            draft.tell("default", said, why="The base is not quantised.")
        return word
    if word == "full":
        draft.tell(
            "impossible", said, what="A quantised base cannot be trained in full; it stays in its own dtype.",
            why="4-bit weights take no gradient steps.", fix="--set qlora=true trains adapters on a 4-bit base.",
        )  # fmt: skip
        return word
    if num_bits != 4:
        draft.tell(
            "impossible", said, what=f"{num_bits}-bit bases are not offered; the base stays in its own dtype.",
            fix="--set lora=null --set qlora=true keeps it in 4 bits.",
        )  # fmt: skip
        return "lora"
    kind = str(method.value).lower() if method else "bnb"
    if kind in ("bnb", "bitsandbytes", "nf4"):
        draft.tell("translated", said, what="4-bit NF4 base.", keys={"qlora": True})
    else:
        draft.tell(
            "impossible", said, what=f"4 bits by {kind} are not offered; 4-bit NF4 takes their place.",
            why="Both take about half a byte a weight; results differ slightly.", keys={"qlora": True},
        )  # fmt: skip
    return "qlora"


def _carry_knobs(draft: Draft, name: str) -> None:
    has = draft.facts.knobs(name)
    rslora = draft.take("adapter.rslora")
    for knob in _KNOBS:
        wish = draft.take(f"adapter.{knob}")
        if wish is None:
            continue
        value = _targets(wish.value) if knob == "targets" else wish.value
        if knob not in has:
            draft.tell("ignored", [wish.setting], why=f"{name} has no {knob}.")
        elif knob == "alpha" and not float(value).is_integer():
            draft.tell("impossible", [wish.setting], what="alpha is a whole number here.", fix="Scale rank and alpha.")
        else:
            draft.put(f"{name}.{knob}", int(value) if knob == "alpha" else value, wish.setting, always=True)
    if rslora is not None:
        _rank_stabilised(draft, name, rslora)


def _rank_stabilised(draft: Draft, name: str, wish: Wish) -> None:
    """rsLoRA scales by alpha / sqrt(r) where LoRA has alpha / r: the same with alpha times sqrt(r)."""
    if not wish.value:
        draft.tell("default", [wish.setting], why="Updates are scaled by alpha / rank.")
        return
    has = draft.facts.knobs(name)
    rank = int(draft.values.get(f"{name}.rank", has.get("rank", 16)))
    alpha = int(draft.values.get(f"{name}.alpha", has.get("alpha", 32)))
    scaled = alpha * math.sqrt(rank)
    why = f"alpha / sqrt(rank) = {alpha} / {math.sqrt(rank):g} is {scaled:g} / {rank}."
    draft.decided.add(f"{name}.alpha")
    draft.values[f"{name}.alpha"] = round(scaled)
    draft.tell(
        "translated" if abs(scaled - round(scaled)) < 1e-9 else "impossible", [wish.setting],
        what=f"The same scale as alpha {round(scaled)}.", why=why, keys={f"{name}.alpha": round(scaled)},
    )  # fmt: skip


def _targets(words: Sequence[str]) -> str:
    names = [word.strip() for word in words]
    return "all-linear" if any(name.lower() in _EVERY_LINEAR for name in names) else ",".join(names)


def _drop_knobs(draft: Draft) -> None:
    settings: list[Setting] = []
    for knob in (*_KNOBS, "rslora"):
        wish = draft.take(f"adapter.{knob}")
        if wish is not None:
            settings.append(wish.setting)
    if settings:
        draft.tell("ignored", settings, why="Full fine-tuning has no adapters.")
