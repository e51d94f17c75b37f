"""The list of presets, and one of them in the words of a tool, as HTML for the Presets tab. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from urllib.parse import urlencode

from app.gui.clicks import link_html
from app.gui.list_html import list_html
from app.gui.messages import error_words
from app.gui.paste_actions import findings_html
from app.services.importing.finding import Finding
from app.views.format import format_path
from planner.errors import ConfigError
from planner.types import Preset

_COLUMNS = ("name", "fits here", "fits there", "for", "length", "model", "what it is", "from")
PENDING = "..."
Verdicts = Mapping[str, tuple[str, str]]  # preset -> (on this machine, on the hardware it is meant for)


def presets_html(presets: Mapping[str, Preset], unreadable: Iterable[ConfigError], *, verdicts: Verdicts) -> str:
    rows = [_row(name, preset, *verdicts.get(name, (PENDING, PENDING))) for name, preset in presets.items()]
    caption = "Fits here: on this machine now. Fits there: on the hardware it is meant for."
    table = list_html(_COLUMNS, rows, caption=caption, kind="presets") if rows else "<p>There is no preset.</p>"
    return "".join(f'<p class="issue error">{error_words(error)}</p>' for error in unreadable) + table


def _row(name: str, preset: Preset, here: str, there: str) -> tuple[str, ...]:
    href = "?" + urlencode({"tab": "presets", "show": name})
    model = str(preset.values.get("model", "-")).rstrip("/").rpartition("/")[2]
    texts = (here, there, hardware_words(preset), str(preset.values.get("max_length", "-")), model,
             preset.description, preset.origin)  # fmt: skip
    return (link_html(name, act="show", of=name, href=href, says=f"show {name}"), *map(escape, texts))


def hardware_words(preset: Preset) -> str:
    """``2xA10``; ``this machine`` where the preset names none."""
    gpu = preset.hardware.get("gpu")
    return f"{preset.hardware.get('count', 1)}x{gpu}" if gpu else "this machine"


def about_html(preset: Preset) -> str:
    """What it is, what it is for, and its file."""
    described = f"<p>{escape(preset.description)}</p>" if preset.description else ""
    place = format_path(Path(preset.path)) if preset.path else ""
    words = f"{preset.origin}, for {hardware_words(preset)}: {place}"
    return f'{described}<p class="aside break">{escape(words)}</p>'


def lost_html(findings: Iterable[Finding]) -> str:
    """What the tool cannot say, or says differently; nothing where all was carried over."""
    return findings_html([finding for finding in findings if finding.kind != "translated"])
