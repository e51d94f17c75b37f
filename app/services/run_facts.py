"""What a list of runs shows of each beside its state: loss, speed, peak against plan, host, whether it can be resumed.

Called by the Runs screen and the Runs tab, again and again: of growing files only what was appended is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from app.services.launch import resume_obstacle
from app.services.run_summary import last_train_row
from app.services.runs import RunSnapshot
from core.run.jsonl import JsonlTail


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    last_loss: float | None
    last_speed: float | None  # tokens a second at the last logged step
    peak_bytes: int  # the most that tensors of a rank held; 0: nothing is known
    planned_peak_bytes: int  # of that rank
    host: str  # the machine that launched it; "" when the record is gone
    obstacle: str  # why it cannot be resumed; "" when it can


@dataclass(slots=True)
class _Peaks:
    """The highest row of each rank, read as far as ``tail``."""

    tail: JsonlTail
    by_rank: dict[int, int] = field(default_factory=dict)


class RunFactsReader:
    """One for a face; call it from one thread at a time."""

    def __init__(self) -> None:
        self._peaks: dict[Path, _Peaks] = {}

    def read(self, run: RunSnapshot) -> RunFacts:
        """Raises: ConfigError when env.json is damaged."""
        row = last_train_row(run)
        loss, speed = row.get("loss"), row.get("tokens_per_second")
        rank, peak = self._highest(run)
        gpus = run.plan.get("gpus") or ()
        obstacle = resume_obstacle(run.paths, run.state)
        return RunFacts(
            last_loss=loss if isinstance(loss, int | float) else None,
            last_speed=speed if isinstance(speed, int | float) else None,
            peak_bytes=peak,
            planned_peak_bytes=int(gpus[rank]["peak"]["allocated_bytes"]) if rank < len(gpus) else 0,
            host=str(run.paths.read_json(run.paths.environment).get("host") or ""),
            obstacle="" if obstacle is None else str(obstacle),
        )

    def _highest(self, run: RunSnapshot) -> tuple[int, int]:
        """(rank, bytes) of the rank that held most."""
        known = self._peaks.setdefault(run.paths.path, _Peaks(JsonlTail(run.paths.memory)))
        while rows := known.tail.read():
            for row in rows:
                if "rank" in row:
                    rank, held = int(row["rank"]), int(row.get("allocated_bytes") or 0)
                    known.by_rank[rank] = max(held, known.by_rank.get(rank, 0))
        if not known.by_rank:
            return 0, 0
        rank = max(known.by_rank, key=known.by_rank.__getitem__)
        return rank, known.by_rank[rank]
