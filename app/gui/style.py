"""Looks of the web page: theme, style sheet and head tags. Used by server.py."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import gradio

# Gradio's own index.html names pictures and scripts of other hosts for sharing; robots need not come at all.
HEAD = '<meta name="robots" content="noindex"><meta name="color-scheme" content="light dark">'


def style_sheet() -> str:
    return resources.files("app.gui").joinpath("page.css").read_text("utf-8")


def theme() -> gradio.themes.Base:
    """Fonts of the system, so that nothing has to be fetched."""
    import gradio as gr

    return gr.themes.Base(
        primary_hue=gr.themes.colors.blue,
        neutral_hue=gr.themes.colors.slate,
        font=["system-ui", "sans-serif"],
        font_mono=["ui-monospace", "DejaVu Sans Mono", "monospace"],
        radius_size=gr.themes.sizes.radius_sm,
        spacing_size=gr.themes.sizes.spacing_sm,
        text_size=gr.themes.sizes.text_sm,
    )
