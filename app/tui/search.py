"""The search for better combinations behind the Plan screen: after a pause, in a thread, one at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from textual.message import Message

from planner.errors import LongfitError
from planner.goals import Goal
from planner.types import Alternative, Plan

if TYPE_CHECKING:
    from textual.screen import Screen
    from textual.timer import Timer

    from app.tui.services import Services

DELAY_S = 0.06  # after the last edit: keys that are held down come faster


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is searched for; told apart by identity, for each edit makes a plan of its own."""

    plan: Plan
    resolved: Any
    goal: Goal


@dataclass
class Recommended(Message):
    """Better combinations for ``wanted``; or the problem that it has with the goal."""

    wanted: Wanted
    found: tuple[Alternative, ...]
    problem: str = ""


@dataclass
class LongestFound(Message):
    """The last word of a search. 0: no length fits."""

    wanted: Wanted
    length: int


class Search:
    """Posts to ``screen``, which hands LongestFound back to ``ended``."""

    def __init__(self, screen: Screen[Any], services: Services) -> None:
        self._screen = screen
        self._services = services
        self._timer: Timer | None = None
        self._wanted: Wanted | None = None
        self._is_running = False

    def want(self, plan: Plan, resolved: Any, goal: Goal) -> None:
        """Answers to anything wanted earlier are old from now on."""
        self._wanted = Wanted(plan, resolved, goal)
        if self._timer is not None:
            self._timer.stop()
        self._timer = self._screen.set_timer(DELAY_S, self._start)

    def is_of_now(self, message: Recommended | LongestFound) -> bool:
        return message.wanted is self._wanted

    def ended(self, message: LongestFound) -> None:
        """What was wanted meanwhile is searched for next."""
        self._is_running = False
        if not self.is_of_now(message):
            self._start()

    def _start(self) -> None:
        """One at a time: more would only share the interpreter with the keys that are being typed."""
        wanted = self._wanted
        if wanted is not None and not self._is_running:
            self._is_running = True
            self._screen.run_worker(lambda: self._find(wanted), thread=True, group="search")

    def _find(self, wanted: Wanted) -> None:
        try:
            found = self._services.recommend(wanted.resolved, wanted.goal)
            self._screen.post_message(Recommended(wanted, found))
        except LongfitError as error:
            self._screen.post_message(Recommended(wanted, (), str(error)))
        try:
            length = self._services.longest_length(wanted.resolved)
        except LongfitError:  # the plan has said why
            length = 0
        self._screen.post_message(LongestFound(wanted, length))
