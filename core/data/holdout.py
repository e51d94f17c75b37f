"""The evaluation split: rows held out of the training data, by content, repeatably. Called by prepare."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from core.data.order import random_keys
from core.data.store import StoreWriter, TokenStore
from planner.errors import ConfigError


def hold_out(
    whole: TokenStore, row_keys: np.ndarray, fraction: float, seed: int, folder: Path
) -> tuple[TokenStore, TokenStore, int]:
    """Copy ``whole`` into folder/train and folder/eval; returns both and the number of distinct rows held out.

    Rows of equal content, and all pieces of one row, go to the same side, so no evaluation row was trained on. The
    choice depends on content and seed, not on the order of the file: rows added later move no other row far.

    Args:
        row_keys: (num_samples,) uint64, equal exactly for equal rows.
        fraction: of the distinct rows, rounded, at least one and never all.
    Raises:
        ConfigError: fewer than two distinct rows.
    """
    distinct = np.unique(row_keys)
    if len(distinct) < 2:
        raise ConfigError(
            f"eval_fraction {fraction} cannot hold rows out of {len(distinct)} distinct row.",
            why="One row would have to be trained on and kept back at the same time.",
            fix="Give more rows, or data: {eval: [another file]}.",
        )
    count = min(max(1, round(fraction * len(distinct))), len(distinct) - 1)
    order = np.argsort(random_keys(distinct, seed, "eval"), kind="stable")
    is_held_out = np.isin(row_keys, distinct[order[:count]])
    train = _copy(whole, np.flatnonzero(~is_held_out), folder / "train")
    return train, _copy(whole, np.flatnonzero(is_held_out), folder / "eval"), count


def _copy(whole: TokenStore, samples: np.ndarray, path: Path) -> TokenStore:
    with StoreWriter(path) as writer:
        for index in samples.tolist():
            source, line = whole.origins[index].tolist()
            writer.add(*whole.sample(index), source=source, line=line)
        return writer.finish(whole.sources)
