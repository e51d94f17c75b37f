"""HTML whose links and buttons reach the server: what was clicked, and on which row. Used by the tabs that are lists.

A clickable element carries ``data-act`` and ``data-of``. It is a link or a button of HTML, so that the keyboard gets
there too; a link's ``href`` leads to the same place in another window.
"""

from __future__ import annotations

from html import escape
from typing import Any

import gradio as gr

# A list that is drawn anew under the keyboard's focus gives it back to the element that does the same.
_JS = """
let focused = null;
element.addEventListener('click', (event) => {
  const target = event.target.closest('[data-act]');
  if (!target || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  trigger('click', {act: target.dataset.act, of: target.dataset.of});
});
element.addEventListener('focusin', (event) => { focused = event.target.closest('[data-act]'); });
element.addEventListener('focusout', (event) => { if (event.relatedTarget) focused = null; });
watch('value', () => {
  if (!focused || focused.isConnected || document.activeElement !== document.body) return;
  for (const other of element.querySelectorAll('[data-act]'))
    if (other.dataset.act === focused.dataset.act && other.dataset.of === focused.dataset.of) other.focus();
});
"""


def clickable_html(elem_id: str) -> gr.HTML:
    """Its ``click`` event carries what ``clicked`` returns."""
    return gr.HTML(elem_id=elem_id, js_on_load=_JS)


def clicked(event: gr.EventData) -> tuple[str, str]:
    """(what to do, on which row); nothing that a browser sends is taken for granted."""
    data: Any = event._data
    found = data if isinstance(data, dict) else {}
    return str(found.get("act", "")), str(found.get("of", ""))


def link_html(words: str, *, act: str, of: str, href: str, says: str) -> str:
    """``says`` is what a screen reader reads out."""
    return f'<a href="{escape(href)}" {_attributes(act, of, says)}>{escape(words)}</a>'


def button_html(words: str, *, act: str, of: str, says: str, is_pressed: bool | None = None) -> str:
    """A button in a row; ``is_pressed`` for one that stays down."""
    pressed = "" if is_pressed is None else f' aria-pressed="{str(is_pressed).lower()}"'
    return f'<button type="button" class="small" {_attributes(act, of, says)}{pressed}>{escape(words)}</button>'


def _attributes(act: str, of: str, says: str) -> str:
    return f'data-act="{escape(act)}" data-of="{escape(of)}" aria-label="{escape(says)}"'
