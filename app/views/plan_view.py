"""A Plan as words and rows: verdict, parts, terms, instants, batch, issues, alternatives, command. Pure functions,
called by the CLI (through text.py), the TUI and the web page, so that all of them say the same."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from app.views.footprint import Footprint, footprint_of
from app.views.format import (
    format_bytes,
    format_count,
    format_duration,
    format_share,
    format_signed_bytes,
    format_tokens_per_second,
)
from app.views.parts import (
    INSTANT_LABELS,
    PART_STYLES,
    VERDICT_WORDS,
    changes_words,
    combination_words,
    setting_words,
    value_words,
)
from planner.calibration import calibration_words
from planner.cost import dollars_of_run, dollars_per_hour, dollars_per_million_tokens
from planner.types import (
    INSTANTS,
    Alternative,
    Basis,
    GpuPlan,
    Instant,
    Issue,
    OptimizationSetting,
    Plan,
    Term,
    Verdict,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictView:
    """``word`` carries the meaning; ``color_role`` is success, warning or error for faces that have colours."""

    word: str
    sentence: str
    color_role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRow:
    label: str
    fill: str
    letter: str
    color: str
    bytes: int
    share: float  # of what is used
    basis: Basis
    note: str  # the largest term, by name


@dataclass(frozen=True, slots=True, kw_only=True)
class TermRow:
    key: str
    label: str
    part: str
    bytes: int
    basis: Basis
    formula: str
    source: str
    instants: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InstantRow:
    instant: Instant
    label: str
    bytes: int
    is_peak: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AlternativeRow:
    rank: int
    combination: str
    difference: str  # "+ ring 2, - Ulysses 2"
    used_bytes: int
    verdict: str
    tokens_per_second: float
    speed: str  # against the configuration at hand: "1.24x"
    why: str
    changes: tuple[tuple[str, Any], ...]
    changes_words: str
    cost: str  # "$0.143 per million tokens"; empty where the GPU has no price


_COLOR_ROLES: dict[Verdict, str] = {"fits": "success", "tight": "warning", "over": "error", "unverified": "warning"}


def device_word(plan: Plan) -> str:
    """What a worker runs on: ``GPU`` or ``process``."""
    return "process" if plan.cluster.gpu.kind == "cpu" else "GPU"


def cluster_words(plan: Plan) -> str:
    """``2 x A10 (assumed)``."""
    kind = "CPU process" if plan.cluster.gpu.kind == "cpu" else plan.cluster.gpu.name
    count = plan.config.parallel.world
    plural = "es" if plan.cluster.gpu.kind == "cpu" and count > 1 else ""
    return f"{count} x {kind}{plural} ({plan.cluster.source})"


def short_verdict(plan: Plan) -> str:
    """For lists: ``FITS 86 %``; an error of the plan is REFUSED, whatever its memory would be."""
    if any(issue.severity == "error" for issue in plan.issues):
        return "REFUSED"
    gpu = plan.worst_gpu
    return f"{VERDICT_WORDS[plan.verdict]} {format_share(gpu.used_bytes / gpu.usable_bytes)}"


def verdict_view(plan: Plan) -> VerdictView:
    """The verdict of the worst GPU, with host memory and disk named when they are what does not fit."""
    gpu = plan.worst_gpu
    low, high = (format_bytes(value) for value in gpu.band_bytes)
    sentence = f"{format_bytes(gpu.used_bytes)} ({low} to {high}) of {format_bytes(gpu.usable_bytes)} usable"
    if gpu.used_bytes > gpu.usable_bytes:
        sentence += f": {format_bytes(gpu.used_bytes - gpu.usable_bytes)} too much"
    else:
        sentence += f", {format_share(gpu.used_bytes / gpu.usable_bytes)}"
    if plan.host_verdict == "over":
        sentence += f"; host memory does not suffice: {format_bytes(plan.host_bytes)} needed"
    if plan.disk_verdict == "over":
        sentence += f"; the disk does not suffice: {format_bytes(plan.disk_bytes)} needed"
    return VerdictView(word=VERDICT_WORDS[plan.verdict], sentence=sentence, color_role=_COLOR_ROLES[plan.verdict])


def trust_words(plan: Plan) -> str:
    """``calibrated by 3 rows of 2026-11-29 on this GPU``; empty where nothing was rehearsed here."""
    return "" if plan.calibration is None else calibration_words(plan.calibration, plan.cluster.gpu)


def footprints(plan: Plan) -> tuple[Footprint, ...]:
    return tuple(footprint_of(gpu) for gpu in plan.gpus)


def peak_words(plan: Plan) -> str:
    """When the peak occurs: ``peak at: backward of the loss``."""
    return f"peak at: {INSTANT_LABELS[plan.peak_instant]}"


def part_rows(gpu: GpuPlan) -> tuple[PartRow, ...]:
    """Parts at the peak in the order of the bar; they add up to ``gpu.used_bytes``."""
    return tuple(
        PartRow(
            label=segment.style.label,
            fill=segment.style.fill,
            letter=segment.style.letter,
            color=segment.style.color,
            bytes=segment.bytes,
            share=segment.bytes / gpu.used_bytes if gpu.used_bytes else 0.0,
            basis=segment.basis,
            note=term_label(segment.terms[0].key),
        )
        for segment in footprint_of(gpu).segments
    )


def term_rows(gpu: GpuPlan, instant: Instant | None = None) -> tuple[TermRow, ...]:
    """Every term that is alive at ``instant`` (the peak unless given), largest first; context terms last."""
    at = instant or gpu.allocated.peak_instant
    alive = sorted((t for t in gpu.allocated.terms if at in t.instants), key=lambda t: -t.bytes)
    return tuple(_term_row(term) for term in (*alive, *gpu.context_terms))


def _term_row(term: Term) -> TermRow:
    instants = [INSTANT_LABELS[instant] for instant in INSTANTS if instant in term.instants]
    return TermRow(
        key=term.key,
        label=term_label(term.key),
        part=PART_STYLES[term.part].label,
        bytes=term.bytes,
        basis=term.basis,
        formula=term.formula,
        source=term.source,
        instants="always" if len(instants) in (0, len(INSTANTS)) else ", ".join(instants),
    )


def term_label(key: str) -> str:
    """``logits.loss_gradient`` -> ``logits: loss gradient``."""
    head, _, rest = key.partition(".")
    return f"{head}: {rest}".replace("_", " ").replace(".", ", ") if rest else head.replace("_", " ")


def instant_rows(gpu: GpuPlan) -> tuple[InstantRow, ...]:
    """Allocated bytes at each instant, in the order of a step; instants with nothing are left out."""
    peak = gpu.allocated.peak_instant
    return tuple(
        InstantRow(instant=instant, label=INSTANT_LABELS[instant], bytes=size, is_peak=instant == peak)
        for instant, size in gpu.allocated.by_instant().items()
        if size
    )


def readings(gpu: GpuPlan) -> tuple[tuple[str, int], ...]:
    """The three readings that are never mixed."""
    return (
        ("allocated", gpu.allocated.peak_bytes),
        ("reserved", gpu.reserved_bytes),
        ("used", gpu.used_bytes),
    )


def batch_words(plan: Plan) -> str:
    """The batch arithmetic on one line, as printed in every plan."""
    config, degrees = plan.config, plan.config.parallel
    world = f"world {degrees.world} = data {degrees.data} x ring {degrees.ring} x ulysses {degrees.ulysses}"
    rows = f"{config.per_device_train_batch_size} row{'s' if config.per_device_train_batch_size > 1 else ''}"
    step = (
        f"{rows} of {format_count(config.max_length)} tokens x accumulation {config.gradient_accumulation_steps}"
        f" x data {degrees.data}"
    )
    tokens = plan.batch.get("tokens_per_step")
    return f"{world}; {step}" + (f" = {format_count(tokens)} tokens a step" if tokens is not None else "")


def speed_words(plan: Plan) -> str:
    """Predicted speed: ``9,412 tokens/s, 14 s a step (modelled)``."""
    if plan.tokens_per_second <= 0:
        return "speed unknown"
    rate = format_tokens_per_second(plan.tokens_per_second)
    mfu = "" if plan.mfu_causal is None else f", mfu_causal {format_share(plan.mfu_causal)}"
    return f"{rate}, {format_duration(plan.seconds_per_step)} a step{mfu} (modelled)"


def cost_words(plan: Plan) -> str:
    """``$0.76 an hour, $0.11 per million tokens, $3.40 the run``; empty where the GPU has no price."""
    hourly, tokens = dollars_per_hour(plan.cluster), dollars_per_million_tokens(plan.cluster, plan.tokens_per_second)
    if hourly is None or tokens is None:
        return ""
    run = dollars_of_run(plan)
    words = f"${hourly:,.2f} an hour, ${tokens:,.3f} per million tokens"
    return words if run is None else f"{words}, ${run:,.2f} the run of {plan.config.max_steps:,} steps"


def combination_of(plan: Plan) -> str:
    return combination_words(plan.config.optimizations)


def issue_lines(issues: Iterable[Issue]) -> tuple[tuple[str, str], ...]:
    """(severity, what + why + fix) of each, errors first."""
    order = {"error": 0, "warning": 1, "info": 2}
    return tuple(
        (issue.severity, issue_words(issue)) for issue in sorted(issues, key=lambda issue: order[issue.severity])
    )


def issue_words(issue: Issue) -> str:
    return " ".join(part for part in (issue.what, issue.why, issue.fix) if part)


def alternative_rows(plan: Plan, alternatives: Iterable[Alternative] | None = None) -> tuple[AlternativeRow, ...]:
    """The recommendation as a table; ``alternatives`` replaces the plan's own when they were searched apart."""
    return tuple(
        AlternativeRow(
            rank=rank,
            combination=combination_words(alternative.optimizations),
            difference=difference_of(plan.config.optimizations, alternative),
            used_bytes=alternative.used_bytes,
            verdict=VERDICT_WORDS[alternative.verdict],
            tokens_per_second=alternative.tokens_per_second,
            speed=(
                f"{alternative.tokens_per_second / plan.tokens_per_second:.2f}x" if plan.tokens_per_second > 0 else "-"
            ),
            why=alternative.why,
            changes=alternative.changes,
            changes_words=changes_words(alternative.changes),
            cost=(
                f"${alternative.dollars_per_million_tokens:.3f} per million tokens"
                if alternative.dollars_per_million_tokens is not None
                else ""
            ),
        )
        for rank, alternative in enumerate(plan.alternatives if alternatives is None else alternatives, start=1)
    )


