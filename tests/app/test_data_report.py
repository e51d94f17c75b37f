"""The data report as text: every number of the report, targets marked without colour, no control characters."""

from __future__ import annotations

from typing import Any

from app.views.data_report import (
    data_report_text,
    data_summary,
    fate_rows,
    histogram_rows,
    length_words,
    packing_words,
    preview_lines,
    printable,
    progress_words,
    set_rows,
    token_words,
)


def part(**changes: Any) -> dict[str, Any]:
    return {
        "max_length": 64,
        "rows": {"read": 10, "kept": 6, "truncated": 2, "split": 0, "dropped": 0, "bad": 2, "blank_lines": 3},
        "samples": 8,
        "tokens": {"read": 500, "kept": 400, "targets": 100},
        "lengths": {
            "min": 10, "median": 40, "mean": 50.2, "p95": 90, "max": 120,
            "histogram": [{"upto": 64, "rows": 6}, {"upto": 128, "rows": 2}],
        },
        "longest_row": {"tokens": 120, "origin": "a.jsonl:3"},
        "packing": {"length": 64, "rows_without": 8, "rows_with": 7, "fill_without": 0.78, "fill_with": 0.89},
        "shapes": {"messages": 7, "alpaca": 1},
        "notes": {"unanswered end cut": 1},
        "problems": {
            "count": 2, "by_kind": {"blank": 2},
            "first": [{"file": "a.jsonl", "line": 3, "kind": "blank", "reason": "the answer is blank"}],
        },
        "files": [{"path": "a.jsonl", "rows": 10, "bad": 2, "blank_lines": 3}],
        "sets": [{"spec": "a.jsonl", "weight": None, "available": None, "rows": 10, "tokens": 400}],
        "remarks": ["2 of 8 rows (25%) are longer than max_length 64 and were cut."],
        "preview": [
            {"origin": "a.jsonl:1", "shape": "messages", "tokens": 12, "targets": 2,
             "segments": [["<user>Hi\n<assistant>", False], ["Hello.\x1b[31m<end>", True], ["\n", False]]},
        ],
        **changes,
    }  # fmt: skip


def test_fates_add_up_and_zero_ones_are_left_out() -> None:
    assert fate_rows(part()) == [
        ("read", "10", ""),
        ("kept whole", "6", "60 %"),
        ("cut to max_length", "2", "20 %"),
        ("bad", "2", "20 %"),
        ("blank lines", "3", "ignored"),
    ]


def test_words_hold_the_numbers() -> None:
    assert token_words(part()) == "400 tokens kept of 500 read, 100 to be predicted (25 %)"
    assert length_words(part()) == "tokens per row: 10 to 120, median 40, mean 50.2, 95 % are at most 90"
    assert packing_words(part()) == "rows of max_length 64: 8 (78 % full) without packing, 7 (89 % full) with packing"


def test_the_longest_bar_fills_the_width_and_the_smallest_is_seen() -> None:
    assert histogram_rows(part(), width=12, ascii_only=True) == [("64", "6", "#" * 12), ("128", "2", "####")]


def test_targets_are_marked_without_colour_and_the_terminal_is_not_steered() -> None:
    assert preview_lines(part()["preview"][0]) == [
        "a.jsonl:1  messages, 12 tokens, 2 to be predicted",
        "    <user>Hi",
        "    <assistant>",
        "  > Hello.\\x1b[31m<end>",
        "    \\n",
    ]
    assert printable("a\tb\x00\x9b") == "a\tb\\x00\\x9b"


def test_the_summary_before_training_has_counts_and_remarks() -> None:
    assert data_summary({"train": part()}).splitlines() == [
        "data            10 rows, 2 cut to max_length, 2 bad; 400 tokens kept of 500 read, 100 to be predicted (25 %)",
        "                2 of 8 rows (25%) are longer than max_length 64 and were cut.",
    ]


def test_progress_is_a_bar_where_the_size_is_known() -> None:
    assert progress_words(1200, "a.jsonl", 0.25, width=8) == "[##......]  25 %  1,200 rows read, now a.jsonl"
    assert progress_words(1200, "hf::org/name", None) == "1,200 rows read, now hf::org/name"


def test_the_whole_text() -> None:
    report = {
        "train": part(held_out_rows=1),
        "eval": None,
        "stores": {"train": {"tokens": 390}, "eval": {"tokens": 10}},
    }
    text = data_report_text(report, rows=1)
    assert text.startswith("train: 7 messages, 1 alpaca\n")
    assert "note: unanswered end cut (1)" in text
    assert "held out for evaluation: 1 distinct rows, 10 tokens; left to train on: 390 tokens" in text
    assert "bad rows\n  a.jsonl:3: the answer is blank" in text
    assert "bad rows" not in data_report_text(report, with_problems=False)
    assert "> Hello" not in data_report_text(report, rows=0)


def test_of_many_files_the_bad_and_the_large_are_listed() -> None:
    files = [{"path": f"{n}.md", "rows": n, "bad": n == 3, "blank_lines": 0} for n in range(25)]
    text = data_report_text({"train": part(files=files), "eval": None, "stores": {}})
    assert "25 files\n  3.md" in text
    assert "24.md" in text
    assert "16.md" not in text
    assert "\n  ...\n" in text


def test_of_several_sets_weight_rows_and_tokens_are_told() -> None:
    sets = [
        {"spec": "a.jsonl", "weight": 0.7, "available": 1000, "rows": 700, "tokens": 100},
        {"spec": "b.jsonl", "weight": 0.3, "available": 300, "rows": 300, "tokens": 300},
    ]
    assert set_rows(part(sets=sets)) == [
        ("a.jsonl", "weight 70 %", "700 rows of 1,000", "100 tokens (25 %)"),
        ("b.jsonl", "weight 30 %", "300 rows of 300", "300 tokens (75 %)"),
    ]
    assert "2 sets\n  a.jsonl  weight 70 %" in data_report_text({"train": part(sets=sets), "eval": None})
