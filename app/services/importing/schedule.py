"""Settles what counts in steps: accumulation, evaluation and saving; and dtype, seed and name. For imported.py."""

from __future__ import annotations

from app.services.importing.draft import Draft, Wish
from app.services.importing.finding import Kind


def settle_schedule(draft: Draft) -> None:
    _settle_dtype(draft)
    _settle_seed(draft)
    _settle_accumulation(draft)
    _settle_interval(draft, "save_steps", "save_strategy", never="Checkpoints are written at the end and on stop.")
    _settle_interval(draft, "eval_steps", "eval_strategy", never="Evaluation comes before and after the training.")
    no_warmup = draft.take("no_warmup")
    if no_warmup is not None:
        for key in ("warmup_ratio", "warmup_steps"):
            if draft.values.pop(key, None):
                draft.decided.add(key)
                draft.tell("ignored", (), what=f"{key} is left out: the schedule `constant` has no warm-up there.")
        draft.decided |= {"warmup_ratio", "warmup_steps"}


def _settle_dtype(draft: Draft) -> None:
    wish = draft.take("dtype")
    if wish is not None:
        draft.put("dtype", wish.value, wish.setting)


def _settle_seed(draft: Draft) -> None:
    wish = draft.take("data_seed")
    if wish is None:
        return
    if wish.value == draft.values.get("seed", 42):
        draft.tell("default", [wish.setting], why="One seed rules data order, initialisation and dropout.")
    else:
        draft.tell(
            "impossible", [wish.setting], what="Data has no seed of its own.",
            why="One seed rules data order, initialisation and dropout.", fix=f"--set seed={wish.value}",
        )  # fmt: skip


def _settle_accumulation(draft: Draft) -> None:
    """``auto`` and a total batch size are worked out by the dialects; here is the plain number."""
    wish = draft.take("accumulation")
    if wish is None:
        return
    if wish.value:
        draft.put("gradient_accumulation_steps", int(wish.value), wish.setting)
    else:
        draft.tell("implied", [wish.setting], why="Worked out from the batch size and the number of GPUs.")


def _settle_interval(draft: Draft, key: str, strategy_key: str, *, never: str) -> None:
    interval, strategy = draft.take(key), draft.take(strategy_key)
    word = str(strategy.value) if strategy is not None else "steps"
    if word in ("no", "false", "none"):
        draft.decided.add(key)
        _tell_all(draft, "default", strategy, interval, why=never)
        return
    if word == "epoch":
        draft.decided.add(key)
        assert strategy is not None
        draft.tell(
            "impossible", [strategy.setting], what="An interval of one epoch is not offered; a number of steps is.",
            why=never, fix=f"--set {key}=100; the plan shows how many steps an epoch has.",
        )  # fmt: skip
        if interval is not None:
            draft.tell("ignored", [interval.setting], why="The strategy goes by epochs.")
        return
    if strategy is not None:
        draft.tell("default", [strategy.setting], why="Intervals are counted in steps.")
    if interval is not None:
        draft.put(key, int(interval.value), interval.setting)


def _tell_all(draft: Draft, kind: Kind, *wishes: Wish | None, why: str) -> None:
    draft.tell(kind, [wish.setting for wish in wishes if wish is not None], why=why)
