"""The footprint bar: what one GPU holds at its peak, as segments and as cells of text. Drawn by every face."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from app.views.parts import OVER_COLOR, PART_STYLES, PartStyle, weakest_basis
from planner.types import Basis, GpuPlan, Part, Term

CellKind = Literal["part", "over", "band", "free", "limit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One part at the peak. ``bytes`` of all segments add up to ``used_bytes``."""

    style: PartStyle
    bytes: int
    basis: Basis
    terms: tuple[Term, ...]  # largest first


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    gpu_index: int
    segments: tuple[Segment, ...]  # in the order of PART_STYLES, empty parts left out
    used_bytes: int
    usable_bytes: int
    band_bytes: tuple[int, int]

    @property
    def share(self) -> float:
        """Used over usable; above 1 means that it does not fit."""
        return self.used_bytes / self.usable_bytes if self.usable_bytes else float("inf")

    @property
    def over_bytes(self) -> int:
        return max(0, self.used_bytes - self.usable_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One character of a bar. ``color`` is a hex colour, empty where the text colour will do."""

    text: str
    kind: CellKind
    color: str = ""


def footprint_of(gpu: GpuPlan) -> Footprint:
    """Segments of a GPU at its peak instant; the context and the allocator's rounding are part of ``runtime``."""
    peak = gpu.allocated.peak_instant
    terms = [term for term in gpu.allocated.terms if peak in term.instants and term.bytes > 0]
    terms += [term for term in gpu.context_terms if term.bytes > 0]
    by_part: dict[Part, list[Term]] = {}
    for term in terms:
        by_part.setdefault(term.part, []).append(term)
    segments = tuple(
        Segment(
            style=style,
            bytes=sum(term.bytes for term in by_part[part]),
            basis=weakest_basis(term.basis for term in by_part[part]),
            terms=tuple(sorted(by_part[part], key=lambda term: -term.bytes)),
        )
        for part, style in PART_STYLES.items()
        if part in by_part
    )
    return Footprint(
        gpu_index=gpu.index,
        segments=segments,
        used_bytes=gpu.used_bytes,
        usable_bytes=gpu.usable_bytes,
        band_bytes=gpu.band_bytes,
    )


def bar_scale(footprints: tuple[Footprint, ...]) -> int:
    """Bytes of a full-width bar, one scale for bars that are compared: the largest limit, band or use, plus 2 %."""
    return round(1.02 * max(max(f.used_bytes, f.usable_bytes, f.band_bytes[1]) for f in footprints))


def bar_cells(footprint: Footprint, *, width: int, scale_bytes: int, ascii_only: bool = False) -> list[Cell]:
    """``width`` cells, 0 to ``scale_bytes``. The limit is a ``|``; what lies right of it is marked ``X``.

    A line goes on from what is used to the upper end of the band.

    A part that exists is at least one cell wide as long as there is room, so that nothing is hidden by rounding.
    """
    if width <= 0:
        return []
    used_cells = min(width, max(1, round(width * footprint.used_bytes / scale_bytes)))
    limit_cell = min(width - 1, round(width * footprint.usable_bytes / scale_bytes))
    cells = [Cell(text=" ", kind="free")] * width
    position = 0
    for style, count in _shares(footprint, used_cells):
        for index in range(position, position + count):
            cells[index] = Cell(text=style.letter if ascii_only else style.fill, kind="part", color=style.color)
        position += count
    band_end = min(width, round(width * footprint.band_bytes[1] / scale_bytes))
    for index in range(used_cells, band_end):
        cells[index] = Cell(text="-" if ascii_only else "─", kind="band")
    if footprint.over_bytes:
        # the cells beyond the limit lose their pattern on purpose: "this much does not fit"
        for index in range(min(limit_cell + 1, used_cells - 1), used_cells):
            cells[index] = Cell(text="X", kind="over", color=OVER_COLOR)
    cells[limit_cell] = Cell(text="|", kind="limit")
    return cells


def _shares(footprint: Footprint, num_cells: int) -> list[tuple[PartStyle, int]]:
    """Cells of each part by largest remainder, every part getting one first when there are enough cells."""
    segments = footprint.segments
    total = sum(segment.bytes for segment in segments)
    if not total:
        return []
    floor = 1 if num_cells >= len(segments) else 0
    spare = num_cells - floor * len(segments)
    exact = [spare * segment.bytes / total for segment in segments]
    counts = [floor + int(value) for value in exact]
    remainders = sorted(range(len(segments)), key=lambda i: int(exact[i]) - exact[i])
    for index in remainders[: num_cells - sum(counts)]:
        counts[index] += 1
    return [(segment.style, count) for segment, count in zip(segments, counts, strict=True)]
