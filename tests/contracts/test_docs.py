"""The documentation says what the program does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from app.services.preset_reference import reference_page
from app.services.preset_table import presets_page

ROOT = Path(__file__).parents[2]


def test_the_page_of_preset_keys_is_current() -> None:
    page = ROOT / "docs" / "reference" / "preset-keys.md"
    assert page.read_text("utf-8") == reference_page(), "run: python -m app.services.preset_reference > " + str(page)


def test_the_page_of_presets_is_current_and_names_each() -> None:
    page = ROOT / "docs" / "presets.md"
    assert page.read_text("utf-8") == presets_page(), "run: python -m app.services.preset_table > " + str(page)
    missing = [path.stem for path in (ROOT / "presets").glob("*.yaml") if f"`{path.stem}`" not in page.read_text()]
    assert missing == []


def test_the_plan_in_the_readme_is_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGFIT_CACHE", str(tmp_path))  # no calibration of this machine
    command, _, shown = (ROOT / "README.md").read_text("utf-8").partition("$ longfit ")[2].partition("\n")
    told = subprocess.run(
        [sys.executable, "-m", "app.cli.main", *command.split()], cwd=ROOT, capture_output=True, encoding="utf-8",
        check=True,
    ).stdout  # fmt: skip
    assert told.startswith(shown[: shown.index("\n...\n")])
