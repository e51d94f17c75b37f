"""What the Runs tab does, without widgets: the list, and two runs side by side. Called by runs_tab.py.

Which runs are compared stands in the address and nowhere else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlencode

from app.gui import runs_html
from app.gui.messages import error_html
from app.gui.run_actions import RunActions
from app.gui.run_reader import RunReader
from app.services.run_facts import RunFacts, RunFactsReader
from app.services.runs import list_runs, snapshot
from app.views.memory_view import MemoryHistory
from app.views.series import LossHistory
from planner.errors import ConfigError, LongfitError
from planner.types import RunConfig, RunState

TAB = "runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """One run of a comparison, as app/views/compare.py reads it."""

    config: RunConfig
    state: RunState
    plan: Mapping[str, Any]
    loss: LossHistory
    memory: MemoryHistory


class RunsActions:
    """The list of the runs that ``runs`` opens one by one."""

    def __init__(self, runs: RunActions) -> None:
        self.runs = runs
        self._facts = RunFactsReader()
        self._lock = threading.Lock()  # the reader of facts serves one thread at a time

    def table(self, address: str) -> str:
        found = list_runs(self.runs.root)
        facts: dict[str, RunFacts] = {}
        with self._lock:
            for run in found.runs:
                try:
                    facts[run.id] = self._facts.read(run)
                except LongfitError:  # a record of the run is damaged: its row stays without them
                    continue
        return runs_html.runs_html(
            found, facts, root=self.runs.root.resolve(), marked=compared_in(address), now=time.time()
        )

    def comparison(self, address: str) -> str:
        """Empty when nothing is marked; an address that names what is no run says so."""
        marked = compared_in(address)
        if not marked:
            return ""
        try:
            if len(marked) == 1:
                return runs_html.waiting_html(self.runs.open(marked[0]).id)
            return self._side_by_side(marked[0], marked[1])
        except LongfitError as error:
            return error_html(error, word="NO COMPARISON")

    def _side_by_side(self, first: str, second: str) -> str:
        looks = {run_id: snapshot(self.runs.open(run_id)) for run_id in (first, second)}
        with ExitStack() as stack:
            # always in the same order: two pages that compare the same runs must not wait for each other
            readers: dict[str, RunReader] = {
                run_id: stack.enter_context(self.runs.readers.opened(looks[run_id].paths)) for run_id in sorted(looks)
            }
            seen = {
                run_id: _Seen(
                    config=look.config, state=readers[run_id].state, plan=look.plan, loss=readers[run_id].loss,
                    memory=readers[run_id].memory,
                )
                for run_id, look in looks.items()
            }  # fmt: skip
            return runs_html.comparison_html(seen[first], seen[second], ids=(first, second))

    def command(self, act: str, run_id: str) -> str:
        """Stop or resume a run; what came of it in words. Raises: LongfitError."""
        match act:
            case "stop":
                return f"{run_id}: {self.runs.stop(run_id)}"
            case "resume":
                return f"{run_id}: {self.runs.resume(run_id)}"
        raise ConfigError(f"{act!r} is nothing that can be done with a run.")


def compared_in(address: str) -> tuple[str, ...]:
    """At most two different ids, in the order in which they were marked."""
    return tuple(dict.fromkeys(parse_qs(address.removeprefix("?")).get("compare", ())))[:2]


def address_of(compared: tuple[str, ...] = ()) -> str:
    return "?" + urlencode([("tab", TAB), *(("compare", run_id) for run_id in compared)])


def with_mark(address: str, run_id: str) -> str:
    """The address after Compare was pressed on a run: once on each of two, again takes the mark away."""
    marked = compared_in(address)
    if run_id in marked:
        return address_of(tuple(other for other in marked if other != run_id))
    return address_of((*marked, run_id) if len(marked) < 2 else (run_id,))
