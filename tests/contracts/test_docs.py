"""The documentation says what the program does."""

from __future__ import annotations

from pathlib import Path

from app.services.preset_reference import reference_page

ROOT = Path(__file__).parents[2]


def test_the_page_of_preset_keys_is_current() -> None:
    page = ROOT / "docs" / "reference" / "preset-keys.md"
    assert page.read_text("utf-8") == reference_page(), "run: python -m app.services.preset_reference > " + str(page)


def test_every_built_in_preset_stands_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    missing = [path.stem for path in (ROOT / "presets").glob("*.yaml") if f"`{path.stem}`" not in readme]
    assert missing == []
