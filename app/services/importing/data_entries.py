"""Settles what is trained on: files, ids of hubs, registered names, held-out sets. Called by imported.py."""

from __future__ import annotations

import re

from app.services.importing.draft import Draft, Wish

_SUFFIX = re.compile(r"\.(?:jsonl?|json5|csv|tsv|parquet|arrow|txt|md|pdf|docx|html?|gz|zst)(?:\.gz)?$", re.IGNORECASE)
_AMOUNT = re.compile(r"#\d+%?$")
_HUBS = {"ms": "ModelScope", "hf": "Hugging Face"}
# names that ms-swift 1 and 2 and LLaMA-Factory ship, and the sets behind them
_REGISTERED = {
    "alpaca-zh": "ms::AI-ModelScope/alpaca-gpt4-data-zh", "alpaca-en": "ms::AI-ModelScope/alpaca-gpt4-data-en",
    "self-cognition": "ms::swift/self-cognition", "alpaca_gpt4_zh": "hf::llamafactory/alpaca_gpt4_zh",
    "alpaca_gpt4_en": "hf::llamafactory/alpaca_gpt4_en", "alpaca_zh_demo": "hf::llamafactory/alpaca_zh",
    "alpaca_en_demo": "hf::llamafactory/alpaca_en",
}  # fmt: skip


def settle_data(draft: Draft, *, hub: str) -> None:
    """``hub``: where an id without prefix is looked up, "ms" or "hf"."""
    prefers_hf = draft.take("use_hf")
    if prefers_hf is not None:
        hub = "hf" if prefers_hf.value else hub
        draft.tell("translated", [prefers_hf.setting], what=f"Ids without a prefix are looked up at {_HUBS[hub]}.")
    amount = draft.take("max_samples")
    for key, name in (("data.train", "train_data"), ("data.eval", "eval_data")):
        wish = draft.take(name)
        if wish is None or not wish.value:
            if wish is not None:
                draft.tell("default", [wish.setting], why="No set is named.")
            continue
        _put_entries(draft, key, wish, hub, amount if key == "data.train" else None)
    if amount is not None and "data.train" not in draft.values:
        draft.tell("ignored", [amount.setting], why="There is no set to sample from.")
    _settle_weights(draft)
    _settle_system(draft)
    _settle_held_out(draft)


def _put_entries(draft: Draft, key: str, wish: Wish, hub: str, amount: Wish | None) -> None:
    kinds: dict[str, list[str]] = {}
    entries: list[str] = []
    for given in wish.value:
        kind, entry = classify(str(given), hub, draft)
        if amount is not None and not _AMOUNT.search(entry):
            entry = f"{entry}#{amount.value}"
        kinds.setdefault(kind, []).append(entry)
        entries.append(entry)
    draft.values[key] = entries
    draft.decided.add(key)
    why = "A set with fewer rows is repeated up to that number; leave `#n` out then." if amount else ""
    draft.tell("translated", [wish.setting, amount.setting if amount else None], why=why, keys={key: entries})
    if "hub" in kinds and not draft.facts.reads_hubs:
        draft.tell(
            "impossible", [wish.setting], what=f"Sets of a hub cannot be fetched here: {_listed(kinds['hub'])}.",
            why="This version of longfit reads files and folders.",
            fix=f"Download them and name the files: --set {key}=[my.jsonl].",
        )  # fmt: skip
    if "name" in kinds:
        known = [f"{name} is {_REGISTERED[bare]}" for name in kinds["name"] if (bare := _bare(name)) in _REGISTERED]
        draft.tell(
            "unknown", [wish.setting], what=f"A name that only {draft.tool} knows: {_listed(kinds['name'])}.",
            why=f"{'; '.join(known)}." if known else "",
            fix=f"Name the file or the hub id behind it: --set {key}=[my.jsonl].",
        )  # fmt: skip


def _settle_weights(draft: Draft) -> None:
    """Shares of the sets, in their order; when an epoch ends is longfit's own: no row is taken twice."""
    shares, ends = draft.take("set_weights"), draft.take("exhausted")
    entries = draft.values.get("data.train") or []
    if ends is not None and shares is None:
        draft.tell("ignored", [ends.setting], why="It belongs to sets that are mixed by shares; these are joined.")
    elif ends is not None and ends.value == "all":
        draft.tell(
            "impossible", [ends.setting], what="An epoch ends with the set that is scarce for its share.",
            why="Rows repeat only where a set's name says so.", fix="Repeat it there, as in small.jsonl#300%.",
        )  # fmt: skip
    elif ends is not None:
        draft.tell("default", [ends.setting], why="An epoch ends with the set that is scarce for its share.")
    if shares is None:
        return
    draft.decided.add("data.weights")
    if len(shares.value) != len(entries) or len(set(entries)) < len(entries) or min(shares.value, default=0) <= 0:
        what = f"{len(shares.value)} shares for {len(entries)} sets: each set needs one, above 0."
        draft.tell("unknown", [shares.setting], what=what)
    elif len(entries) == 1:
        draft.tell("default", [shares.setting], why="There is one set.")
    else:
        draft.put("data.weights", dict(zip(entries, shares.value)), shares.setting)


def classify(given: str, hub: str, draft: Draft) -> tuple[str, str]:
    """("file" | "hub" | "name", the entry of a preset)."""
    bare = _bare(given)
    prefix, _, rest = given.partition("::")
    if rest and prefix.lower() in _HUBS:
        return "hub", f"{prefix.lower()}::{rest}"
    if draft.facts.is_file(given) or draft.facts.is_file(bare) or _SUFFIX.search(bare):
        return "file", given
    if bare.startswith((".", "/", "~")) or any(char in bare for char in "*?\\"):
        return "file", given
    if re.fullmatch(r"[\w.-]+/[\w.-]+(?::[\w./-]+)?", bare):
        return "hub", f"{hub}::{given}"
    return "name", given


def _bare(given: str) -> str:
    return _AMOUNT.sub("", given)


def _settle_system(draft: Draft) -> None:
    wish = draft.take("system")
    if wish is None:
        return
    prompt = str(wish.value)
    if prompt.endswith((".txt", ".md")) and "\n" not in prompt:
        draft.tell(
            "impossible", [wish.setting], what="A system prompt is text here, not the name of a file.",
            fix='--set data.system="$(cat ' + prompt + ')"',
        )  # fmt: skip
        draft.decided.add("data.system")
    elif prompt:
        draft.put("data.system", prompt, wish.setting)
    else:
        draft.tell("default", [wish.setting], why="No system prompt is added.")


def _settle_held_out(draft: Draft) -> None:
    wish = draft.take("eval_fraction")
    if wish is None:
        return
    share = float(wish.value)
    if draft.values.get("data.eval"):
        draft.tell("ignored", [wish.setting], why="Held-out sets are named, so nothing is split off.")
    elif share > 0.5:
        draft.decided.add("data.eval_fraction")
        draft.tell(
            "impossible", [wish.setting], what=f"A held-out set of {share:g} rows is given as a share here, up to 0.5.",
            fix="--set data.eval_fraction=0.01",
        )  # fmt: skip
    else:
        draft.put("data.eval_fraction", share, wish.setting)


def _listed(names: list[str]) -> str:
    return ", ".join(names)
