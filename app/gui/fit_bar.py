"""The footprint bar of the Plan tab as inline SVG: patterns and words carry the meaning, colour only helps."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from app.views.footprint import Footprint, Segment, bar_scale
from app.views.format import format_bytes
from app.views.parts import OVER_COLOR, PART_STYLES
from planner.types import Part

# User units of the view box; the drawing is scaled to the width of its column.
_WIDTH = 960
_LEFT = 78  # where bars begin, right of their names
_RIGHT = 92  # room for the total
_BAR_HEIGHT = 34
_ROW_HEIGHT = 62
_TOP = 24  # room for the words of the limit line
_LETTER_WIDTH = 7.2  # of the bar's text, to know which labels fit

# What is drawn on top of the part's colour, in a tile of 8 x 8.
_STROKES: dict[Part, str] = {
    "weights": "",
    "adapters": "M2 0V8M6 0V8",
    "gradients": "M-2 10L10 -2M-2 2L2 -2M6 10L10 6",
    "optimizer": "M-2 -2L10 10M6 -2L10 2M-2 6L2 10",
    "checkpoints": "M-2 10L10 -2M-2 -2L10 10",
    "activations": "M2 2h.1M6 6h.1",
    "logits": "M0 2H8M0 6H8",
    "communication": "M0 6L4 2L8 6",
    "runtime": "M4 4h.1",
}


def fit_bar_svg(footprints: Sequence[Footprint], *, device: str, summary: str) -> str:
    """One bar for each footprint on one scale, its limit as a line, its band as a bracket.

    ``device`` is "GPU" or "process"; ``summary`` is what a screen reader says for the whole drawing.
    """
    scale = bar_scale(tuple(footprints))
    height = _TOP + _ROW_HEIGHT * len(footprints)
    rows = "".join(_row(f, device, scale, _TOP + _ROW_HEIGHT * i) for i, f in enumerate(footprints))
    return (
        f'<svg class="fit-bar" role="img" aria-label="{escape(summary)}" viewBox="0 0 {_WIDTH} {height}" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{escape(summary)}</title>{_patterns()}{rows}</svg>'
    )


def swatch_svg(part: Part) -> str:
    """The pattern of a part for tables; it refers to the definitions in the bar's drawing."""
    return (
        '<svg class="swatch" width="18" height="14" aria-hidden="true">'
        f'<rect width="18" height="14" fill="url(#fit-{part})"/></svg>'
    )


def distinct(footprints: Sequence[Footprint]) -> tuple[Footprint, ...]:
    """Ranks that hold the same are drawn once: the first of each kind."""
    kinds = {(footprint.used_bytes, footprint.usable_bytes): footprint for footprint in reversed(footprints)}
    return tuple(sorted(kinds.values(), key=lambda footprint: footprint.gpu_index))


def _row(footprint: Footprint, device: str, scale: int, top: float) -> str:
    unit = (_WIDTH - _LEFT - _RIGHT) / scale
    used_end = _LEFT + footprint.used_bytes * unit
    limit = _LEFT + footprint.usable_bytes * unit
    middle = top + _BAR_HEIGHT / 2
    parts = [
        f'<text x="0" y="{middle + 5:.1f}" class="name">{escape(device)} {footprint.gpu_index}</text>',
        f'<rect x="{_LEFT}" y="{top:.1f}" width="{limit - _LEFT:.1f}" height="{_BAR_HEIGHT}" class="room"/>',
    ]
    start = float(_LEFT)
    for segment in footprint.segments:
        width = segment.bytes * unit
        parts.append(_segment(segment, start, width, top, label_end=min(start + width, limit)))
        start += width
    if footprint.over_bytes:
        parts.append(_over(footprint, limit, used_end, top))
    low, high = (_LEFT + edge * unit for edge in footprint.band_bytes)
    band_top = top + _BAR_HEIGHT + 4
    low_words, high_words = (format_bytes(edge) for edge in footprint.band_bytes)
    parts += [
        f'<path d="M{low:.1f} {band_top:.1f}v8m0 -4H{high:.1f}m0 -4v8" class="band">'
        f"<title>expected: {low_words} to {high_words}</title></path>",
        f'<path d="M{limit:.1f} {top - 6:.1f}V{top + _BAR_HEIGHT + 6:.1f}" class="limit"/>',
        _limit_words(footprint, limit, top),
        f'<text x="{_WIDTH}" y="{middle + 5:.1f}" class="total">{format_bytes(footprint.used_bytes)}</text>',
    ]
    return "".join(parts)


def _segment(segment: Segment, start: float, width: float, top: float, *, label_end: float) -> str:
    words = f"{segment.style.label} {format_bytes(segment.bytes)}"
    label = _fitting(label_end - start, words, segment.style.label)
    text = f'<text x="{(start + label_end) / 2:.1f}" y="{top + _BAR_HEIGHT / 2 + 4:.1f}" class="part">{label}</text>'
    return (
        f'<g class="segment" data-part="{segment.style.part}" data-bytes="{segment.bytes}">'
        f"<title>{words}, {segment.basis}: {escape(segment.style.meaning)}</title>"
        f'<rect x="{start:.1f}" y="{top:.1f}" width="{max(width, 0.6):.1f}" height="{_BAR_HEIGHT}" '
        f'fill="url(#fit-{segment.style.part})" stroke="#222" stroke-width="0.6"/>{text if label else ""}</g>'
    )


def _over(footprint: Footprint, limit: float, end: float, top: float) -> str:
    words = f"{format_bytes(footprint.over_bytes)} over"
    label = _fitting(end - limit, words, "over")
    return (
        f'<rect x="{limit:.1f}" y="{top - 4:.1f}" width="{end - limit:.1f}" height="{_BAR_HEIGHT + 8}" class="over">'
        f"<title>{words}</title></rect>"
        f'<text x="{(limit + end) / 2:.1f}" y="{top + _BAR_HEIGHT / 2 + 4:.1f}" class="part">{label}</text>'
    )


def _fitting(width: float, *texts: str) -> str:
    """The first text that fits into ``width``, or none."""
    return next((text for text in texts if len(text) * _LETTER_WIDTH + 10 < width), "")


def _limit_words(footprint: Footprint, limit: float, top: float) -> str:
    words = f"limit {format_bytes(footprint.usable_bytes)}"
    anchor, x = ("end", limit + 2) if limit + len(words) * _LETTER_WIDTH / 2 > _WIDTH - _RIGHT else ("middle", limit)
    return f'<text x="{x:.1f}" y="{top - 10:.1f}" text-anchor="{anchor}" class="limit-words">{words}</text>'


def _patterns() -> str:
    tiles = []
    for part, style in PART_STYLES.items():
        stroke = _STROKES[part]
        path = (
            f'<path d="{stroke}" fill="none" stroke="#222" stroke-width="1.1" stroke-linecap="round"/>'
            if stroke
            else ""
        )
        tiles.append(
            f'<pattern id="fit-{part}" width="8" height="8" patternUnits="userSpaceOnUse">'
            f'<rect width="8" height="8" fill="{style.color}"/>{path}</pattern>'
        )
    over = (
        '<pattern id="fit-over" width="14" height="14" patternUnits="userSpaceOnUse">'
        f'<path d="M-2 16L16 -2M-2 -2L16 16" stroke="{OVER_COLOR}" stroke-width="2.4"/></pattern>'
    )
    return f"<defs>{''.join(tiles)}{over}</defs>"
