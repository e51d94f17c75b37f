"""The registry: one line an optimization. Importing it imports no torch."""

from __future__ import annotations

REGISTRY: dict[str, type] = {}
