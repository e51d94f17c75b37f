"""What an optimization brings as proof that it is active."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    optimization: str
    claim: str  # "30 of 30 decoder layers recompute in backward"
    counts: tuple[tuple[str, int], ...] = ()


class NotActive(RuntimeError):
    """A requested optimization could not be proven active: the run stops with this reason."""
