"""Every number that a plan shows, by name, and how it comes about: what a person may ask "why?" of. Used by the TUI.

Memory opens by app/views/explain_view.py; verdict, use, speed and batch are worked out here.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.views.explain_view import explain_text
from app.views.format import format_bytes, format_count, format_duration, format_share, format_tokens_per_second
from app.views.parts import VERDICT_MEANING, VERDICT_WORDS
from app.views.plan_view import batch_words, instant_rows, part_rows, peak_words, speed_words, term_label
from planner.mfu import CONVENTION
from planner.plan import FITS_SHARE
from planner.types import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberRow:
    """``name`` is what ``number_text`` takes; ``label`` is the number with its name, as a list shows it."""

    name: str
    label: str


def number_rows(plan: Plan) -> tuple[NumberRow, ...]:
    """Verdict and use, parts, speed and batch, host and disk, instants, and every term of the worst GPU."""
    gpu = plan.worst_gpu
    pairs = [
        ("verdict", f"verdict: {VERDICT_WORDS[plan.verdict]}"),
        ("used", f"used: {format_bytes(gpu.used_bytes)}"),
        *((row.label, f"{row.label} at the peak: {format_bytes(row.bytes)}") for row in part_rows(gpu)),
        ("speed", f"speed: {speed_words(plan)}"),
        ("batch", f"batch: {batch_words(plan)}"),
        ("host", f"host memory: {format_bytes(plan.host_bytes)}"),
        ("disk", f"disk: {format_bytes(plan.disk_bytes)}"),
        *((row.instant, f"allocated, {row.label}: {format_bytes(row.bytes)}") for row in instant_rows(gpu)),
    ]
    terms = sorted((*gpu.allocated.terms, *gpu.context_terms), key=lambda term: -term.bytes)
    pairs += [(term.key, f"{term_label(term.key)}: {format_bytes(term.bytes)}") for term in terms]
    return tuple(NumberRow(name=name, label=label) for name, label in pairs)


def number_text(plan: Plan, name: str, *, width: int = 90) -> str:
    """Where the number comes from, down to formulas. Raises: ConfigError for a name that is none."""
    match name:
        case "verdict":
            return _verdict_text(plan)
        case "used":
            return f"{_used_text(plan)}\n\n{explain_text(plan, 'all', width=width)}"
        case "speed":
            return _speed_text(plan)
        case "batch":
            return _batch_text(plan)
    return explain_text(plan, name, width=width)


def _verdict_text(plan: Plan) -> str:
    """The rule of planner/plan.py with the numbers put in, for each thing that it judges."""
    gpu = plan.worst_gpu
    usable, used, upper = gpu.usable_bytes, gpu.used_bytes, gpu.band_bytes[1]
    lines = [
        f"{VERDICT_WORDS[plan.verdict]}: the worst of GPU, host memory and disk.",
        f"GPU {gpu.index}: used {format_bytes(used)} ({used:,} bytes), at most {format_bytes(upper)} by the band, of "
        f"{format_bytes(usable)} ({usable:,} bytes) usable.",
        f"host memory: {format_bytes(plan.host_bytes)} of {format_bytes(plan.cluster.host_bytes_per_node)}: "
        f"{plan.host_verdict}.",
        f"disk: {format_bytes(plan.disk_bytes)}: {plan.disk_verdict}"
        + ("." if plan.cluster.disk_free_bytes is None else f" ({format_bytes(plan.cluster.disk_free_bytes)} free)."),
        "",
        f"{format_share(FITS_SHARE)} of what is usable is {format_bytes(round(FITS_SHARE * usable))}.",
        *(f"{VERDICT_WORDS[verdict]}: {meaning}." for verdict, meaning in VERDICT_MEANING.items()),
    ]
    return "\n".join(lines)


def _used_text(plan: Plan) -> str:
    """allocated -> reserved -> used, each step named: the three readings are never mixed."""
    gpu = plan.worst_gpu
    low, high = gpu.band_bytes
    lines = [
        f"used {format_bytes(gpu.used_bytes)}, {peak_words(plan)}",
        f"  = allocated {format_bytes(gpu.allocated.peak_bytes)} (tensors, as torch counts them)",
        *(f"  + {term_label(term.key)} {format_bytes(term.bytes)} ({term.basis})" for term in gpu.context_terms),
        f"  = {gpu.used_bytes:,} bytes, as the driver counts them; reserved by the allocator: "
        f"{format_bytes(gpu.reserved_bytes)}",
        f"band {format_bytes(low)} to {format_bytes(high)}: what formulas and assumed values may be off by",
    ]
    return "\n".join(lines)


def _speed_text(plan: Plan) -> str:
    if plan.tokens_per_second <= 0:
        return speed_words(plan)
    gpu, tokens = plan.cluster.gpu, plan.batch["tokens_per_step"]
    lines = [
        f"{format_tokens_per_second(plan.tokens_per_second)} = {format_count(tokens)} tokens a step / "
        f"{plan.seconds_per_step:,.2f} s ({format_duration(plan.seconds_per_step)})",
        "",
        "A step is accumulation times micro-batches, the reduction of gradients over ranks, and the update. A "
        "micro-batch takes what its work needs in turn, unless a transfer beside it takes longer (planner/time.py). "
        f"Rates of {gpu.name}:",
        f"  products    {gpu.gemm_flops / 1e12:,.1f} TFLOP/s",
        f"  attention   {gpu.attention_flops / 1e12:,.1f} TFLOP/s",
        f"  memory      {gpu.memory_bytes_per_s / 1e9:,.0f} GB/s",
        f"  PCIe        {gpu.pcie_bytes_per_s / 1e9:,.0f} GB/s",
        f"  link        {gpu.link_bytes_per_s / 1e9:,.0f} GB/s",
        "",
        "They are of this card's data sheet or measured on it; a rehearsal says what this machine reaches.",
    ]
    if plan.mfu_causal is not None and gpu.peak_flops is not None:
        peak = f"{gpu.peak_flops / 1e12:,.0f} TFLOP/s"
        lines += ["", f"mfu_causal {format_share(plan.mfu_causal)}: {CONVENTION}, {peak} (planner/mfu.py)"]
    return "\n".join(lines)


def _batch_text(plan: Plan) -> str:
    numbers = "\n".join(f"  {name.replace('_', ' '):<18}{format_count(value)}" for name, value in plan.batch.items())
    return f"{batch_words(plan)}\n\n{numbers}"
