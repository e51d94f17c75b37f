"""Themes: Okabe-Ito colours in dark and light, and one without any colour. Registered by the App."""

from __future__ import annotations

from textual.theme import Theme

THEMES = (
    Theme(
        name="longfit-dark", dark=True, primary="#56B4E9", secondary="#0072B2", accent="#E69F00",
        success="#29B78E", warning="#E69F00", error="#F0762B", foreground="#E4E4E4", background="#101418",
        surface="#161B20", panel="#232A31",
    ),
    Theme(
        name="longfit-light", dark=False, primary="#005A8C", secondary="#0072B2", accent="#8F5F00",
        success="#00674B", warning="#8F5F00", error="#B34700", foreground="#16191C", background="#FBFBF8",
        surface="#FFFFFF", panel="#E7E9EA",
    ),
    Theme(
        name="longfit-mono", dark=True, primary="#FFFFFF", secondary="#D0D0D0", accent="#FFFFFF", success="#FFFFFF",
        warning="#FFFFFF", error="#FFFFFF", foreground="#E8E8E8", background="#000000", surface="#000000",
        panel="#303030",
    ),
)  # fmt: skip
DEFAULT_THEME = "longfit-dark"
