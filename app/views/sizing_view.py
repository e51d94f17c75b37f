"""Which hardware, as text and JSON: the answers by the goal, and what was rejected with instant and missing bytes.

Called by `longfit fit`.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from app.views.format import format_bytes, format_count
from app.views.parts import VERDICT_WORDS, combination_words
from planner.sizing import Sized, Sizing
from planner.types import Alternative

if TYPE_CHECKING:
    from app.services.resolve import Resolved


def sizing_text(resolved: Resolved, sizing: Sizing, *, goal: str, width: int = 96) -> str:
    """Ends without a newline."""
    config = resolved.config
    lines = [f"{resolved.model.name}, {config.method}, {config.dtype}, length {format_count(config.max_length)}", ""]
    if sizing.answers:
        names = f"{'#':>2} {'hardware':<22} {'verdict':<10} {'used':>9} {'tokens/s':>9} {'$/Mtoken':>9} {'$/hour':>7}"
        lines.append(f"  {names}  with")
        lines += [_answer(rank, sized) for rank, sized in enumerate(sizing.answers, start=1)]
        lines += ["", f"{goal} first; of each GPU the fewest that fit."]
    else:
        lines.append("None of them suffices.")
        if config.method != "qlora":
            lines.append("QLoRA keeps the base in 4 bits: --method qlora")
    if sizing.without_price:
        names = ", ".join(hardware_words(sized) for sized in sizing.without_price)
        lines += textwrap.wrap(f"Fits too, and is left out because it has no price: {names}.", width)
    if sizing.rejected:
        lines += ["", "Rejected"]
        lines += [f"  {hardware_words(sized):<22} {sized.why}" for sized in sizing.rejected]
    return "\n".join(lines)


def hardware_words(sized: Sized) -> str:
    """``2 x A10``, ``2 nodes of 8 x A10``."""
    cluster = sized.cluster
    nodes = f"{cluster.num_nodes} nodes of " if cluster.num_nodes > 1 else ""
    return f"{nodes}{cluster.num_gpus_per_node} x {cluster.gpu.name}"


def _answer(rank: int, sized: Sized) -> str:
    best, token_price, hour_price = sized.best, sized.dollars_per_million_tokens, sized.dollars_per_hour
    assert best is not None
    return (
        f"  {rank:>2} {hardware_words(sized):<22} {VERDICT_WORDS[best.verdict]:<10} {format_bytes(best.used_bytes):>9}"
        f" {format_count(best.tokens_per_second):>9} {'n/a' if token_price is None else f'{token_price:.3f}':>9}"
        f" {'n/a' if hour_price is None else f'{hour_price:.2f}':>7}  {_combination(best)}"
    )


def _combination(best: Alternative) -> str:
    """Optimizations, and what else has to change."""
    others = [f"{key}: {value}" for key, value in best.changes if key in ("optim", "update")]
    return ", ".join((combination_words(best.optimizations), *others))


def sizing_dict(resolved: Resolved, sizing: Sizing, *, goal: str) -> dict[str, Any]:
    return {
        "schema": 1,
        "model": resolved.model.name,
        "method": resolved.config.method,
        "max_length": resolved.config.max_length,
        "goal": goal,
        "answers": [_sized(sized) for sized in sizing.answers],
        "without_price": [_sized(sized) for sized in sizing.without_price],
        "rejected": [_sized(sized) for sized in sizing.rejected],
    }


def _sized(sized: Sized) -> dict[str, Any]:
    best = sized.best
    return {
        "gpu": sized.cluster.gpu.name,
        "num_gpus": sized.cluster.num_gpus,
        "num_nodes": sized.cluster.num_nodes,
        "usable_bytes": sized.cluster.gpu.usable_bytes,
        "needed_bytes": sized.needed_bytes,
        "missing_bytes": sized.missing_bytes,
        "peak_instant": sized.peak_instant,
        "why": sized.why,
        "verdict": "over" if best is None else best.verdict,
        "tokens_per_second": None if best is None else best.tokens_per_second,
        "optimizations": None if best is None else {s.name: s.as_dict() for s in best.optimizations},
        "changes": None if best is None else dict(best.changes),
        "dollars_per_hour": sized.dollars_per_hour,
        "dollars_per_million_tokens": sized.dollars_per_million_tokens,
    }
