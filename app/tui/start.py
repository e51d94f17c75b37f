"""Ways into the terminal interface: for `longfit tui`, and for `attach` and the demo, which show one run."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def can_show() -> bool:
    """A terminal on every end that can place a cursor. Textual draws on stderr: `2>file` would hold the screens."""
    ends = (sys.stdin, sys.stdout, sys.stderr)
    return all(end.isatty() for end in ends) and os.environ.get("TERM", "dumb") != "dumb"


def run_tui(preset: str | None = None, *, ascii_only: bool | None = None, theme: str | None = None) -> int:
    """The Plan screen, on a preset by name or path; the exit code. Raises: ConfigError for an unknown preset."""
    _quieten_over_ssh()
    from app.tui.app import LongfitApp
    from app.tui.services import Services

    services = Services()
    loaded = services.load_preset(preset) if preset else None
    app = LongfitApp(services, preset=loaded, ascii_only=ascii_only, theme=theme)
    app.run()
    return app.return_code or 0


def run_tui_for_run(run_dir: Path, *, exit_when_final: bool = False, ascii_only: bool | None = None) -> int:
    """The Run screen on one run; leaving it does not stop the run. ``exit_when_final`` leaves by itself at the end.

    Raises: RunNotFound, ConfigError when ``run_dir`` is not a readable run.
    """
    _quieten_over_ssh()
    from app.services.runs import snapshot
    from app.tui.app import LongfitApp

    snapshot(run_dir)  # before the screen is taken, so that the message stays readable
    app = LongfitApp(run_dir=run_dir, exit_when_final=exit_when_final, ascii_only=ascii_only)
    app.run()
    return app.return_code or 0


def _quieten_over_ssh() -> None:
    """Fewer frames where each one crosses a network. Textual reads this when it is imported."""
    if os.environ.get("SSH_CONNECTION"):
        os.environ.setdefault("TEXTUAL_FPS", "15")
