"""What is drawn cell by cell: braille canvas, memory bar, and text made visible."""

from app.tui.braille import Canvas
from app.tui.widgets.memory_panel import memory_cells
from app.tui.widgets.plain import visible
from app.views.memory_view import MemoryRow


def rows(canvas):
    return ["".join(text for text, _ in row) for row in canvas.rows()]


def test_dots_are_counted_from_the_bottom_left():
    canvas = Canvas(2, 1)
    canvas.dot(0, 0, "raw")
    canvas.dot(3, 3, "raw")
    assert rows(canvas) == ["⡀⠈"]


def test_a_line_is_connected_and_one_point_is_drawn():
    canvas = Canvas(4, 2)
    canvas.line([(0, 0), (7, 7)], "raw")
    assert rows(canvas) == ["  ⡠⠊", "⡠⠊  "]
    canvas = Canvas(1, 1)
    canvas.line([(0, 0)], "raw")
    assert rows(canvas) == ["⡀"]


def test_ascii_canvas_uses_points_and_stars():
    canvas = Canvas(2, 1, ascii_only=True)
    canvas.dot(0, 0, "raw")
    canvas.dot(2, 0, "smooth")
    assert rows(canvas) == [".*"]


def test_dots_outside_are_left_out():
    canvas = Canvas(1, 1)
    canvas.dot(-1, 0, "raw")
    canvas.dot(2, 0, "raw")
    canvas.mark(0, 9, "o", "evaluation")
    assert rows(canvas) == [" "]
    assert rows(Canvas(0, 0)) == []


def memory_row(allocated, peak, planned):
    return MemoryRow(
        rank=0, allocated_bytes=allocated, used_bytes=0, peak_bytes=peak, peak_instant="backward",
        planned_peak_bytes=planned, planned_used_bytes=0, usable_bytes=0, deviation="", remark="",
    )  # fmt: skip


def test_memory_bar_shows_now_peak_and_plan():
    assert "".join(memory_cells(memory_row(50, 80, 90), scale_bytes=100, width=10)) == "█████░░░ ┊"
    assert "".join(memory_cells(memory_row(50, 80, 90), scale_bytes=100, width=10, ascii_only=True)) == "#####--- |"


def test_memory_bar_marks_what_exceeds_the_plan():
    assert "".join(memory_cells(memory_row(50, 90, 60), scale_bytes=100, width=10)) == "█████░┊XX "


def test_nothing_in_a_log_reaches_the_terminal_as_a_command():
    assert visible("plain 长文 é 👩‍👧") == "plain 长文 é 👩‍👧"
    assert visible("\x1b[31mred\x07") == "^[[31mred^G"
    assert visible("a\tb") == "a   b"
    assert visible("\u202eevil\u009b") == "<202E>evil<009B>"
