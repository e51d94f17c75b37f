"""Text that is shown as it is: Textual reads strings as markup unless told otherwise, and data must never be markup."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static


class Plain(Static):
    """A Static for data: no markup, ever."""

    def __init__(self, content: str | Content = "", *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(content, id=id, classes=classes, markup=False)

    def show_line(self, content: str | Content) -> None:
        """New text where the height is fixed: painted without arranging the screen anew."""
        self.update(content, layout=False)


def visible(text: str) -> str:
    """Control characters made visible (ESC as ``^[``), so that a log cannot move the cursor or paint the screen."""
    if text.isprintable():
        return text
    return "".join(_visible_character(character) for character in text.expandtabs(4))


def _visible_character(character: str) -> str:
    code = ord(character)
    if code < 32 or code == 127:
        return "^" + chr(code ^ 64)
    if character.isprintable() or character == " ":
        return character
    # zero-width joiners and variation selectors belong to readable text; bidi overrides and the rest do not
    return character if code in (0x200D, 0xFE0F) else f"<{code:04X}>"
