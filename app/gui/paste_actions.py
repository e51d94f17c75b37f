"""What pasting on the Plan tab does, without widgets: a text to findings in HTML, and to a preset that the form loads.

Nothing is kept between the two: the text is read again when it is saved. Called by paste_panel.py.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

from app.gui.confine import confined_path, is_confined
from app.gui.form import PATH_KEYS
from app.gui.plan_actions import Form, load_form
from app.services.draft import Draft
from app.services.importing.facts import Facts, facts_here
from app.services.importing.finding import Finding
from app.services.importing.imported import Imported, file_name, import_text
from app.services.presets import load_preset, preset_names, preset_text, save_preset
from app.views.findings import TITLES, counts_words, finding_rows
from planner.errors import ConfigError
from planner.types import Preset


@dataclass(frozen=True, slots=True, kw_only=True)
class PasteView:
    findings: str = ""  # HTML
    name: str = ""  # proposed for the preset; empty when there is none


def view_paste(text: str) -> PasteView:
    """What became of every flag. Never raises."""
    if not text.strip():
        return PasteView()
    imported = import_text(text, facts=confined_facts())
    head = f'<p role="status">{escape(_head(imported))}</p>'
    return PasteView(
        findings=head + findings_html(imported.findings), name=imported.preset.name if imported.preset else ""
    )


def save_paste(text: str, name: str) -> Form:
    """Save what the text becomes among the user's presets, and the form that shows it.

    Raises: ConfigError when it becomes no preset, names a path outside, or when the name is taken by another preset.
    """
    imported = import_text(text, name=file_name(name) if name.strip() else None, facts=confined_facts())
    if imported.preset is None:
        raise ConfigError("This text becomes no preset.", fix="Paste a command that trains, such as `swift sft ...`.")
    preset = imported.preset
    _refuse_paths_outside(preset)
    if not _is_saved(preset):
        save_preset(preset)
    return load_form(preset.name)


def confined_facts() -> Facts:
    """As everywhere, except that no file outside of the page's folder is looked at, whether it exists or not."""
    here = facts_here()
    return replace(
        here, is_file=lambda name: is_confined(name) and here.is_file(name),
        model=lambda name: here.model(name) if is_confined(name) else None,
    )  # fmt: skip


def _refuse_paths_outside(preset: Preset) -> None:
    draft = Draft.of(preset)
    for key in PATH_KEYS:
        value = draft.get(key)
        for path in [value] if isinstance(value, str) else value or ():
            confined_path(str(path), what=key)


def _is_saved(preset: Preset) -> bool:
    """The same text saved twice is one preset."""
    return preset.name in preset_names() and preset_text(load_preset(preset.name)) == preset_text(preset)


def _head(imported: Imported) -> str:
    counts = counts_words(imported.findings)
    if imported.preset is not None:
        return f"{imported.preset.name}: {counts}"
    if imported.command:
        return f"This trains nothing. The longfit line that does the same: {shlex.join(imported.command)}"
    return "Nothing to import."


def findings_html(findings: Sequence[Finding]) -> str:
    """A table, the kinds that need an eye first; the kind is a word, its colour only helps."""
    rows = "".join(
        f'<tr class="{row.kind}"><th scope="row">{escape(TITLES[row.kind])}</th>'
        f"<td><code>{escape(row.flags)}</code></td><td><code>{escape(row.keys)}</code></td>"
        f"<td>{escape(row.words)}</td></tr>"
        for row in finding_rows(findings)
    )
    if not rows:
        return ""
    head = "".join(
        f'<th scope="col">{word}</th>' for word in ("what became of it", "pasted", "preset", "why, and the way out")
    )
    return f'<table class="findings"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
