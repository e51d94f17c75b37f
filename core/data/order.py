"""Random orders that never change: used for shuffling, sampling, packing ties and the evaluation split.

numpy promises no stable stream across its versions (NEP 19) and Python promises none for ``shuffle``; a resumed run
must see the same order on another machine, so the generator is written out here: splitmix64 of a counter.
"""

from __future__ import annotations

import hashlib

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def random_keys(values: np.ndarray, *seed: int | str) -> np.ndarray:
    """One uniform uint64 per value, a pure function of (value, seed).

    Args:
        values: (n,) uint64 or non-negative integers.
        seed: any integers and words; different tuples give independent keys.
    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014), the mixer of splitmix64.
    """
    text = "\x00".join(str(part) for part in seed)
    offset = np.frombuffer(hashlib.blake2b(text.encode(), digest_size=8).digest(), dtype="<u8")[0]
    with np.errstate(over="ignore"):
        z = (values.astype(np.uint64) + np.uint64(1)) * _GOLDEN + offset
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def shuffled(count: int, *seed: int | str) -> np.ndarray:
    """The numbers 0..count-1 in a random order, (count,) int64."""
    return np.argsort(random_keys(np.arange(count, dtype=np.uint64), *seed), kind="stable")
