"""The footprint bar: its segments are the plan's bytes, and everything drawn is also said in words."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from app.gui.fit_bar import distinct, fit_bar_svg, swatch_svg
from app.views.footprint import footprint_of
from app.views.plan_view import footprints
from tests.app import plans

SVG = "{http://www.w3.org/2000/svg}"


def draw(tokens: int = 8192, world: int = 1) -> ElementTree.Element:
    prints = distinct(footprints(plans.plan(tokens=tokens, world=world)))
    return ElementTree.fromstring(fit_bar_svg(prints, device="GPU", summary='needs <"a lot">'))


def test_segments_carry_the_bytes_of_the_plan() -> None:
    segments = draw().findall(f".//{SVG}g[@class='segment']")
    drawn = {segment.get("data-part"): int(segment.get("data-bytes", "")) for segment in segments}
    footprint = footprint_of(plans.plan().worst_gpu)
    assert drawn == {segment.style.part: segment.bytes for segment in footprint.segments}
    assert sum(drawn.values()) == footprint.used_bytes


def test_widths_are_proportional_to_bytes() -> None:
    ratios = []
    for segment in draw().findall(f".//{SVG}g[@class='segment']"):
        rect = segment.find(f"{SVG}rect")
        assert rect is not None
        ratios.append(float(rect.get("width", "")) * plans.GIB / int(segment.get("data-bytes", "")))
    assert max(ratios) < 1.01 * min(ratios)


def test_every_segment_has_a_title_and_its_own_pattern() -> None:
    root = draw()
    for segment in root.findall(f".//{SVG}g[@class='segment']"):
        part = segment.get("data-part")
        title = segment.find(f"{SVG}title")
        assert title is not None
        assert re.search(r"GiB|MiB", title.text or "")
        assert segment.find(f"{SVG}rect").get("fill") == f"url(#fit-{part})"  # type: ignore[union-attr]
        assert root.find(f".//{SVG}pattern[@id='fit-{part}']") is not None
    strokes = [path.get("d") for pattern in root.iter(f"{SVG}pattern") for path in pattern.iter(f"{SVG}path")]
    assert len(set(strokes)) == len(strokes)


def test_the_drawing_says_its_summary_escaped() -> None:
    root = draw()
    assert root.get("aria-label") == 'needs <"a lot">'
    assert root.find(f"{SVG}title").text == 'needs <"a lot">'  # type: ignore[union-attr]


def test_what_does_not_fit_is_marked_and_named() -> None:
    over = [rect for rect in draw(tokens=16384).iter(f"{SVG}rect") if rect.get("class") == "over"]
    assert len(over) == 1
    assert "4.50 GiB over" in "".join(over[0].itertext())
    assert not [rect for rect in draw().iter(f"{SVG}rect") if rect.get("class") == "over"]


def test_the_limit_is_named_in_words() -> None:
    assert "limit 22.0 GiB" in "".join(draw().itertext())


def test_equal_ranks_are_drawn_once() -> None:
    assert len(distinct(footprints(plans.plan(world=4)))) == 1
    assert "GPU 0" in "".join(draw(world=4).itertext())


def test_swatches_refer_to_the_patterns_of_the_bar() -> None:
    assert 'fill="url(#fit-weights)"' in swatch_svg("weights")
