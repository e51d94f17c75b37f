"""Which rank does what, and the process groups it talks in: built once per worker, handed on as a parameter.

World = data x ring x ulysses, Ulysses innermost, so that neighbouring ranks (the fast links) exchange heads.
For data=1, ring=2, ulysses=2:

    rank      0  1  2  3
    ring      0  0  1  1        ring groups     {0,2} {1,3}
    ulysses   0  1  0  1        ulysses groups  {0,1} {2,3}      sequence group {0,1,2,3}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch.distributed as dist

from planner.errors import ConfigError
from planner.types import ParallelDegrees

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """The place of one rank. A group of one rank is None: there is nobody to talk to."""

    degrees: ParallelDegrees
    rank: int
    data_group: dist.ProcessGroup | None = None  # same part of other rows
    sequence_group: dist.ProcessGroup | None = None  # the other parts of the same row
    ring_group: dist.ProcessGroup | None = None
    ulysses_group: dist.ProcessGroup | None = None

    @property
    def world(self) -> int:
        return self.degrees.world

    @property
    def data_rank(self) -> int:
        return self.rank // self.degrees.sequence

    @property
    def ring_rank(self) -> int:
        return self.rank % self.degrees.sequence // self.degrees.ulysses

    @property
    def ulysses_rank(self) -> int:
        return self.rank % self.degrees.ulysses

    def agree(self, choice: T) -> T:
        """What rank 0 chose. Collective over the world."""
        if self.world == 1:
            return choice
        choices = [choice]
        dist.broadcast_object_list(choices, src=0)
        return choices[0]

    def require(self, axis: str, degree: int) -> None:
        """What an optimization asks for must be what the mesh was built for.

        Raises:
            ConfigError: it is not.
        """
        built = getattr(self.degrees, axis)
        if built != degree:
            raise ConfigError(
                f"{axis} degree {degree} was asked for, but the processes are laid out for {built}.",
                why="The mesh is built from the resolved parallel degrees.",
                fix=f"Set {axis}: {built}, or resolve the preset again.",
            )


def build_mesh(degrees: ParallelDegrees, *, rank: int, world: int) -> Mesh:
    """Collective when world > 1: every rank of the initialised default group calls it.

    Raises:
        ConfigError: data * ring * ulysses != world.
    """
    if degrees.world != world:
        raise ConfigError(
            f"The parallel degrees need {degrees.world} processes, but {world} were started.",
            why=f"data {degrees.data} x ring {degrees.ring} x ulysses {degrees.ulysses} = {degrees.world}.",
            fix=f"Start {degrees.world} processes, or choose degrees whose product is {world}.",
        )
    data, ring, ulysses, sequence = degrees.data, degrees.ring, degrees.ulysses, degrees.sequence
    rows = [range(first, first + sequence) for first in range(0, world, sequence)]
    return Mesh(
        degrees=degrees,
        rank=rank,
        data_group=_own_group([range(part, world, sequence) for part in range(sequence)], data, rank),
        sequence_group=_own_group(rows, sequence, rank),
        ring_group=_own_group([row[part::ulysses] for row in rows for part in range(ulysses)], ring, rank),
        ulysses_group=_own_group(
            [row[part : part + ulysses] for row in rows for part in range(0, sequence, ulysses)], ulysses, rank
        ),
    )


def _own_group(all_ranks: list[range], size: int, rank: int) -> dist.ProcessGroup | None:
    """Every rank creates every group, in the same order, as torch demands, and keeps its own."""
    if size == 1:
        return None
    groups = [(ranks, dist.new_group(list(ranks))) for ranks in all_ranks]
    return next(group for ranks, group in groups if rank in ranks)
