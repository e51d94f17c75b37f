"""The ladder in words: every change adds up, the floor has its arithmetic, what cannot be run is marked."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from app.cli.main import main
from app.services.hardware import parse_cluster, with_memory_limit
from app.services.planning import ladder_for, plan_preset
from app.views.ladder_view import floor_lines, ladder_dict, ladder_rows, ladder_text

PRESET = "qwen2.5-7b-8k-1x24g"


@pytest.fixture(scope="module")
def planned():
    found = plan_preset(PRESET, cluster=with_memory_limit(parse_cluster("A10"), 1_900_000_000))
    return found.plan, ladder_for(found.resolved)


def test_changes_of_the_parts_add_up(planned) -> None:
    rows = ladder_rows(planned[1])
    for before, after in pairwise(rows):
        assert after.change_bytes == after.used_bytes - before.used_bytes
        assert sum(size for _, size in after.by_part) == after.change_bytes
    assert rows[0].step.startswith("LoRA r64")
    assert rows[1].step == "+ checkpointing"
    assert "activations -" in rows[1].changed


def test_the_floor_is_said_with_numbers(planned) -> None:
    words = " ".join(floor_lines(planned[1]))
    assert "2 * 466115584: the layer at work and the one on its way" in words
    assert "2V * d = 2 * 152064 * 3584" in words
    assert "2.02e9 bytes of weights > 1.90e9" in words
    assert "QLoRA" in words


def test_a_rehearsed_rung_shows_what_was_measured(planned) -> None:
    plan, ladder = planned
    measured = {ladder.rungs[2].config.hash(): 21 * 1024**3}
    assert [row.measured_used_bytes is not None for row in ladder_rows(ladder, measured)].count(True) == 1
    text = ladder_text(plan, ladder, measured=measured)
    assert "measured" in text
    assert "21.00" in text


def test_json_has_what_the_table_has(planned) -> None:
    plan, ladder = planned
    answer = json.loads(json.dumps(ladder_dict(plan, ladder), allow_nan=False))
    assert [rung["used_bytes"] for rung in answer["rungs"]] == [rung.used_bytes for rung in ladder.rungs]
    for rung in answer["rungs"]:
        assert sum(rung["bytes_by_part"].values()) == rung["used_bytes"]
    assert answer["minimum"]["weights_bytes"] == 2 * 466_115_584 + 2 * 3584 + 2 * 152_064 * 3584


def test_the_command_prints_it_and_ends_with_3_when_nothing_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", PRESET, "--ladder", "--gpu", "A10"]) == 0
    out = capsys.readouterr().out
    assert "+ checkpointing" in out
    assert "real minimum" in out
    assert main(["plan", PRESET, "--ladder", "--gpu", "A10", "--memory-limit", "1.9GB", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["usable_bytes"] == 1_900_000_000


def test_an_article_s_figure_fits_by_streamed_weights(capsys: pytest.CaptureFixture[str]) -> None:
    """A 7B model in 16 bits at 8K within 5.8 GB, which resident weights of 15.23 GB cannot."""
    assert main(["plan", PRESET, "--ladder", "--gpu", "A10", "--memory-limit", "5.8GB"]) == 0
    assert "+ weight streaming (streamed)" in capsys.readouterr().out


def test_full_fine_tuning_is_named_and_its_optimizer_is_a_rung() -> None:
    found = plan_preset("qwen2.5-0.5b-full-16k-1x24g")
    ladder = ladder_for(found.resolved)
    rows = ladder_rows(ladder)
    assert rows[0].step.startswith("full fine-tuning")
    assert any("optim: " in row.step or "GaLore" in row.step for row in rows)
    assert "full fine-tuning" in floor_lines(ladder)[0]
