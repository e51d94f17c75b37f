"""Findings as people and programs read them."""

from __future__ import annotations

import json
from datetime import date

import pytest

from app.services.importing.finding import MEANINGS, Finding, refuse_impossible
from app.views.findings import (
    MARKS,
    TITLES,
    counts_words,
    finding_rows,
    findings_blocks,
    findings_json,
    findings_text,
    value_words,
)
from planner.errors import ConfigError

FINDINGS = (
    Finding(
        kind="impossible", flags=("--use_galore true", "--galore_rank 64"), what="Left out.", why="Because.", fix="So."
    ),
    Finding(kind="translated", flags=("--lora_rank 64",), keys=(("lora.rank", 64),)),
    Finding(kind="translated", flags=("--packing True",), keys=(("packing", True), ("lora.dropout", None))),
    Finding(kind="implied", keys=(("adam_beta2", 0.95),)),
    Finding(kind="implied", keys=(("learning_rate", 1e-5),)),
    Finding(kind="implied", keys=(("max_length", 32768),), why="the model's own"),
)  # fmt: skip


def test_every_kind_has_its_own_ascii_mark_and_title():
    assert set(MARKS) == set(TITLES) == set(MEANINGS)
    assert len(set(MARKS.values())) == len(MARKS)
    assert all(mark.isascii() and len(mark) == 1 for mark in MARKS.values())


def test_rows_hold_flag_keys_and_sentences():
    rows = finding_rows(FINDINGS)
    assert rows[0].flags == "--use_galore true --galore_rank 64"
    assert rows[0].words == "Left out. Because. So."
    assert rows[2].keys == "packing: true, lora.dropout left out"


def test_text_shows_what_needs_an_eye_first_and_implied_values_together():
    text = findings_text(FINDINGS, width=60)
    assert text.splitlines()[:4] == [
        "Not as written:",
        "  x --use_galore true --galore_rank 64",
        "      Left out. Because. So.",
        "Carried over:",
    ]
    assert "  > --lora_rank 64 -> lora.rank: 64" in text
    assert "  + adam_beta2: 0.95, learning_rate: 1e-05" in text
    assert max(map(len, text.splitlines())) <= 60
    assert findings_text(()) == ""


def test_counts():
    assert counts_words(FINDINGS) == "2 carried over, 3 written down, 1 not as written"


def test_json_is_json_whatever_a_document_held():
    found = findings_json((Finding(kind="unknown", keys=(("model", date(2020, 1, 1)),)), *FINDINGS))
    assert json.loads(json.dumps(found)) == found
    assert found[0]["keys"] == {"model": "2020-01-01"}
    assert found[1] == {
        "kind": "impossible", "flags": ["--use_galore true", "--galore_rank 64"], "keys": {},
        "what": "Left out.", "why": "Because.", "fix": "So.",
    }  # fmt: skip


def test_values_are_written_as_a_preset_has_them():
    assert value_words(["a", True]) == "[a, true]"
    assert value_words({"type": "yarn", "factor": 2.0}) == "{type: yarn, factor: 2}"


def test_strict_stops_at_the_first_impossible_one():
    refuse_impossible(FINDINGS[1:])
    with pytest.raises(ConfigError, match="--use_galore true --galore_rank 64: Left out") as caught:
        refuse_impossible(FINDINGS)
    assert caught.value.fix == "So."


def test_blocks_are_those_of_the_text_and_name_a_role_only_where_an_eye_is_needed():
    blocks = findings_blocks(FINDINGS, width=60)
    assert [(block.kind, block.role) for block in blocks] == [
        ("impossible", "error"),
        ("translated", ""),
        ("implied", ""),
    ]
    text = findings_text(FINDINGS, width=60)
    assert text == "\n".join("\n".join((f"{block.title}:", *block.lines)) for block in blocks)
