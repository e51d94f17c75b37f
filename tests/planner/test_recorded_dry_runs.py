"""Today's plans against the recorded dry runs of ten models of six families: mean at most 0.3 %, worst 1 %.

After a change of the trainer or of the libraries: python benchmarks/dry_run.py benchmarks/results/DATE-dry-run.csv
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from statistics import mean

import pytest

from app.services.verify import Verified, cases_of, compare

RECORDED = Path(__file__).parents[2] / "benchmarks" / "results" / "2026-11-29-dry-run.csv"


@pytest.fixture(scope="module")
def verified() -> list[Verified]:
    by_case: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    with RECORDED.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["instant"] != "peak":
                by_case[row["model"], row["config"]][row["instant"]] = int(row["dry_run_bytes"])
    cases = {(case.resolved.model.name, case.title): case for case in cases_of(())}
    assert set(cases) == set(by_case), "record the dry runs again"
    return [compare(case, by_case[key]) for key, case in cases.items()]


def test_it_is_forty_configurations_of_six_families_at_least(verified: list[Verified]) -> None:
    assert len(verified) >= 40
    assert len({one.case.resolved.model.family for one in verified}) >= 6


def test_peaks_are_within_a_third_of_a_percent_in_the_mean_and_one_at_worst(verified: list[Verified]) -> None:
    errors = [abs(one.peak.error) for one in verified]
    assert mean(errors) <= 0.003
    assert max(errors) <= 0.01


def test_no_instant_is_off(verified: list[Verified]) -> None:
    off = {
        (one.case.resolved.model.name, one.case.title, difference.instant): f"{difference.error:+.2%}"
        for one in verified
        for difference in one.off
    }
    assert off == {}
