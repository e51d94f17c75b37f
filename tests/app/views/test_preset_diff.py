"""What differs between two presets, key by key; names are no setting."""

from dataclasses import replace

from app.views.preset_diff import diff_rows, diff_text
from planner.types import Preset

ONE = Preset(
    name="one", description="", hardware={"gpu": "A10", "count": 1},
    values={"model": "m", "max_length": 8192, "lora": {"rank": 8}, "packing": True, "data": {"train": ["a.jsonl"]}},
)  # fmt: skip
OTHER = replace(
    ONE, name="other", hardware={"gpu": "A10", "count": 2},
    values={"model": "m", "max_length": 8192, "lora": {"rank": 16},
            "data": {"train": ["a.jsonl"], "eval_fraction": 0.1}},
)  # fmt: skip


def test_only_what_differs_is_listed_by_dotted_keys():
    assert diff_rows(ONE, OTHER) == (
        ("hardware.count", "1", "2"), ("lora.rank", "8", "16"), ("packing", "true", "-"),
        ("data.eval_fraction", "-", "0.1"),
    )  # fmt: skip


def test_equal_presets_say_the_same_whatever_they_are_called():
    assert diff_rows(ONE, replace(ONE, name="x", description="y")) == ()
    assert diff_text(ONE, replace(ONE, name="x")) == "one and x say the same."


def test_the_text_has_a_line_for_each_key():
    assert diff_text(ONE, OTHER).splitlines()[:3] == ["one -> other", "", "hardware.count: 1 -> 2"]
