"""Line charts: drawn from the first point on, bounded in size, readable without colour."""

from __future__ import annotations

import re
from importlib import resources
from xml.etree import ElementTree

from app.gui.chart import Level, Series, line_chart_svg

SVG = "{http://www.w3.org/2000/svg}"


def draw(*series: Series, **options: object) -> ElementTree.Element:
    return ElementTree.fromstring(line_chart_svg(series, x_label="step", y_label="loss", **options))  # type: ignore[arg-type]


def test_no_points_give_no_chart() -> None:
    assert line_chart_svg([Series(name="train", points=[])], x_label="step", y_label="loss") == ""


def test_the_first_point_is_a_mark() -> None:
    circles = list(draw(Series(name="train", points=[(1, 2.5)])).iter(f"{SVG}circle"))
    assert len(circles) == 1


def test_a_million_points_stay_small_and_keep_the_last() -> None:
    text = line_chart_svg(
        [Series(name="train", points=[(i, 1.0 + i % 7) for i in range(100_000)])], x_label="step", y_label="loss"
    )
    assert len(text) < 20_000
    assert "last 5" in text  # 1 + 99,999 % 7


def test_the_summary_names_each_series_with_its_last_value() -> None:
    title = draw(
        Series(name="train", points=[(1, 2.0), (2, 1.5)]), Series(name="evaluation", points=[(2, 1.25)], look="marks")
    ).find(f"{SVG}title")
    assert title is not None
    assert title.text == "loss by step: train, last 1.5; evaluation, last 1.25"


def test_levels_are_inside_the_chart_and_named() -> None:
    root = draw(Series(name="rank 0", points=[(1, 3.0), (2, 3.1)]), levels=[Level(name="plan 9.0", y=9.0)])
    line = next(path for path in root.iter(f"{SVG}path") if path.get("class") == "level")
    row = float(line.get("d", "").split(" ")[1].split("H")[0])
    assert 20 < row < 220
    assert "plan 9.0" in "".join(root.itertext())


def test_log_scale_leaves_out_what_has_no_logarithm() -> None:
    root = draw(Series(name="train", points=[(1, 10.0), (2, 0.0), (3, 1.0)]), log_y=True)
    assert "nan" not in ElementTree.tostring(root, encoding="unicode").lower()
    assert not line_chart_svg([Series(name="t", points=[(1, 0.0)])], x_label="s", y_label="l", log_y=True)


def test_flat_and_negative_series_are_drawn() -> None:
    for points in ([(1, 2.0), (2, 2.0)], [(1, -3.0), (2, -1.0)], [(1, 0.0), (2, 0.0)]):
        text = ElementTree.tostring(draw(Series(name="x", points=points)), encoding="unicode")
        assert "nan" not in text.lower()
        assert "inf" not in text.lower()


def test_lines_differ_in_dashes_and_not_only_in_colour() -> None:
    root = draw(*(Series(name=f"rank {i}", points=[(1, i), (2, i + 1)], index=i) for i in range(4)))
    classes = {path.get("class") for path in root.iter(f"{SVG}path") if "series" in path.get("class", "")}
    assert len(classes) == 4
    sheet = resources.files("app.gui").joinpath("page.css").read_text("utf-8")
    dashes = re.findall(r"\.chart \.series-\d \{[^}]*stroke-dasharray: ([^;}]+)", sheet)
    assert len(set(dashes)) == 3  # and the first one is solid
