"""One part of a plan opened: every number with its formula, the same with numbers put in, basis and source.

Called by `longfit plan --explain PART`.
"""

from __future__ import annotations

import difflib
import textwrap
from typing import Any

from app.views.format import column_unit, format_bytes
from app.views.parts import INSTANT_LABELS, PART_STYLES
from app.views.plan_view import term_label
from planner.errors import ConfigError
from planner.formula import has_numbers, symbols_of, with_numbers
from planner.types import INSTANTS, Part, Plan, Term


def explained_terms(plan: Plan, what: str) -> tuple[str, tuple[Term, ...]]:
    """(title, terms) of a part, a term key or the beginning of one, an instant, ``host``, ``disk`` or ``all``.

    Parts and ``all`` are what lies there at the peak, largest first.

    Raises:
        ConfigError: none of these, with the nearest names.
    """
    gpu, asked = plan.worst_gpu, what.strip().lower()
    peak = gpu.allocated.peak_instant
    alive = [*(term for term in gpu.allocated.terms if peak in term.instants), *gpu.context_terms]
    everything = [*gpu.allocated.terms, *gpu.context_terms]
    choices: dict[str, tuple[str, list[Term]]] = {
        "all": (f"At the peak, {INSTANT_LABELS[peak]}", alive),
        "host": ("Host memory of one node", list(plan.host_terms)),
        "disk": ("Disk", list(plan.disk_terms)),
    }
    for part, style in PART_STYLES.items():
        found = _part(plan, part, f"{style.label}: {style.meaning}")
        choices |= dict.fromkeys((part, style.label, style.label.split(",")[0]), found)
    for instant in INSTANTS:
        at = [term for term in gpu.allocated.terms if instant in term.instants]
        choices[instant] = (INSTANT_LABELS[instant], [*at, *gpu.context_terms])
    keyed = [term for term in everything if term.key.lower() == asked or term.key.lower().startswith(f"{asked}.")]
    if asked in choices:
        title, terms = choices[asked]
    elif keyed:
        title, terms = what, keyed
    else:
        raise _unknown(what, [*choices, *(term.key for term in everything)])
    return title, tuple(sorted(terms, key=lambda term: -term.bytes))


def _part(plan: Plan, part: Part, title: str) -> tuple[str, list[Term]]:
    """At the peak; where nothing of it lies there, at the instant that holds most of it."""
    gpu = plan.worst_gpu
    terms = [term for term in gpu.allocated.terms if term.part == part]
    beside = [term for term in gpu.context_terms if term.part == part]
    at = gpu.allocated.peak_instant
    if not beside and not any(at in term.instants for term in terms):
        at = max(INSTANTS, key=lambda instant: sum(t.bytes for t in terms if instant in t.instants))
        title += f". Nothing at the peak; at its fullest, {INSTANT_LABELS[at]}" if terms else ""
    return title, [*(term for term in terms if at in term.instants), *beside]


def _unknown(what: str, names: list[str]) -> ConfigError:
    near = difflib.get_close_matches(what, names, n=3, cutoff=0.5)
    parts = ", ".join([*PART_STYLES, "host", "disk"])
    return ConfigError(
        f"This plan has nothing called {what!r}.",
        why=f"It can be a part ({parts}), a term, an instant ({', '.join(INSTANTS)}) or all.",
        fix=f"Did you mean {' or '.join(near)}?" if near else "--explain all shows every term.",
    )


def explain_text(plan: Plan, what: str, *, width: int = 96) -> str:
    """Ends without a newline."""
    title, terms = explained_terms(plan, what)
    if not terms:
        return f"{title}: nothing"
    symbols, total = symbols_of(plan), sum(term.bytes for term in terms)
    unit = column_unit(max(term.bytes for term in terms))
    lines = [title, ""]
    for term in terms:
        lines.append(f"  {unit.format(term.bytes):>8} {unit.name}  {term_label(term.key)} ({term.key}, {term.basis})")
        texts = [f"= {term.formula}"]
        numbers = with_numbers(term.formula, symbols)
        if numbers != term.formula and not has_numbers(term.formula):
            texts.append(f"= {numbers}")
        texts.append(f"= {term.bytes:,} bytes; alive: {_instants(term)}")
        texts += [f"source: {term.source}"] if term.source else []
        for text in texts:
            lines += textwrap.wrap(text, width, initial_indent=" " * 16, subsequent_indent=" " * 18)
    if len({term.instants for term in terms}) == 1 or what.lower() in ("all", *INSTANTS) or _is_part(what):
        lines += ["", f"  {unit.format(total):>8} {unit.name}  together ({format_bytes(total)})"]
    return "\n".join(lines)


def _is_part(what: str) -> bool:
    """Parts are shown as they are at the peak, and so add up."""
    names = {name for style in PART_STYLES.values() for name in (style.part, style.label, style.label.split(",")[0])}
    return what.strip().lower() in names


def _instants(term: Term) -> str:
    alive = [INSTANT_LABELS[instant] for instant in INSTANTS if instant in term.instants]
    return "always" if len(alive) in (0, len(INSTANTS)) else ", ".join(alive)


def explain_dict(plan: Plan, what: str) -> dict[str, Any]:
    """`longfit plan --explain PART --json`."""
    title, terms = explained_terms(plan, what)
    symbols = symbols_of(plan)
    return {
        "schema": 1,
        "preset": plan.config.name,
        "explains": what,
        "title": title,
        "symbols": symbols,
        "terms": [
            {
                "key": term.key, "part": term.part, "bytes": term.bytes, "formula": term.formula,
                "numbers": with_numbers(term.formula, symbols), "basis": term.basis, "source": term.source,
                "instants": [instant for instant in INSTANTS if instant in term.instants],
            }
            for term in terms
        ],
    }  # fmt: skip
