"""`longfit rehearse` as a child process of a face: the preset as it stands in the form, what it says, a way to end it.

A rehearsal holds the GPU for as long as it takes; a face must neither wait for it nor leave it behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from core.run.interpreter import child_environment, python_argv

_GRACE_SECONDS = 10.0  # torchrun passes the signal on to its workers first


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """``exit_code`` is the verb's: 0 it ran, 4 out of memory, negative when it was ended from outside."""

    exit_code: int
    answer: str  # the table, as app/views/rehearsal_view.py words it
    talk: str  # errors and warnings

    @property
    def was_ended(self) -> bool:
        return self.exit_code < 0


class RehearsalProcess:
    """Started at once; ``wait`` from a thread, ``end`` from any."""

    def __init__(self, preset_text: str, *, arguments: tuple[str, ...] = ()) -> None:
        """``arguments``: of the verb, such as ``--gpu cpu``."""
        self._folder = tempfile.TemporaryDirectory(prefix="longfit-preset-")
        preset = Path(self._folder.name) / "preset.yaml"
        preset.write_text(preset_text, "utf-8")
        self._process = subprocess.Popen(
            python_argv("-m", "app.cli.main", "rehearse", str(preset), *arguments),
            env=child_environment(os.environ), start_new_session=True, text=True, encoding="utf-8", errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def wait(self) -> Ended:
        answer, talk = self._process.communicate()
        self._folder.cleanup()
        return Ended(exit_code=self._process.returncode, answer=answer.strip(), talk=talk.strip())

    def end(self) -> None:
        """Ask its whole session to end, and see to it later: the one who asks may be leaving."""
        self._signal(signal.SIGTERM)
        threading.Thread(target=self._insist, daemon=True).start()

    def _insist(self) -> None:
        try:
            self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:  # else the number may be another's by now
            os.killpg(self._process.pid, number)
