"""From a failed run to one that fits: the change that the post-mortem proposes, launched anew or taken to the plan."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from app.services.draft import AS_PRESET, Draft
from app.tui.screens.launching import start_launch
from planner.errors import LongfitError

if TYPE_CHECKING:
    from textual.screen import Screen

    from app.tui.services import Services
    from core.run.directory import RunDirectory


def ask_to_mend(screen: Screen, services: Services, run: RunDirectory) -> None:
    """Show the first change that fits as a diff, with the plan for this machine; a yes launches a new run with it.

    The failed run stays as it is.
    """
    try:
        fix = services.first_fix(run)
    except LongfitError as error:
        screen.notify(str(error), severity="warning", timeout=10, markup=False)
        return
    draft = replace(Draft.of(fix.preset), gpu="cpu" if fix.on_cpu else AS_PRESET).apply(fix.changes.items())
    why = (f"The post-mortem proposes: {fix.why}.",) if fix.why else ()
    start_launch(screen, services, draft, above=(*why, *services.change_lines(fix.preset, fix.changes), ""))


def plan_mended(screen: Screen, services: Services, run: RunDirectory) -> None:
    """The run's preset on the Plan screen; where the post-mortem proposes a change, with that change."""
    try:
        draft = Draft.of(services.run_preset(run))
    except LongfitError as error:
        screen.notify(str(error), severity="error", timeout=10, markup=False)
        return
    with suppress(LongfitError):  # nothing is proposed: the preset as it was
        draft = draft.apply(services.first_fix(run).changes.items())
    screen.app.open_draft(draft)  # type: ignore[attr-defined]
