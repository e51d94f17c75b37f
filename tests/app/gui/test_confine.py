"""No path typed into the page leads out of its folder, however it is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.gui.confine import confined_path
from planner.errors import ConfigError

PIECES = st.sampled_from(
    [*("..", ".", "", "~", "~root", "~0", "/", "//", "\\", "%2e%2e", "\0", "a", "data", "link", "deep", "C:", "#5"),
     *("#", "é", " ", "$(id)", "file:", "-x", "...", "\ud800", "\n")]
)  # fmt: skip
PATHS = st.lists(PIECES, min_size=1, max_size=7).map("/".join) | st.text(max_size=20)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("outer") / "root"
    (root / "data" / "deep").mkdir(parents=True)
    (root / "link").symlink_to("/etc")
    (root / "data" / "link").symlink_to("../..")
    (root / "data" / "deep" / "link").symlink_to("../../data")
    return root.resolve()


@settings(max_examples=500, deadline=None)
@given(path=PATHS)
def test_every_path_is_inside_or_refused(root: Path, path: str) -> None:
    try:
        real = confined_path(path, what="data", root=root)
    except ConfigError:
        return
    assert real == root or root in real.parents
    assert real == Path(os.path.realpath(real))


@pytest.mark.parametrize(
    "path", ["a.jsonl", "data/deep/../a.jsonl", "data/deep/link/x", "a#b.jsonl", "é/a b.jsonl#500"]
)
def test_paths_inside_pass(root: Path, path: str) -> None:
    assert root in confined_path(path, what="data", root=root).parents


@pytest.mark.parametrize("path", ["link/passwd", "data/link/x", "..", "../root2/a", "/etc/passwd", "~/.ssh/id_rsa"])
def test_paths_outside_are_refused(root: Path, path: str) -> None:
    with pytest.raises(ConfigError, match="is outside of"):
        confined_path(path, what="data", root=root)
