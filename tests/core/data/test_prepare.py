"""From files to stores and a report: each row has one fate, the cache is exact, and nothing half-written stays."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from core.data.batches import BatchPlan
from core.data.prepare import Prepared, Request, prepare
from core.data.report import DataRefused
from core.data.store import TokenStore
from core.run.interpreter import child_environment
from planner.errors import ConfigError, EnvironmentProblem
from planner.types import DataConfig
from tests.core.data.templates import DATA


@pytest.fixture
def run(tmp_path: Path, chatml_folder: Path) -> Any:
    """run("name in tests/data" or path, max_length=..., **DataConfig) -> Prepared"""

    def run(train: str | Path, *, max_length: int = 64, seed: int = 42, pack_length: int = 0, **data: Any) -> Prepared:
        spec = str(DATA / train) if isinstance(train, str) and not train.startswith("/") else str(train)
        return prepare(
            Request(
                data=DataConfig(train=(spec,), **data), model=str(chatml_folder), max_length=max_length,
                cache_dir=str(tmp_path / "cache"), seed=seed, pack_length=pack_length,
            )
        )  # fmt: skip

    return run


def rows_of(prepared: Prepared) -> dict[str, int]:
    return prepared.report["train"]["rows"]


def texts_of(store: str, tokenizer: Any) -> list[str]:
    opened = TokenStore(store)
    return [tokenizer.decode(opened.sample(at)[0].tolist()) for at in range(len(opened))]


@pytest.mark.parametrize("policy", ["drop", "truncate_left", "truncate_right", "split"])
def test_each_row_has_one_fate_the_same_with_and_without_packing(run: Any, policy: str) -> None:
    """Bug case B01d: kept + truncated + split + dropped + bad = 7."""
    plain, packed = (run("k01_overlength_mix.jsonl", over_length=policy, pack_length=n) for n in (0, 64))
    rows = rows_of(plain)
    assert rows["read"] == 7 == rows["kept"] + rows["truncated"] + rows["split"] + rows["dropped"] + rows["bad"]
    assert rows == rows_of(packed)
    assert plain.report["train"]["tokens"] == packed.report["train"]["tokens"]
    store = TokenStore(plain.train_store)
    assert plain.report["train"]["tokens"]["kept"] == store.num_tokens
    assert plain.report["train"]["tokens"]["targets"] == store.num_targets
    assert store.lengths.max() <= 64
    plan = BatchPlan(store, packing=True, capacity=64)
    rows_made = [plan.row(0, index) for index in range(plan.num_micro_batches(0))]
    assert sum(row.num_targets for row in rows_made) == store.num_targets
    assert plain.report["train"]["packing"]["rows_with"] == len(rows_made)


def test_prompts_longer_than_max_length_are_refused_with_their_numbers(run: Any) -> None:
    """Bug case B01c: never loss 0.0 and exit 0."""
    with pytest.raises(DataRefused) as caught:
        run("k01_prompt_longer_than_max.jsonl")
    assert "8 of 8 rows" in caught.value.what
    assert "have no trainable token" in caught.value.what
    assert "k01_prompt_longer_than_max.jsonl:8: no trainable token is left of the 1,003" in caught.value.why
    assert "truncate_left" in caught.value.fix
    with pytest.raises(DataRefused, match="8 of 8 rows"):
        run("k01_prompt_longer_than_max.jsonl", on_bad_row="skip")
    kept = run("k01_prompt_longer_than_max.jsonl", over_length="truncate_left")
    assert rows_of(kept)["truncated"] == 8
    assert kept.report["train"]["tokens"]["targets"] > 0


def test_bad_rows_stop_the_run_or_are_skipped_with_counts(run: Any) -> None:
    """Bug cases B04i and B04k."""
    with pytest.raises(DataRefused) as caught:
        run("k04_malformed.jsonl")
    lines = caught.value.why.splitlines()
    assert [line.split(":")[1] for line in lines] == ["3", "4", "6", "7", "8"]
    assert lines[3].endswith("k04_malformed.jsonl:7: the key 'output' appears twice")
    assert "on_bad_row: skip} to train on the other 4" in caught.value.fix
    skipped = run("k04_malformed.jsonl", on_bad_row="skip")
    assert rows_of(skipped) | {"split": 0} == {
        "read": 9, "kept": 4, "truncated": 0, "split": 0, "dropped": 0, "bad": 5, "blank_lines": 2,
    }  # fmt: skip
    assert skipped.report["train"]["notes"] == {"NUL characters in the content, kept": 1}
    blanks = run("k04_alpaca_blank_cells.csv", on_bad_row="skip")
    assert (rows_of(blanks)["kept"], blanks.report["train"]["problems"]["by_kind"]) == (2, {"blank": 1})
    flips = run("k04_type_flip.jsonl", on_bad_row="skip")
    assert (rows_of(flips)["kept"], rows_of(flips)["bad"]) == (4, 7)
    assert flips.report["train"]["shapes"] == {"alpaca": 3, "messages": 1}


def test_all_bad_rows_are_listed_in_few_lines(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "fine"}\n' + "broken\n" * 50 + '{"text": "fine"}\nbroken\n')
    with pytest.raises(DataRefused) as caught:
        run(path)
    (listed,) = caught.value.why.splitlines()
    assert listed.split(":")[1] == "2-51,53"
    path.write_text('{"text": "fine"}\nbroken\n' * 50)
    with pytest.raises(DataRefused) as caught:
        run(path)
    listed, more = caught.value.why.splitlines()
    assert listed.split(":")[1] == ",".join(str(line) for line in range(2, 42, 2)) + ",..."
    assert more.startswith("and 30 more; --json names")
    assert [item["line"] for item in caught.value.report["problems"]["first"]] == list(range(2, 102, 2))


def test_files_of_other_forms_give_the_same_tokens(run: Any, tmp_path: Path, chatml: Any) -> None:
    """Bug case B04g: byte order mark, CRLF, JSON array."""
    crlf = DATA / "k04_crlf_unicode.jsonl"
    lf = tmp_path / "lf.jsonl"
    lf.write_bytes(crlf.read_bytes().replace(b"\r\n", b"\n"))
    array = tmp_path / "array.json"
    array.write_text(json.dumps([json.loads(line) for line in lf.read_text("utf-8").splitlines()]))
    stores = [TokenStore(run(path, max_length=512).train_store) for path in (crlf, lf, array)]
    assert stores[0].tokens.tolist() == stores[1].tokens.tolist() == stores[2].tokens.tolist()
    bom = run("k04_bom.jsonl")
    assert len(TokenStore(bom.train_store)) == 3
    assert not any("\ufeff" in text for text in texts_of(bom.train_store, chatml))


def test_the_preview_is_the_text_with_targets_marked(run: Any) -> None:
    prepared = run("k04_crlf_unicode.jsonl", max_length=512)
    first = prepared.report["train"]["preview"][1]
    assert "".join(text for text, _ in first["segments"]) == (
        "<|im_start|>user\nFamily 👨‍👩‍👧‍👦 flag 🏳️‍🌈 and e\u0301<|im_end|>\n<|im_start|>assistant\n"
        "👍🏽 noted — café<|im_end|>\n"
    )
    assert [text for text, is_target in first["segments"] if is_target] == ["👍🏽 noted — café<|im_end|>"]


def test_a_second_call_finds_the_cache_and_every_setting_counts(run: Any, tmp_path: Path) -> None:
    first = run("k02_ga_tail_10.jsonl")
    again = run("k02_ga_tail_10.jsonl")
    assert (first.report["cached"], again.report["cached"]) == (False, True)
    assert first.train_store == again.train_store
    others = [
        run("k02_ga_tail_10.jsonl", max_length=65), run("k02_ga_tail_10.jsonl", train_on="all"),
        run("k02_ga_tail_10.jsonl", system="S"), run("k02_ga_tail_10.jsonl", over_length="drop"),
    ]  # fmt: skip
    assert len({first.train_store, *(other.train_store for other in others)}) == 5
    changed = tmp_path / "k02.jsonl"
    changed.write_text((DATA / "k02_ga_tail_10.jsonl").read_text())
    before = run(changed).train_store
    changed.write_text(changed.read_text().replace("value 63", "value 64"))
    assert run(changed).train_store != before


def test_nothing_stays_behind_when_it_fails(run: Any, tmp_path: Path) -> None:
    with pytest.raises(DataRefused):
        run("k04_malformed.jsonl")
    assert list((tmp_path / "cache" / "data").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_told(
    run: Any, tmp_path: Path, chatml_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("core.data.store.StoreWriter.add", full)
        with pytest.raises(EnvironmentProblem, match="No space left on device; it takes about 6 bytes a token"):
            run("k02_ga_tail_10.jsonl")
    assert list((tmp_path / "cache" / "data").iterdir()) == []
    (tmp_path / "file").write_text("")
    data = DataConfig(train=(str(DATA / "k02_ga_tail_10.jsonl"),))
    with pytest.raises(EnvironmentProblem, match="Not a directory"):
        prepare(Request(data=data, model=str(chatml_folder), max_length=64, cache_dir=str(tmp_path / "file")))


def test_a_file_that_cannot_be_opened_is_a_bad_row(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, opened = tmp_path / "secret.jsonl", Path.open
    path.write_text('{"text": "a"}\n')

    def refuse(self: Path, *rest: Any, **more: Any) -> Any:
        if self == path:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(self, *rest, **more)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DataRefused, match=r"secret\.jsonl:1: cannot be read: Permission denied"):
        run(path)


def test_the_evaluation_split_is_disjoint_and_a_leak_is_told(run: Any, chatml: Any) -> None:
    prepared = run("k02_ga_tail_10.jsonl", eval_fraction=0.2)
    assert prepared.eval_store is not None
    train, held_out = (set(texts_of(store, chatml)) for store in (prepared.train_store, prepared.eval_store))
    assert (len(train), len(held_out), train & held_out) == (8, 2, set())
    assert prepared.report["train"]["held_out_rows"] == 2
    leaking = run("k02_ga_tail_10.jsonl", eval=(str(DATA / "k02_ga_tail_10.jsonl"),))
    assert "10 evaluation rows are training rows as well." in leaking.report["eval"]["remarks"]


def test_remarks_say_what_is_never_reached_and_what_repeats(run: Any) -> None:
    plain = run("k02_ga_tail_10.jsonl", max_length=8192)
    longest = plain.report["train"]["longest_row"]["tokens"]
    assert plain.report["train"]["remarks"] == [
        f"Your longest row is {longest} tokens; max_length 8,192 is never reached."
    ]
    packed = run("k02_ga_tail_10.jsonl", max_length=8192, pack_length=8192)
    assert "no sample is that long" in packed.report["train"]["remarks"][0]
    shorter = run("k02_ga_tail_10.jsonl", max_length=8192, pack_length=32)
    assert "a pack has 32; max_length 8,192 is never reached" in shorter.report["train"]["remarks"][0]
    assert shorter.report["train"]["packing"]["rows_with"] > packed.report["train"]["packing"]["rows_with"]
    cut = run("k01_overlength_mix.jsonl").report["train"]["remarks"]
    assert cut[0].endswith("are longer than max_length 64 and were cut.")
    assert cut[1].endswith("are lost that way; over_length: split keeps them.")
    repeated = run(f"{DATA}/k02_ga_tail_10.jsonl#25")
    assert rows_of(repeated)["read"] == 25
    assert any("takes 25 rows from 10: rows repeat" in remark for remark in repeated.report["train"]["remarks"])


def test_long_documents_are_split_at_stated_borders(run: Any, tmp_path: Path, chatml: Any) -> None:
    path = tmp_path / "book.md"
    chapter = "# Chapter\n\n" + "The clerk wrote another line about grain. " * 3 + "\n\n"
    path.write_text(chapter * 9)
    prepared = run(path, max_length=120, over_length="split", split_at="\n\n", split_overlap=8)
    texts = texts_of(prepared.train_store, chatml)
    assert len(texts) > 2
    assert all(text.endswith("\n\n") for text in texts[:-1])
    store = TokenStore(prepared.train_store)
    assert store.num_targets == prepared.report["train"]["tokens"]["read"] - 1  # every token once, but the first
    with pytest.raises(ConfigError, match="split_overlap is 100"):
        run(path, max_length=100, over_length="split", split_overlap=100)


def test_columns_and_roles_by_option(run: Any, tmp_path: Path, chatml: Any) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"frage": "q?", "antwort": "a."}) + "\n")
    named = run(path, columns=(("query", "frage"), ("response", "antwort")))
    assert texts_of(named.train_store, chatml) == [
        "<|im_start|>user\nq?<|im_end|>\n<|im_start|>assistant\na.<|im_end|>\n"
    ]
    with pytest.raises(DataRefused, match="the row has 'frage', 'antwort'") as caught:
        run(path)
    assert caught.value.fix.startswith("Name its columns")
    with pytest.raises(ConfigError, match=r"column 'quer' is not known.*Did you mean 'query'"):
        run(path, columns=(("quer", "frage"),))
    with pytest.raises(DataRefused, match="two neighbouring turns have the same role"):
        run("k04_role_orders.jsonl", same_role="refuse", max_length=128)


def test_rows_that_were_tokenised_elsewhere_stay_as_they_are(run: Any, tmp_path: Path) -> None:
    """Bug case B01e from a file: 28 tokens, 21 targets, the sample of one token told by its line."""
    samples = json.loads((DATA / "k01_pretok_pack.json").read_text("utf-8"))["samples"]
    path = tmp_path / "tokens.jsonl"
    path.write_text("".join(json.dumps({"input_ids": ids, "labels": ids}) + "\n" for ids in samples))
    with pytest.raises(DataRefused, match=r"tokens\.jsonl:6: a single token"):
        run(path)
    prepared = run(path, on_bad_row="skip", max_length=8, pack_length=8)
    assert prepared.report["train"]["shapes"] == {"tokens": 7}
    store = TokenStore(prepared.train_store)
    assert [store.sample(at)[0].tolist() for at in range(6)] == [ids for ids in samples if len(ids) > 1]
    assert (store.num_tokens, store.num_targets) == (27, 21)
    path.write_text('{"input_ids": [5, 6, 7, 8, 9], "labels": [-100, 6, -100, 8, 9]}\n{"input_ids": [5, 600]}\n')
    with pytest.raises(DataRefused, match="token 600 is not one of the model's 600"):
        run(path)
    for train_on, targets in (("assistant", [6, 8, 9]), ("last", [8, 9]), ("all", [6, 7, 8, 9])):
        store = TokenStore(run(path, on_bad_row="skip", train_on=train_on).train_store)
        assert store.tokens[store.targets].tolist() == targets


def test_a_column_that_no_row_has_is_told(run: Any) -> None:
    columns = (("query", "frage"), ("response", "answer"))
    remarks = run("k02_ga_tail_10.jsonl", columns=columns).report["train"]["remarks"]
    assert "columns: no row has 'frage', from which 'query' was to be read." in remarks


def test_no_row_at_all_is_an_error(run: Any, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(ConfigError, match="The data set is empty"):
        run(tmp_path / "empty.jsonl")
    with pytest.raises(ConfigError, match="all 10 are longer than max_length 8"):
        run("k02_ga_tail_10.jsonl", max_length=8, over_length="drop")
    with pytest.raises(ConfigError, match="Did you mean 'alpaca'"):
        run("k02_ga_tail_10.jsonl", shape="alpacca")


def test_the_process_protocol(tmp_path: Path, chatml_folder: Path) -> None:
    def call(train: Path) -> tuple[int, dict[str, Any], str]:
        request = Request(
            data=DataConfig(train=(str(train),)), model=str(chatml_folder), max_length=64, cache_dir=str(tmp_path)
        )
        done = subprocess.run(
            [sys.executable, "-P", "-m", "core.data.prepare"], input=json.dumps(asdict(request)), capture_output=True,
            text=True, env=child_environment(os.environ), timeout=120,
        )  # fmt: skip
        return done.returncode, json.loads(done.stdout), done.stderr

    code, answer, progress = call(DATA / "k02_ga_tail_10.jsonl")
    assert code == 0
    assert len(TokenStore(answer["train_store"])) == 10
    assert json.loads(progress.splitlines()[-1])["rows"] == 10
    code, answer, _ = call(DATA / "k04_malformed.jsonl")
    assert (code, answer["report"]["rows"]["bad"]) == (2, 5)
    code, answer, _ = call(tmp_path / "absent.jsonl")
    assert (code, answer["report"]) == (2, None)
    assert answer["what"].startswith("There is no")
