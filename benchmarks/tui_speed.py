"""How fast the Plan screen is, as a person sees it: the real process in a pseudo-terminal, from key to what is drawn.

    python benchmarks/tui_speed.py

Three figures. First screen: from starting `longfit tui` to the verdict on the screen (imports included). Edit: from the
key that changes the length to the new verdict and bar on the screen. Recommendation: from the same key to the new table
below it, which is searched in a thread after a pause. Targets (idle machine): 0.8 s, 50 ms median, 250 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import pty
import re
import select
import statistics
import struct
import subprocess
import sys
import termios
import time
from dataclasses import dataclass, field
from pathlib import Path

from app.services.planning import plan_preset, recommend_for
from app.views.format import format_bytes
from app.views.plan_view import verdict_view
from planner.types import Plan

ROWS, COLUMNS = 40, 120
_ESCAPE = re.compile(rb"\x1b\[[0-9;?<>=]*[A-Za-z]|\x1b[()][A-Z0-9]|\x1b[=>]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")


@dataclass
class Terminal:
    """`longfit tui PRESET` in a pseudo-terminal of its own."""

    preset: str
    process: subprocess.Popen[bytes] = field(init=False)
    leader: int = field(init=False)

    def __post_init__(self) -> None:
        self.leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "app.cli.main", "tui", self.preset], cwd=Path(__file__).parents[1],
            stdin=follower, stdout=follower, stderr=follower, env=environment, close_fds=True,
        )  # fmt: skip
        os.close(follower)

    def press(self, key: str) -> float:
        """The moment after which the terminal has the key."""
        os.write(self.leader, key.encode())
        return time.perf_counter()

    def wait_for(self, *facts: str, seconds: float = 20.0) -> float:
        """The moment at which all these texts have been drawn since the call, escape sequences left out."""
        wanted = [fact.encode() for fact in facts]
        drawn, deadline = b"", time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            if select.select([self.leader], [], [], 0.5)[0]:
                drawn += os.read(self.leader, 1 << 20)
                plain = _ESCAPE.sub(b"", drawn)
                if all(fact in plain for fact in wanted):
                    return time.perf_counter()
        raise TimeoutError(f"{facts} were not drawn in {seconds} s")

    def settle(self, seconds: float) -> None:
        """Take what is still being drawn; the other end may be gone."""
        with contextlib.suppress(OSError):
            while select.select([self.leader], [], [], seconds)[0]:
                os.read(self.leader, 1 << 20)

    def leave(self) -> None:
        """Keys may come before the first screen takes any."""
        while self.process.poll() is None:
            self.press("q")
            self.settle(0.5)
        os.close(self.leader)


def verdict_head(plan: Plan) -> str:
    """What the verdict line begins with: ``TIGHT: 21.4 GiB``."""
    return f"{verdict_view(plan).word}: {format_bytes(plan.worst_gpu.used_bytes)}"


def first_screens(preset: str, repeats: int) -> list[float]:
    head, seconds = verdict_head(plan_preset(preset).plan), []
    for _ in range(repeats):
        start = time.perf_counter()
        terminal = Terminal(preset)
        seconds.append(terminal.wait_for(head) - start)
        terminal.settle(0.5)
        terminal.leave()
    return seconds


def edits(preset: str, repeats: int) -> tuple[list[float], list[float]]:
    """Seconds to the new verdict, and to the new recommendation, of every edit: the length to and fro by 1024."""
    length = plan_preset(preset).plan.config.max_length
    heads, bests = {}, {}
    for tokens in (length, length + 1024):
        planned = plan_preset(preset, {"max_length": tokens})
        heads[tokens] = verdict_head(planned.plan)
        best = next(found for found in recommend_for(planned.resolved) if found.changes)
        bests[tokens] = format_bytes(best.used_bytes)
    assert len(set(heads.values())) == len(set(bests.values())) == 2, "the two lengths must differ in what is shown"
    terminal = Terminal(preset)
    terminal.wait_for(heads[length])
    terminal.settle(2.0)
    repainted, recommended = [], []
    for number in range(repeats):
        tokens = length + 1024 if number % 2 == 0 else length
        at = terminal.press("}" if number % 2 == 0 else "{")
        repainted.append(terminal.wait_for(heads[tokens]) - at)
        recommended.append(terminal.wait_for(bests[tokens]) - at)
        terminal.settle(1.0)
    terminal.leave()
    return repainted, recommended


def _line(name: str, seconds: list[float], target: float) -> str:
    ordered = sorted(seconds)
    median, worst = statistics.median(ordered), ordered[-1]
    verdict = "ok" if median <= target else "MISSED"
    return (
        f"{name:<16} median {1e3 * median:7.1f} ms  max {1e3 * worst:7.1f} ms  target {1e3 * target:5.0f} ms  {verdict}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="qwen2.5-7b-16k-2x24g")
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--edits", type=int, default=40)
    args = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"{args.preset}, {os.cpu_count()} cores, load {load:.1f}" + (" (not idle!)" if load > 0.5 else ""))
    print(_line("first screen", first_screens(args.preset, args.starts), 0.8))
    repainted, recommended = edits(args.preset, args.edits)
    print(_line("edit", repainted, 0.05))
    print(_line("recommendation", recommended, 0.25))


if __name__ == "__main__":
    main()
