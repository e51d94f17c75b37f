from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.distributed.ranks import RankPool


@pytest.fixture(scope="session")
def run_ranks() -> Iterator[Callable[..., list[Any]]]:
    """run_ranks(program, world, *args) -> one answer a rank; four processes serve the whole session."""
    pool = RankPool(4)
    yield pool.run
    pool.close()
