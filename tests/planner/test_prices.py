"""Every price belongs to a card of the catalog, and the catalog shows it."""

from __future__ import annotations

from planner.catalog.gpus import GPUS
from planner.catalog.prices import DOLLARS_PER_HOUR


def test_every_price_is_of_a_card_that_exists() -> None:
    assert set(DOLLARS_PER_HOUR) <= set(GPUS)
    for name, gpu in GPUS.items():
        assert gpu.dollars_per_hour == DOLLARS_PER_HOUR.get(name)


def test_a_card_with_more_memory_of_the_same_generation_costs_no_less() -> None:
    assert DOLLARS_PER_HOUR["H200"] > DOLLARS_PER_HOUR["H100-80G"] > DOLLARS_PER_HOUR["A100-80G"]
