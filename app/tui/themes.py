"""Themes: dark, light, one whose states differ in blue against orange alone, and one without any colour.

Colours are Okabe-Ito's in all of them; a word always stands beside a colour. Registered by the App.
"""

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
        name="longfit-colour-blind", dark=True, primary="#56B4E9", secondary="#0072B2", accent="#F0E442",
        success="#56B4E9", warning="#F0E442", error="#FF8A3D", foreground="#FFFFFF", background="#000000",
        surface="#0B0D10", panel="#2B323A",
    ),
    Theme(
        name="longfit-mono", dark=True, primary="#FFFFFF", secondary="#D0D0D0", accent="#FFFFFF", success="#FFFFFF",
        warning="#FFFFFF", error="#FFFFFF", foreground="#E8E8E8", background="#000000", surface="#000000",
        panel="#303030",
    ),
)  # fmt: skip
DEFAULT_THEME = "longfit-dark"
COLOURLESS_THEME = "longfit-mono"
