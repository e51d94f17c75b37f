"""What a pasted text is, and what is read out of it, before anything is translated."""

from __future__ import annotations

import pytest

from app.services.importing.command import read_arguments
from app.services.importing.imported import import_text
from app.services.importing.paste import read_paste


def written(text: str) -> list[str]:
    return [setting.written for setting in read_paste(text).settings]


@pytest.mark.parametrize(
    ("text", "program", "verb"),
    [
        ("swift sft --model X", "swift", "sft"),
        ("/opt/venv/bin/swift pt --model X", "swift", "pt"),
        ("python -m swift.cli.sft --model X", "swift", "sft"),
        ("torchrun --nproc_per_node 2 swift/cli/sft.py --model X", "swift", "sft"),
        ("sft --model X", "swift", "sft"),
        ("llamafactory-cli train --stage sft", "llamafactory", "train"),
        ("accelerate launch -m axolotl.cli.train x.yml --a 1", "axolotl", "train"),
        ("trl sft --model_name_or_path X", "trl", "sft"),
        ("deepspeed train.py --model_name_or_path X", "script", "script"),
        ("longfit sft --model X", "longfit", "sft"),
        ("swift rlhf --rlhf_type dpo", "swift", "rlhf"),
        ("Taylor swift is 34 --age 34", "", ""),
    ],
)
def test_the_program_is_found(text, program, verb):
    pasted = read_paste(text)
    assert (pasted.program, pasted.verb) == (program, verb)


def test_the_training_command_of_several_is_taken_and_the_other_named():
    pasted = read_paste("pip install ms-swift -U\nswift sft --model X \\\n --dataset a\nswift infer --adapters out")
    assert written("swift sft --model X && swift infer --adapters out") == ["--model X"]
    assert [setting.written for setting in pasted.settings] == ["--model X", "--dataset a"]
    assert pasted.others == ("swift infer",)


def test_lines_that_begin_with_a_flag_belong_to_the_command_above():
    assert written("swift sft\n  --model X\n\n  --dataset a b\necho done") == ["--model X", "--dataset a b"]


def test_files_stray_words_and_redirections_are_told_apart():
    pasted = read_paste("llamafactory-cli train a.yaml b learning_rate=1e-5 2>&1 | tee log --x 1")
    assert pasted.files == ("a.yaml",)
    assert pasted.stray == ("b",)
    assert [(s.name, s.value) for s in pasted.settings] == [("learning_rate", "1e-5")]


def test_values_keep_what_quotes_hold_and_lose_what_is_only_dirt():
    pasted = read_paste("swift sft --dataset 'a b.jsonl' c.jsonl, ✅ --n '' --m -1 --flag --k=v=w")
    assert {s.name: s.value for s in pasted.settings} == {
        "dataset": ("a b.jsonl", "c.jsonl"), "n": "", "m": "-1", "flag": True, "k": "v=w",
    }  # fmt: skip


def test_variables_are_put_in_where_a_shell_would():
    text = "export N=8\nLEN=${N}192 swift sft --max_length $LEN --system '$LEN' --x ${UNSET:-3} --y $UNSET"
    assert {s.name: s.value for s in read_paste(text).settings} == {
        "max_length": "8192", "system": "$LEN", "x": "3", "y": "$UNSET",
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "base_model: X\nsequence_len: 512\n", '{"base_model": "X", "sequence_len": 512}',
        "base_model：X\nsequence_len： 512",
        "# a comment\n\n```yaml\nbase_model: X\nsequence_len: 512\n```\n",
    ],
)  # fmt: skip
def test_documents_in_their_forms(text):
    pasted = read_paste(text)
    assert pasted.source == "document"
    assert [(s.name, s.value) for s in pasted.settings] == [("base_model", "X"), ("sequence_len", 512)]


def test_directives_are_kept_apart_and_later_have_the_last_word(facts):
    text = '# longfit: fake_parallel=4\n# longfit: lora.rank=3\n# longfit: packing=null\n# longfit: name="Mine"\n'
    text += "swift sft --model Qwen/Qwen3-8B --dataset a.jsonl --max_length 512 --packing true --lora_rank 9\n"
    assert read_paste(text).directives == {"fake_parallel": 4, "lora.rank": 3, "packing": None, "name": "Mine"}
    preset = import_text(text, facts=facts).preset
    assert preset.name == "mine"
    assert preset.values["fake_parallel"] == 4
    assert preset.values["lora"]["rank"] == 3
    assert "packing" not in preset.values


def test_python_is_read_and_never_run():
    pasted = read_paste("import os\nos.abort()\nargs = SFTConfig(max_length=2 ** 10, packing=True, **more)\n")
    assert [(s.name, s.value) for s in pasted.settings] == [("max_length", "${2 ** 10}"), ("packing", True)]


def test_arguments_that_a_shell_has_split_need_no_second_splitting():
    pasted = read_arguments(["--system", "a 'b' \\ --c", "--dataset", "x", "y", "--n", "-1", "run.yaml"])
    assert {s.name: s.value for s in pasted.settings}["system"] == "a 'b' \\ --c"
    assert pasted.settings[-1].value == ("-1", "run.yaml")


@pytest.mark.parametrize("text", ["", "   \n", "hello world", "- a\n- b\n", "42", "swift sft", "😀"])
def test_nothing_to_import_says_so(text, facts):
    imported = import_text(text, facts=facts)
    assert imported.preset is None
    (finding,) = imported.findings
    assert finding.kind == "unknown"
    assert "swift sft" in finding.fix


def test_a_longfit_preset_stays_what_it_is(facts):
    text = "name: mine\nmodel: Qwen/Qwen3-8B\nmax_length: 512\nlora: {rank: 4}\ndata: {train: [a.jsonl]}\n"
    imported = import_text(text, facts=facts)
    assert (imported.dialect, imported.preset.name) == ("longfit", "mine")
    assert imported.preset.values["lora"] == {"rank": 4}


@pytest.mark.parametrize("verb", ["rlhf", "export", "deploy"])
def test_a_verb_without_counterpart_is_told_with_all_its_flags(verb, facts):
    imported = import_text(f"swift {verb} --model X --adapters Y", facts=facts)
    assert imported.preset is None
    (finding,) = imported.findings
    assert finding.kind == "impossible"
    assert finding.flags == ("--model X", "--adapters Y")


def test_the_model_that_was_never_released_is_kept_and_its_relatives_named(facts):
    imported = import_text("swift sft --model Qwen/Qwen3-7B --dataset a.jsonl --max_length 512", facts=facts)
    assert imported.preset.values["model"] == "Qwen/Qwen3-7B"
    finding = next(f for f in imported.findings if "Qwen/Qwen3-7B" in f.what)
    assert finding.kind == "unknown"
    assert "Qwen/Qwen3-8B" in finding.fix


def test_what_will_go_wrong_is_said_before_anything_loads(facts):
    text = "NPROC_PER_NODE=2 swift sft --model Qwen/Qwen2.5-7B-Instruct --dataset a.jsonl --max_length 40000 "
    text += "--sequence_parallel_size 2 --gradient_accumulation_steps 4 --eval_steps 10"
    findings = import_text(text, facts=facts).findings
    length = next(f for f in findings if "40000" in f.what)
    assert length.kind == "impossible"
    assert "yarn" in length.fix
    noisy = next(f for f in findings if "rows" in f.what)
    assert noisy.kind == "risk"
    assert "2 GPUs share a row" in noisy.why
    assert "gradient_accumulation_steps=16" in noisy.fix
    assert next(f for f in findings if "held-out" in f.what).kind == "risk"
