"""The step-by-step table of a plan as rows, text and JSON: what each optimization changes, and what the floor is.

Called by `longfit plan --ladder` and by the faces.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.views.format import column_unit, format_bytes, format_count, format_signed_bytes
from app.views.parts import INSTANT_LABELS, PART_STYLES, VERDICT_WORDS, combination_words, setting_words, value_words
from app.views.plan_view import cluster_words
from planner.ladder import Ladder, Rung
from planner.types import Part, Plan, RunConfig

NOT_RUNNABLE = "planned, not yet runnable"
SMALLEST_SHOWN = 32 * 1024**2  # changes of a part below this are left out of the words


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderRow:
    step: str  # "LoRA r64 + packing" on the first, "+ checkpointing" on the others
    used_bytes: int
    change_bytes: int  # of used, against the row above
    peak: str
    tokens_per_second: float
    verdict: str
    runnable: bool
    by_part: tuple[tuple[str, int], ...]  # label -> change in bytes against the row above, largest first
    changed: str  # the same in words
    measured_used_bytes: int | None  # by a rehearsal of this very configuration


def ladder_rows(ladder: Ladder, measured: Mapping[str, int] | None = None) -> tuple[LadderRow, ...]:
    """``measured``: hash of a configuration -> used bytes that a rehearsal of it read."""
    rows: list[LadderRow] = []
    before: Rung | None = None
    for rung in ladder.rungs:
        by_part = _part_changes(before, rung)
        words = [f"{label} {format_signed_bytes(size)}" for label, size in by_part if abs(size) >= SMALLEST_SHOWN]
        rows.append(
            LadderRow(
                step=whole_words(rung) if before is None else step_words(before, rung),
                used_bytes=rung.used_bytes,
                change_bytes=0 if before is None else rung.used_bytes - before.used_bytes,
                peak=INSTANT_LABELS[rung.peak_instant],
                tokens_per_second=rung.tokens_per_second,
                verdict=VERDICT_WORDS[rung.verdict],
                runnable=rung.runnable,
                by_part=by_part,
                changed=", ".join(words),
                measured_used_bytes=(measured or {}).get(rung.config.hash()),
            )
        )
        before = rung
    return tuple(rows)


def whole_words(rung: Rung) -> str:
    """``LoRA r64 + checkpointing``, ``full fine-tuning + fused loss, optim: adamw_8bit``."""
    config, names = rung.config, combination_words(rung.config.optimizations)
    if config.method == "full":
        names = f"full fine-tuning + {names}" if config.optimizations else "full fine-tuning"
    optim = f", optim: {config.optim}" if config.method == "full" and config.optim != "adamw_torch" else ""
    engine = f", engine: {config.engine}" if config.engine != "module" else ""
    return names + optim + (f", update: {config.update}" if config.update != "step" else "") + engine


def step_words(before: Rung, after: Rung) -> str:
    """``+ checkpointing``; a setting with another knob is named again, one that went is ``- ring 2``."""
    old, new = before.config.optimizations, after.config.optimizations
    names, changes = {setting.name for setting in new}, dict(after.changes)
    words = [
        f"+ {_full_words(setting.name, before.config, after.config, changes)}" for setting in new if setting not in old
    ]
    words += [f"- {setting_words(setting)}" for setting in old if setting.name not in names]
    words += [f"{key}: {value}" for key, value in after.changes if key in ("optim", "update", "engine")]
    return ", ".join(words)


def _full_words(name: str, old: RunConfig, new: RunConfig, changes: Mapping[str, Any]) -> str:
    """With the knobs that changed, or that differ from their defaults."""
    setting, earlier = new.optimization(name), old.optimization(name)
    assert setting is not None
    words = setting_words(setting)
    if earlier is None:
        value = changes.get(name)
        return f"{words} ({value_words(value)})" if isinstance(value, str | dict) else words
    known = earlier.as_dict()
    changed = [f"{knob}: {value_words(value)}" for knob, value in setting.knobs if known.get(knob) != value]
    return f"{words} ({', '.join(changed)})"


def _part_changes(before: Rung | None, after: Rung) -> tuple[tuple[str, int], ...]:
    if before is None:
        return ()
    parts: list[Part] = [part for part in PART_STYLES if part in before.by_part or part in after.by_part]
    changes = [(PART_STYLES[p].label, after.by_part.get(p, 0) - before.by_part.get(p, 0)) for p in parts]
    return tuple(sorted(((label, size) for label, size in changes if size), key=lambda change: -abs(change[1])))


def floor_lines(ladder: Ladder) -> tuple[str, ...]:
    """Where it ends and why, and what goes below."""
    least, usable = ladder.minimum, ladder.usable_bytes
    weights = least.weights_bytes
    lines = [
        f"The real minimum of this method is {_exact(least.used_bytes)}: {whole_words(least)}.",
        f"Weights on the GPU are a floor: {least.weights_formula} = {_exact(weights)}; what keeps "
        "them there holds no less.",
    ]
    if weights > usable:
        lines.append(
            f"{_exact(usable)} is impossible with these weights: {weights / 1e9:.2f}e9 bytes of weights > "
            f"{usable / 1e9:.2f}e9."
        )
    elif least.verdict == "over":
        lines.append(f"{_exact(usable)} is {format_bytes(least.used_bytes - usable)} below that minimum.")
    for rung in ladder.ways_below:
        fit = "" if least.verdict != "over" else ", which is enough" if rung.verdict != "over" else ", still too much"
        label = "" if rung.runnable else f" ({NOT_RUNNABLE})"
        lines.append(
            f"Below it goes {whole_words(rung)}{label}: {_exact(rung.used_bytes)}{fit}, "
            f"{format_bytes(rung.host_bytes)} of host memory."
        )
    return tuple(lines)


def _exact(num_bytes: int) -> str:
    """Both units: people quote GB for what drivers print in GiB."""
    return f"{format_bytes(num_bytes)} ({num_bytes / 1e9:.2f} GB)"


def ladder_text(plan: Plan, ladder: Ladder, *, measured: Mapping[str, int] | None = None, width: int = 96) -> str:
    """The table and, below it, the floor. Ends without a newline."""
    rows = ladder_rows(ladder, measured)
    unit = column_unit(max(row.used_bytes for row in rows))
    with_measured = any(row.measured_used_bytes is not None for row in rows)
    head = f"{plan.config.name}: {plan.model.name}, length {plan.config.max_length:,}, on {cluster_words(plan)}"
    columns = f"  {'#':>2} {'used ' + unit.name:>9} {'change':>8} "
    columns += f"{'measured':>9} " if with_measured else ""
    lines = [head, "", f"{columns}{'verdict':<10} {'tokens/s':>8}  {'peak at':<26} step"]
    for number, row in enumerate(rows, start=1):
        if not row.runnable and (number == 1 or rows[number - 2].runnable):
            lines.append(f"  -- {NOT_RUNNABLE} --")
        change = f"{row.change_bytes / unit.scale:+,.{unit.digits}f}" if number > 1 else ""
        line = f"  {number:>2} {unit.format(row.used_bytes):>9} {change:>8} "
        if with_measured:
            line += f"{'' if row.measured_used_bytes is None else unit.format(row.measured_used_bytes):>9} "
        lines.append(f"{line}{row.verdict:<10} {format_count(row.tokens_per_second):>8}  {row.peak:<26} {row.step}")
        lines += textwrap.wrap(row.changed, width, initial_indent=" " * 24, subsequent_indent=" " * 24)
    lines.append("")
    for sentence in floor_lines(ladder):
        lines += textwrap.wrap(sentence, width, subsequent_indent="  ")
    return "\n".join(lines)


def ladder_dict(plan: Plan, ladder: Ladder, measured: Mapping[str, int] | None = None) -> dict[str, Any]:
    """`longfit plan --ladder --json`; bytes as integers."""
    rows = ladder_rows(ladder, measured)
    return {
        "schema": 1,
        "preset": plan.config.name,
        "model": plan.model.name,
        "max_length": plan.config.max_length,
        "hardware": f"{plan.cluster.num_gpus} x {plan.cluster.gpu.name}",
        "usable_bytes": ladder.usable_bytes,
        "rungs": [
            {**_rung_dict(rung), "step": row.step, "change_bytes": row.change_bytes, "changes": dict(rung.changes),
             "changed_bytes_by_part": dict(row.by_part), "measured_used_bytes": row.measured_used_bytes}
            for rung, row in zip(ladder.rungs, rows, strict=True)
        ],
        "minimum": {
            "used_bytes": ladder.minimum.used_bytes, "weights_bytes": ladder.minimum.weights_bytes,
            "weights_formula": ladder.minimum.weights_formula,
        },
        "ways_below": [_rung_dict(rung) for rung in ladder.ways_below],
        "words": list(floor_lines(ladder)),
    }  # fmt: skip


def _rung_dict(rung: Rung) -> dict[str, Any]:
    return {
        "optimizations": {setting.name: setting.as_dict() for setting in rung.config.optimizations},
        "runnable": rung.runnable,
        "verdict": rung.verdict,
        "peak_instant": rung.peak_instant,
        "used_bytes": rung.used_bytes,
        "bytes_by_part": dict(rung.by_part),
        "host_bytes": rung.host_bytes,
        "tokens_per_second": rung.tokens_per_second,
    }
