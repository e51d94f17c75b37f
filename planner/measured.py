"""Which planned instants lie in what a worker can tell apart. Read by views, rehearsals and post-mortems."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from planner.types import Instant

BASE_WEIGHTS = "weights.base"  # key of their term (planner/parts/static.py)

MEASURED_INSTANTS: Mapping[str, tuple[Instant, ...]] = {
    "load": ("load",),
    "forward": ("layer_forward", "forward_loss"),
    "backward": ("loss_backward", "layer_backward", "attention_backward", "backward_end"),
    "step": ("optimizer_step",),
    "evaluation": ("evaluation_forward", "evaluation"),
    "save": ("save",),
}


def is_comparable(moment: str, terms: Iterable[tuple[str, Collection[str]]]) -> bool:
    """Whether what a plan says of a measured moment can be held against the measurement; ``terms``: keys, instants.

    Not the loading of weights that are mapped and first used afterwards (planner/parts/cpu.py): how much of the file is
    resident by then is up to the page cache. The same 513 MiB counted 14 MiB from a tmpfs, and 152 from an ext4 that
    kept it in 2 MiB pages, 134 of them mapped whole where a tensor's first bytes were read (Linux 6.18, smaps).
    """
    return moment != "load" or all("load" in instants for key, instants in terms if key == BASE_WEIGHTS)
