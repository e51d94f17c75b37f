"""app/views: the same plan in words, rows, bars and text; every shown number adds up."""

from dataclasses import replace
from typing import get_args

import pytest

from app.views import plan_view
from app.views.footprint import bar_cells, bar_scale, footprint_of
from app.views.parts import INSTANT_LABELS, PART_STYLES, changes_words, combination_words
from app.views.text import legend_text, plan_text
from planner.types import INSTANTS, OptimizationSetting, Part
from tests.app.plans import GIB, gpu_plan, plan


def test_segments_and_part_rows_add_up_to_used_memory():
    gpu = gpu_plan()
    assert sum(segment.bytes for segment in footprint_of(gpu).segments) == gpu.used_bytes
    assert sum(row.bytes for row in plan_view.part_rows(gpu)) == gpu.used_bytes
    assert sum(row.share for row in plan_view.part_rows(gpu)) == pytest.approx(1)


def test_every_part_has_its_own_pattern_letter_and_colour():
    styles = PART_STYLES.values()
    for attribute in ("fill", "letter", "color", "label"):
        assert len({getattr(style, attribute) for style in styles}) == len(styles)
    assert set(PART_STYLES) == set(get_args(Part))
    assert set(INSTANT_LABELS) == set(INSTANTS)
    assert all(len(style.fill) == 1 and style.letter.isascii() for style in styles)


def test_a_sum_is_as_certain_as_its_weakest_term():
    rows = {row.label: row for row in plan_view.part_rows(gpu_plan())}
    assert rows["weights"].basis == "exact"
    assert rows["runtime"].basis == "assumed"


def test_bar_shows_each_part_and_the_limit():
    footprint = footprint_of(gpu_plan())
    cells = bar_cells(footprint, width=60, scale_bytes=bar_scale((footprint,)), ascii_only=True)
    text = "".join(cell.text for cell in cells)
    assert len(text) == 60
    assert text.count("|") == 1
    for segment in footprint.segments:
        assert segment.style.letter in text
    assert text.count("W") / text.count("L") == pytest.approx(14 / 4, rel=0.3)


def test_a_line_leads_from_what_is_used_to_the_upper_end_of_the_band():
    footprint = footprint_of(gpu_plan(usable_gib=40))
    scale = bar_scale((footprint,))
    text = "".join(cell.text for cell in bar_cells(footprint, width=200, scale_bytes=scale, ascii_only=True))
    beyond = footprint.band_bytes[1] - footprint.used_bytes
    assert text.count("-") == pytest.approx(200 * beyond / scale, abs=1)
    assert text.index("-") == text.rindex("R") + 1


def test_bar_marks_what_lies_beyond_the_limit():
    footprint = footprint_of(gpu_plan(tokens=32768))
    text = "".join(c.text for c in bar_cells(footprint, width=60, scale_bytes=bar_scale((footprint,))))
    assert text.index("|") < text.index("X")
    assert text.count("X") == pytest.approx(60 * footprint.over_bytes / bar_scale((footprint,)), abs=1.5)


@pytest.mark.parametrize("width", [0, 1, 2, 3, 7])
def test_bar_survives_any_width(width):
    footprint = footprint_of(gpu_plan(tokens=65536))
    assert len(bar_cells(footprint, width=width, scale_bytes=bar_scale((footprint,)))) == width


def test_verdict_says_how_much_is_missing():
    fits = plan_view.verdict_view(plan())
    assert fits.word == "TIGHT"
    assert "21.5 GiB (21.0 GiB to 22.0 GiB) of 22.0 GiB usable, 98 %" in fits.sentence
    over = plan_view.verdict_view(plan(tokens=16384))
    assert over.word == "OVER"
    assert "of 22.0 GiB usable: 4.50 GiB too much" in over.sentence


def test_terms_carry_formula_basis_and_life():
    rows = {row.key: row for row in plan_view.term_rows(gpu_plan())}
    assert rows["logits.loss_gradient"].label == "logits: loss gradient"
    assert rows["logits.loss_gradient"].instants == "backward of the loss"
    assert rows["weights.base"].instants == "always"
    assert rows["runtime.context"].basis == "assumed"
    assert "gradients.lora" not in rows  # not alive at the peak


def test_instants_name_the_peak_once():
    rows = plan_view.instant_rows(gpu_plan())
    assert [row.instant for row in rows] == list(INSTANTS)
    assert [row.label for row in rows if row.is_peak] == ["backward of the loss"]


def test_alternatives_are_compared_with_the_plan_at_hand():
    first, second = plan_view.alternative_rows(plan())
    assert (first.rank, first.verdict, first.speed) == (1, "FITS", "1.25x")
    assert first.combination == "LoRA r64 + checkpointing + fused loss"
    assert (first.difference, second.difference) == ("+ fused loss", "+ ring 2")
    assert second.changes_words == "ring: 2, fused_loss: null"


def test_alternatives_of_the_same_optimizations_differ_in_their_words():
    checkpointing = OptimizationSetting(
        name="gradient_checkpointing", knobs=(("save_attention", False), ("kept_layers", 0))
    )
    other = replace(checkpointing, knobs=(("save_attention", True), ("kept_layers", 5)))
    found = replace(
        plan().alternatives[0], optimizations=(other,),
        changes=(("gradient_checkpointing", {"save_attention": True, "kept_layers": 5}), ("optim", "adamw_8bit")),
    )  # fmt: skip
    words = plan_view.difference_of((checkpointing,), found)
    assert words == "checkpointing (save_attention: true, kept_layers: 5), optim: adamw_8bit"


def test_command_is_quoted_for_a_shell():
    command = plan_view.command_text("my preset", {"max_length": 16384, "lora": {"rank": 8}, "name": "$(touch x)"})
    assert command == (
        "longfit train 'my preset' --set max_length=16384 --set 'lora={rank: 8}' --set 'name=$(touch x)'"
    )


def test_words_for_nothing():
    assert combination_words(()) == "full fine-tuning, nothing else"
    assert changes_words(()) == "no change"


@pytest.mark.parametrize("ascii_only", [False, True])
def test_text_holds_every_number_a_person_needs(ascii_only):
    text = plan_text(plan(), ascii_only=ascii_only, explain=True)
    for fact in (
        "TIGHT: 21.5 GiB (21.0 GiB to 22.0 GiB) of 22.0 GiB usable",
        "peak at: backward of the loss",
        "world 1 = data 1 x ring 1 x ulysses 1",
        "= 65,536 tokens a step",
        "2,048 tokens/s",
        "warning: Your longest row is 412 tokens;",
        "LoRA r64 + checkpointing + fused loss",
        "= 4*V*T with T = 8192",
    ):
        assert fact in " ".join(text.split())
    assert text.isascii() is ascii_only


def test_equal_ranks_are_drawn_once():
    assert plan_text(plan(tokens=16384, world=2)).count("GPU 0") == 1
    assert "GPU 1" not in plan_text(plan(tokens=16384, world=2))


def test_legend_names_every_part_and_mark():
    text = legend_text()
    assert len(text.splitlines()) == len(PART_STYLES) + 3
    assert all(f"{style.fill} {style.label}: {style.meaning}" in text for style in PART_STYLES.values())
    assert "band" in text
    assert legend_text(ascii_only=True).isascii()


def test_difference_to_a_pinned_plan():
    assert plan_view.difference_words(plan(), plan(tokens=16384)) == ("+5.00 GiB against the pinned plan, speed 1.00x")
    assert plan(tokens=16384).worst_gpu.used_bytes - plan().worst_gpu.used_bytes == 5 * GIB
