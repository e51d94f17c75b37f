"""Plans of the shipped presets of one GPU, and of a model with windows in every layer, against recorded dry runs.

After a change of the trainer or of the libraries, with the names that the file has:
python benchmarks/dry_run.py benchmarks/results/DATE-dry-run-presets.csv PRESET ... mistralai/Mistral-7B-v0.1
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import pytest

from app.services.verify import Verified, cases_of, compare

RECORDED = Path(__file__).parents[2] / "benchmarks" / "results" / "2026-11-30-dry-run-presets.csv"
WINDOWED = "mistralai/Mistral-7B-v0.1"


def _read() -> dict[tuple[str, str], dict[str, int]]:
    by_case: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    with RECORDED.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["instant"] != "peak":
                by_case[row["model"], row["config"].removeprefix("layer engine: ")][row["instant"]] = int(
                    row["dry_run_bytes"]
                )
    return by_case


RECORDS = _read()
PRESETS = [title for model, title in RECORDS if model != WINDOWED]


def compared(name: str) -> list[Verified]:
    return [compare(case, RECORDS[case.resolved.model.name, case.title]) for case in cases_of((name,))]


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_off_at_no_instant_and_its_peak_within_a_fifth_of_a_percent(name: str) -> None:
    (one,) = compared(name)
    assert [(difference.instant, f"{difference.error:+.2%}") for difference in one.off] == []
    assert abs(one.peak.error) <= 0.002
    assert max(abs(difference.error) for difference in one.differences) <= 0.002


def test_there_are_presets_of_both_engines() -> None:
    assert len(PRESETS) >= 16
    assert {one.case.resolved.config.engine for name in PRESETS for one in compared(name)} == {"module", "layer"}


def test_windows_of_every_layer() -> None:
    at = {
        (one.case.label, difference.instant): abs(difference.error)
        for one in compared(WINDOWED)
        for difference in one.differences
        if difference.instant in ("attention_backward", "layer_forward", "evaluation_forward")
    }
    assert max(at.values()) <= 0.001, at
