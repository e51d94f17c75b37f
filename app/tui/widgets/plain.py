"""Text that is shown as it is: Textual reads strings as markup unless told otherwise, and data must never be markup."""

from __future__ import annotations

from textual.content import Content
from textual.visual import VisualType
from textual.widgets import Static


class Plain(Static):
    """A Static for data: no markup, ever, and of a string no control character but line ends."""

    def __init__(self, content: str | Content = "", *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(_shown(content), id=id, classes=classes, markup=False)

    def update(self, content: VisualType = "", *, layout: bool = True) -> None:
        super().update(_shown(content), layout=layout)

    def show_line(self, content: str | Content) -> None:
        """New text where the height is fixed: painted without arranging the screen anew."""
        self.update(content, layout=False)


def _shown(content: VisualType) -> VisualType:
    return visible_lines(content) if isinstance(content, str) else content


def visible_lines(text: str) -> str:
    """``visible`` of every line."""
    return "\n".join(map(visible, text.split("\n")))


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
