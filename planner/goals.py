"""What a recommendation can rank by. Apart from the search, so that a flag can name them without loading it."""

from __future__ import annotations

from typing import Literal

Goal = Literal["fastest", "longest", "smallest", "cheapest"]
GOALS: tuple[Goal, ...] = ("fastest", "longest", "smallest", "cheapest")
