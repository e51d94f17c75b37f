"""A canvas of braille dots, two by four to a cell: curves in any terminal that has Unicode, or points in ASCII."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # row, column -> bit, see Unicode U+2800


class Canvas:
    """``width`` x ``height`` cells. Layers are drawn later over earlier; each cell shows its topmost layer's style."""

    def __init__(self, width: int, height: int, *, ascii_only: bool = False) -> None:
        self.width = max(0, width)
        self.height = max(0, height)
        self._ascii = ascii_only
        self._bits = [[0] * self.width for _ in range(self.height)]
        self._layers = [[""] * self.width for _ in range(self.height)]
        self._marks = [[""] * self.width for _ in range(self.height)]

    @property
    def dot_width(self) -> int:
        return 2 * self.width

    @property
    def dot_height(self) -> int:
        return 4 * self.height

    def dot(self, x: int, y: int, layer: str) -> None:
        """One dot, counted from the bottom left."""
        if not (0 <= x < self.dot_width and 0 <= y < self.dot_height):
            return
        down = self.dot_height - 1 - y
        row, column = down // 4, x // 2
        if self._layers[row][column] != layer and self._ascii:
            self._bits[row][column] = 0
        self._bits[row][column] |= _DOTS[down % 4][x % 2]
        self._layers[row][column] = layer

    def line(self, points: Sequence[tuple[int, int]], layer: str, *, dotted: bool = False) -> None:
        """Dots joined in order; a single point is drawn as one. ``dotted`` leaves every other pair of columns out."""
        for (x0, y0), (x1, y1) in pairwise(points):
            steps = max(abs(x1 - x0), abs(y1 - y0), 1)
            for step in range(steps + 1):
                x, y = round(x0 + (x1 - x0) * step / steps), round(y0 + (y1 - y0) * step / steps)
                if not dotted or x % 4 < 2:
                    self.dot(x, y, layer)
        if len(points) == 1:
            self.dot(*points[0], layer)

    def mark(self, x: int, y: int, text: str, layer: str) -> None:
        """A character at the cell of a dot: it stands out among dots."""
        if 0 <= x < self.dot_width and 0 <= y < self.dot_height:
            row, column = (self.dot_height - 1 - y) // 4, x // 2
            self._marks[row][column] = text
            self._layers[row][column] = layer

    def rows(self) -> list[list[tuple[str, str]]]:
        """Rows of (character, layer) from the top; layer "" is empty."""
        return [
            [(self._character(row, column), self._layers[row][column]) for column in range(self.width)]
            for row in range(self.height)
        ]

    def _character(self, row: int, column: int) -> str:
        if self._marks[row][column]:
            return self._marks[row][column]
        bits = self._bits[row][column]
        if not bits:
            return " "
        return ("." if self._layers[row][column] == "raw" else "*") if self._ascii else chr(0x2800 + bits)
