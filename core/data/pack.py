"""Packing: whole samples into rows of one capacity, best fit decreasing. Called by BatchPlan and by the data report.

    lengths 5 3 4 2 6 1 7, capacity 8                 ->   |7 1|6 2|5 3|4 .|    fill 28/32
    lengths 5 3 4 2 6 1 7, capacity 4, longest 8      ->   |7|6|5|4|3 1|2 .|

No sample is cut or lost, the last row is kept however short it is, and samples stay apart in the trainer (restarted
positions, cu_seqlens), so a pack changes speed and nothing else.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from core.data.order import random_keys

# Equal packs, counted: how many, and what each holds as (length, how many samples of that length), longest first.
_Alike = tuple[int, tuple[tuple[int, int], ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Packs(Sequence[tuple[int, ...]]):
    """Sample ids of each pack, every id once. 16 bytes a sample, so that tens of millions fit in memory."""

    samples: np.ndarray  # (num_samples,) int64, pack by pack
    bounds: np.ndarray  # (num_packs + 1,) int64: pack i is samples[bounds[i]:bounds[i + 1]]

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, index: int) -> tuple[int, ...]:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return tuple(self.samples[self.bounds[index] : self.bounds[index + 1]].tolist())

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return (self[index] for index in range(len(self)))


def pack_lengths(lengths: Sequence[int] | np.ndarray, capacity: int, seed: int | str = 0, *, longest: int = 0) -> Packs:
    """Sample ids of each pack. Samples above ``capacity``, up to ``longest``, are packs of their own.

    The seed decides only which of several equally long samples goes where: the number of packs and their fill depend
    on the lengths alone, so every epoch has the same number of rows. The work is done once for each distinct length:
    0.07 s for 1e5 samples, 5 s for 1e7.

    Raises:
        ValueError: a length is < 1 or > max(capacity, longest): the over-length policy ran before packing.
    Source: D. S. Johnson, "Near-optimal bin packing algorithms" (1973): best fit decreasing needs at most 11/9 of the
    optimal number of bins plus 4; on token lengths it is usually the optimum or one above.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    if len(sizes) == 0:
        return Packs(np.empty(0, np.int64), np.zeros(1, np.int64))
    limit = max(capacity, longest)
    if sizes.min() < 1 or sizes.max() > limit:
        worst = int(sizes.max()) if sizes.max() > limit else int(sizes.min())
        raise ValueError(f"cannot pack a sample of {worst} tokens into rows of {limit}")
    distinct, counts = np.unique(sizes, return_counts=True)
    packs = _best_fit(distinct[::-1].tolist(), counts[::-1].tolist(), capacity)
    ties = random_keys(np.arange(len(sizes), dtype=np.uint64), seed, "pack")
    longest_first = np.lexsort((ties, -sizes))
    return _fill(packs, longest_first, dict(zip(distinct[::-1].tolist(), counts[::-1].tolist())))


def fill_ratio(lengths: np.ndarray, num_rows: int, capacity: int) -> float:
    """Share of ``num_rows`` rows of ``capacity`` tokens that is real tokens, 0..1; a longer sample fills its row."""
    room = num_rows * capacity + int(np.maximum(lengths - capacity, 0).sum())
    return int(lengths.sum()) / room if num_rows else 0.0


def _best_fit(sizes: list[int], counts: list[int], capacity: int) -> list[_Alike]:
    """Patterns of the packs, sizes descending.

    Best fit gives a sample to the pack with the least room that holds it. If that room is r, the next sample of the
    same size s goes to the same pack as long as s fits, because its room r - s is now the least: so a pack of room r
    takes r // s samples at once, and equal packs are treated as one.
    """
    room: dict[int, list[_Alike]] = {capacity: []}  # free tokens -> packs with exactly that much room
    rooms: list[int] = []  # its keys with packs, ascending

    def put(alike: _Alike, left: int) -> None:
        if left not in room or not room[left]:
            room.setdefault(left, [])
            insort(rooms, left)
        room[left].append(alike)

    for size, count in zip(sizes, counts):
        if size > capacity:
            put((count, ((size, 1),)), 0)
            continue
        while count:
            at = bisect_left(rooms, size)
            if at < len(rooms):
                free = rooms[at]
                number, pattern = room[free].pop()
                if not room[free]:
                    rooms.pop(at)
            else:
                free, pattern = capacity, ()
                number = -(-count // (capacity // size))
            each = min(free // size, count)
            full = min(number, count // each)
            put((full, (*pattern, (size, each))), free - each * size)
            if number > full:
                put((number - full, pattern), free)
            count -= full * each
    return [alike for left in sorted(room) for alike in room[left]]


def _fill(packs: list[_Alike], longest_first: np.ndarray, counts: dict[int, int]) -> Packs:
    """Give each pattern its samples: those of one length are consecutive in ``longest_first``."""
    taken, start = {}, 0
    for size, count in counts.items():
        taken[size] = start
        start += count
    blocks, widths = [], []
    for number, pattern in packs:
        columns = []
        for size, each in pattern:
            begin = taken[size]
            taken[size] = begin + number * each
            columns.append(longest_first[begin : taken[size]].reshape(number, each))
        block = np.concatenate(columns, axis=1)
        blocks.append(block.reshape(-1))
        widths.append(np.full(number, block.shape[1], dtype=np.int64))
    return Packs(np.concatenate(blocks), np.concatenate([[0], np.cumsum(np.concatenate(widths))]).astype(np.int64))
