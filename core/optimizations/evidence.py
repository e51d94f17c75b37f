"""What an optimization brings as proof that it is active."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    optimization: str
    claim: str  # "30 of 30 decoder layers recompute in backward"
    counts: tuple[tuple[str, int], ...] = ()


def counted(number: int, noun: str) -> str:
    """``1 row``, ``1,024 rows``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class NotActive(RuntimeError):
    """A requested optimization could not be proven active: the run stops with this reason."""