def difference_of(before: Iterable[OptimizationSetting], found: Alternative) -> str:
    """What is added, what goes and what gets another value: ``+ ring 2, - Ulysses 2, checkpointing (kept_layers: 5)``.

    Nothing else tells two alternatives apart that are the same optimizations.
    """
    old, new = ({setting.name: setting for setting in settings} for settings in (before, found.optimizations))
    words, other_values = [], []
    for name, setting in new.items():
        earlier = old.get(name)
        if earlier is None or setting_words(earlier) != setting_words(setting):
            words.append(f"+ {setting_words(setting)}")
        elif earlier != setting:
            known = earlier.as_dict()
            knobs = [f"{knob}: {value_words(value)}" for knob, value in setting.knobs if known.get(knob) != value]
            other_values.append(f"{setting_words(setting)} ({', '.join(knobs)})")
    said = {setting_words(setting) for setting in new.values()}
    words += [f"- {setting_words(setting)}" for setting in old.values() if setting_words(setting) not in said]
    others = [f"{key}: {value_words(value)}" for key, value in found.changes if key in ("optim", "update", "engine")]
    return ", ".join([*words, *other_values, *others])


def difference_words(before: Plan, after: Plan) -> str:
    """A what-if in one line: used memory and speed against the plan that was pinned."""
    change = after.worst_gpu.used_bytes - before.worst_gpu.used_bytes
    words = f"{format_signed_bytes(change)} against the pinned plan"
    if before.tokens_per_second > 0:
        words += f", speed {after.tokens_per_second / before.tokens_per_second:.2f}x"
    return words


def command_text(preset: str, overrides: Mapping[str, Any], *, verb: str = "train", hardware: str = "") -> str:
    """The command that does exactly this, quoted for a POSIX shell."""
    argv = ["longfit", verb, preset]
    if hardware:
        argv += ["--gpu", hardware]
    for key, value in overrides.items():
        argv += ["--set", f"{key}={value_words(value)}"]
    return shlex.join(argv)
