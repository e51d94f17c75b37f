"""How many rows each set gives to an epoch, and which ones. Called by Intake, before any row is tokenised.

    train           a.jsonl (1,000 rows), b.jsonl#200% (300 rows, each twice)
    weights         a.jsonl: 3, b.jsonl#200%: 1
    one epoch       1,000 rows of a, 333 of b         three in four rows are a's

Without weights every set gives all its rows. With weights, a weight is a set's share of the rows: the epoch is the
longest in which no set has to give more rows than it has, and what the others have beyond their share is left out. To
repeat the rows of a set, say so in its name. The choice depends on the seed alone; the report counts it.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from core.data.order import shuffled
from core.data.sources import Source
from planner.errors import ConfigError

Counting = Callable[[str, float | None], None]  # (name of the file, share of the set's bytes read)
_TELL_EVERY = 4096  # records


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """What one set gives. Both None: every record once, and nobody had to count them."""

    available: int | None = None  # records there are, good or bad
    copies: np.ndarray | None = None  # (available,) int64: how often each is taken, in file order
    left_out: int = 0  # rows the set would have given without weights


def draw_rows(
    sources: Sequence[Source], weights: Mapping[str, float], seed: int, *, counting: Counting | None = None
) -> list[Draw]:
    """One Draw a source. Sets that are sampled or weighed are read once, to count their records; ``counting`` hears
    of it.

    Raises:
        ConfigError: a weight would leave a set without any row, because another has too few.
    """
    counts = [count_records(source, counting) if weights or source.is_sampled else None for source in sources]
    offered = [0 if count is None else source.num_wanted(count) for source, count in zip(sources, counts)]
    taken = _weighed(sources, offered, weights) if weights else offered
    return [
        Draw()
        if count is None
        else Draw(available=count, copies=_copies(count, number, seed), left_out=offer - number)
        for count, offer, number in zip(counts, offered, taken)
    ]  # fmt: skip


def count_records(source: Source, counting: Counting | None = None) -> int:
    count = read_bytes = 0

    def watch(so_far: int) -> None:
        nonlocal read_bytes
        read_bytes = so_far

    for part, record in source.records(watch=watch):
        if record.kind == "blank":
            continue
        count += 1
        if counting is not None and count % _TELL_EVERY == 0:
            counting(source.parts[part].name, read_bytes / source.size_bytes if source.size_bytes else None)
    return count


def check_weights(train: Sequence[str], weights: Mapping[str, float]) -> None:
    """Raises: ConfigError unless each set of ``train`` has one weight above zero."""
    if not weights:
        return
    for name, weight in weights.items():
        if name not in train:
            near = difflib.get_close_matches(name, train, n=1)
            raise ConfigError(
                f"data: weights name {name!r}, which is not in train.",
                why=f"train holds {', '.join(train)}.",
                fix=f"Did you mean {near[0]!r}?" if near else "",
            )
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < float("inf"):
            raise ConfigError(f"data: the weight of {name} is {weight!r}.", why="It must be a number above 0.")
    without = [name for name in train if name not in weights]
    twice = [name for name, count in Counter(train).items() if count > 1]
    if without or twice:
        raise ConfigError(
            f"data: {', '.join(without)} has no weight." if without else f"data: train names {twice[0]} twice.",
            why="Weights are shares of the rows of an epoch, so each set needs one of its own.",
            fix="Name every set under weights, or none.",
        )


def _weighed(sources: Sequence[Source], offered: Sequence[int], weights: Mapping[str, float]) -> list[int]:
    """Rows of each set; the set that is scarce for its weight gives all it has."""
    shares = np.array([weights[source.spec] for source in sources], dtype=np.float64)
    per_weight = np.array(offered) / shares
    scarce = int(per_weight.argmin())
    taken: list[int] = np.minimum(np.rint(shares * per_weight[scarce]).astype(np.int64), offered).tolist()
    for source, number in zip(sources, taken):
        if number == 0:
            few = sources[scarce].spec
            raise ConfigError(
                f"data: these weights leave {source.spec} without a row.",
                why=f"{few} has only {offered[scarce]:,} rows for a weight of {weights[few]:g}.",
                fix=f"Lower the weight of {few}, or repeat its rows: {few}#1000%." if offered[scarce] else "",
            )
    return taken


def _copies(count: int, wanted: int, seed: int) -> np.ndarray:
    """(count,) int64: whole copies first, a random choice for the rest."""
    copies = np.full(count, wanted // count if count else 0, dtype=np.int64)
    if count:
        copies[shuffled(count, seed, "sample")[: wanted % count]] += 1
    return copies
