"""Whatever a paste has been through, the importer answers; and dirt between flags changes none of them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from app.services.importing.imported import DIALECTS, Imported, import_text
from app.services.importing.paste import read_paste
from tests.app.services.importing.cases import CASES, M7, D
from tests.app.services.importing.conftest import make_facts

FACTS = make_facts(objections=lambda preset: ())
NAMES = sorted({name for dialect in DIALECTS.values() for name in dialect.rules})

words = st.text(st.characters(codec="utf-8"), max_size=12)
dirt = st.sampled_from(
    [
        "\\", "\\\n", "\\ ", " \\ \n", "# note", "# ⇦ key", "✅", "…", "，", "`", "'",
        '"', "“", "$X", "|", "&&", ";", "\t",
        "\u3000", "\u200b", "```", "> log", "2>&1", "&", "{", "}", "[", "]", ":", "=", "--", "-", "—", "\x00", "ENV:",
        "# longfit: a=b",
    ]
)  # fmt: skip
flags = st.builds(
    lambda dash, name, gap: f"{dash}{name}{gap}",
    st.sampled_from(["--", "—", "－－", "-", ""]), st.sampled_from(NAMES), st.sampled_from([" ", "=", ": ", ""]),
)  # fmt: skip
known_values = ["true", "False", "8192", "1e-4", "-1", "'a b'", "a.jsonl#5", '{"type": "yarn"}', "[1, 2]", "９"]
values = st.one_of(words, st.sampled_from(known_values))
heads = st.sampled_from(
    [
        "swift sft ", "NPROC_PER_NODE=2 \\ swift sft \\ ", "llamafactory-cli train ", "trl sft ", "swift infer ",
        "axolotl train x.yml ", "torchrun --nproc_per_node 2 a.py ", "SFTConfig(", "", "model: ",
    ]
)  # fmt: skip
parts = st.lists(st.one_of(flags, values, dirt, words), max_size=30)
pastes = st.builds(lambda head, body: head + " ".join(body), heads, parts)


def is_sound(imported: Imported) -> bool:
    assert imported.findings
    if imported.preset is not None:
        assert imported.preset.name
        assert imported.preset.hardware["count"] >= 1
    return True


@given(st.text())
def test_no_text_raises(text):
    assert is_sound(import_text(text, facts=FACTS))


@settings(max_examples=300)
@given(pastes)
def test_no_dirty_paste_raises_and_no_flag_goes_untold(text):
    imported = import_text(text, facts=FACTS)
    assert is_sound(imported)
    pasted = read_paste(text)
    told = {flag for finding in imported.findings for flag in finding.flags}
    if imported.dialect not in ("", "longfit"):
        assert {setting.written for setting in (*pasted.settings, *pasted.launcher)} <= told


@given(st.sampled_from(CASES), st.integers(0, 400), st.integers(0, 400))
def test_a_paste_that_lost_a_piece_still_gets_an_answer(case, start, length):
    assert is_sound(import_text(case.text[:start] + case.text[start + length :], facts=FACTS))


gaps = st.sampled_from([" ", "  ", " \\ ", " \\\n  ", "\t", " \\   \n", "\u3000", " \u200b", " ✅ ", " ⇦ ", "\r\n"])


@given(st.lists(gaps, min_size=6, max_size=6))
def test_dirt_between_flags_changes_no_flag(between):
    line = ["swift sft", M7, D, "--max_length 8192", "--packing true", "--lora_rank 64", "--system 'Be brief, 简短。'"]
    text = line[0] + " " + "".join(part + gap for part, gap in zip(line[1:], between, strict=True))
    clean = import_text(" ".join(line), facts=FACTS)
    assert import_text(text, facts=FACTS).preset == clean.preset


def test_a_document_with_a_cycle_or_a_date_is_text():
    for text in (
        "a: &x [*x]\nmodel: Qwen/Qwen3-8B\n",
        "model: 2020-01-01\ndataset: 12:30:00\n",
        "model: !!python/none x\n",
    ):
        assert is_sound(import_text(text, facts=FACTS))
