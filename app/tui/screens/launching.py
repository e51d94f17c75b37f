"""From a draft to a running run: plan it for the hardware that is really here, ask, launch, show it.

Called by the Plan screen; a rehearsal is asked for in the same words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from textual.message import Message

from app.services.draft import Draft
from app.tui.screens.dialogs import AskScreen, ConfirmScreen
from app.views.plan_view import cluster_words, combination_of, command_text, issue_lines, speed_words, verdict_view
from planner.errors import LongfitError
from planner.types import Plan

if TYPE_CHECKING:
    from textual.screen import Screen

    from app.tui.services import Services

OVERRIDE_WORD = "over"
LAUNCH = "launch"  # group of the thread that launches; there is one at a time


@dataclass
class Launched(Message):
    """The run has a folder and a supervisor; None: ``problem`` says why not."""

    run_dir: Path | None
    problem: str = ""


def start_launch(screen: Screen, services: Services, draft: Draft, *, above: tuple[str, ...] = ()) -> None:
    """Ask with the plan for this machine, and the lines ``above`` it. What does not fit needs the word typed; what is
    wrong is refused."""
    if any(worker.group == LAUNCH and worker.is_running for worker in screen.app.workers):
        screen.notify("A launch is under way: the data is being prepared.")
        return
    on_cpu = draft.gpu == "cpu"
    try:
        plan = services.plan_for_launch(draft.preset, draft.overrides, cpu=on_cpu)
    except LongfitError as error:
        screen.notify(str(error), severity="error", timeout=12, markup=False)
        return

    def go() -> None:
        _launch(screen, services, draft, on_cpu=on_cpu, allow_over=plan.verdict == "over")

    ask_with_plan(screen, draft, plan, verb="train", word="launch", go=go, above=above)


def ask_with_plan(
    screen: Screen, draft: Draft, plan: Plan, *, verb: str, word: str, go: Callable[[], None],
    above: tuple[str, ...] = (),
) -> None:  # fmt: skip
    """``go`` after a yes to what is planned for this machine; ``word`` says what a yes does, ``verb`` is longfit's."""

    def answered(answer: str | bool | None) -> None:
        if answer:
            go()

    text = "\n".join((*above, _question(draft, plan, verb=verb, word=word)))
    if plan.verdict == "over":
        screen.app.push_screen(AskScreen("This does not fit", text, must_be=OVERRIDE_WORD), answered)
    else:
        screen.app.push_screen(ConfirmScreen(f"{word.capitalize()}?", text, yes=f"y {word}"), answered)


def _question(draft: Draft, plan: Plan, *, verb: str, word: str) -> str:
    view = verdict_view(plan)
    lines = [
        f"{draft.preset.name} on {cluster_words(plan)}",
        combination_of(plan),
        "",
        f"{view.word}: {view.sentence}",
        speed_words(plan),
        *(f"{severity}: {words}" for severity, words in issue_lines(plan.issues)),
        "",
        "$ " + command_text(draft.argument, draft.overrides, verb=verb, hardware="cpu" if draft.gpu == "cpu" else ""),
    ]
    if plan.verdict == "over":
        lines += ["", f"It is expected to run out of memory. Type {OVERRIDE_WORD!r} to {word} all the same."]
    return "\n".join(lines)


def _launch(screen: Screen, services: Services, draft: Draft, *, on_cpu: bool, allow_over: bool) -> None:
    """In a thread: preparing data may take a while. The run appears on the Run screen as soon as it has a folder."""

    def work() -> None:
        try:
            run_dir = services.launch(draft.preset, draft.overrides, cpu=on_cpu, allow_over=allow_over)
        except LongfitError as error:
            screen.post_message(Launched(None, str(error)))
            return
        screen.post_message(Launched(run_dir))

    screen.notify("Launching: the data is being prepared.", markup=False)
    screen.run_worker(work, thread=True, group=LAUNCH, exclusive=True)
