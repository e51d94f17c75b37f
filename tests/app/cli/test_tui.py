"""`longfit tui` where there is no terminal: plain text on stdout, talk on stderr."""

import os
import pty
import subprocess
import sys
from types import SimpleNamespace

import pytest

from app.cli.main import main

NAME = "qwen2.5-7b-16k-2x24g"


def test_a_pipe_gets_the_plan_as_text(capsys):
    assert main(["tui", NAME]) == 0
    out, err = capsys.readouterr()
    assert "LoRA r64" in out
    assert "at the peak" in out
    assert "\x1b" not in out
    assert err == "Not a terminal: plain text instead.\n"


def test_a_pipe_without_a_preset_gets_the_list(capsys):
    assert main(["tui"]) == 0
    assert NAME in capsys.readouterr().out


def test_every_theme_can_be_asked_for():
    from app.cli.tui import THEMES as offered
    from app.tui.themes import THEMES as drawn

    assert offered == tuple(theme.name for theme in drawn)


def test_an_unknown_preset_is_refused_with_the_nearest_name(capsys):
    assert main(["tui", "qwen2.5-7b-16k-2x24"]) == 2
    assert NAME in capsys.readouterr().err


@pytest.mark.parametrize("redirected", ["stdin", "stdout", "stderr", ""])
def test_the_interface_needs_a_terminal_on_every_end(monkeypatch, redirected):
    from app.tui.start import can_show

    with monkeypatch.context() as patch:
        patch.setenv("TERM", "xterm")
        for name in ("stdin", "stdout", "stderr"):
            patch.setattr(sys, name, SimpleNamespace(isatty=lambda is_one=name != redirected: is_one))
        is_shown = can_show()
    assert is_shown is (redirected == "")


@pytest.mark.parametrize(("term", "is_shown"), [("dumb", False), ("xterm-256color", True)])
def test_a_terminal_gets_the_interface_unless_it_cannot_place_a_cursor(term, is_shown):
    """In a pseudo-terminal of 80 x 24; q leaves it and the terminal is given back."""
    import fcntl
    import struct
    import termios

    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "app.cli.main", "tui", NAME],
        stdin=follower, stdout=follower, stderr=follower, env={**os.environ, "TERM": term}, close_fds=True,
    )  # fmt: skip
    os.close(follower)
    output = b""
    sent = False
    while True:
        try:
            chunk = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        output += chunk
        if not sent and b"Recommended" in output:
            os.write(leader, b"q")
            sent = True
    os.close(leader)
    assert process.wait(30) == 0
    assert (b"\x1b[?1049h" in output) is is_shown  # the alternate screen
    assert (b"\x1b[?1049l" in output) is is_shown  # and back
