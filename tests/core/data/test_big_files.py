"""Bug case B04i at its real size: 60,001 rows with a column that turns from null to text, and a line of 24 MB."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from core.data.prepare import Request, prepare
from core.data.readers import read_file
from core.data.shapes import read_row
from core.run.interpreter import child_environment
from planner.types import DataConfig
from tests.core.data.templates import CHATML, DATA


def make(script: str, path: Path) -> Path:
    subprocess.run([sys.executable, str(DATA / script), str(path)], check=True)
    return path


def test_sixty_thousand_and_one_rows(tmp_path: Path) -> None:
    path = make("k04_make_null_then_str.py", tmp_path / "big.jsonl")
    assert sum(read_row(record.value)[0] == "messages" for record in read_file(path)) == 60_001


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path, chatml_folder: Path) -> None:
    """A file of 24 MB needs what one of 4 MB needs, but for the 60 bytes a row of the report."""
    script = (
        "import resource, sys; from core.data.prepare import main; main(); "
        "sys.stderr.write(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))"
    )
    peaks = []
    for count in (2_000, 12_000):
        path = tmp_path / f"{count}.jsonl"
        with path.open("w") as file:
            for row in range(count):
                file.write(json.dumps({"text": f"The clerk wrote line {row} about grain. " * 50}) + "\n")
        request = Request(
            data=DataConfig(train=(str(path),)), model=str(chatml_folder), max_length=4096, cache_dir=str(tmp_path)
        )
        done = subprocess.run(
            [sys.executable, "-P", "-c", script], input=json.dumps(asdict(request)), capture_output=True, text=True,
            env=child_environment(os.environ), check=True,
        )  # fmt: skip
        assert json.loads(done.stdout)["report"]["train"]["rows"]["kept"] == count
        peaks.append(int(done.stderr.splitlines()[-1]) / 1024)
    assert peaks[1] - peaks[0] < 16, f"{peaks} MiB"


@pytest.mark.slow
def test_a_line_of_24_megabytes_is_a_row_like_any_other(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "ok": 1, "small": 2}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    saved = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", chat_template=CHATML)
    saved.save_pretrained(tmp_path / "model")
    path = make("k04_make_bigline.py", tmp_path / "big.jsonl")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    data = DataConfig(train=(str(path),), on_bad_row="skip")
    report = prepare(
        Request(data=data, model=str(tmp_path / "model"), max_length=512, cache_dir=str(tmp_path / "cache"))
    ).report["train"]
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert (report["rows"]["read"], report["rows"]["kept"], report["rows"]["bad"]) == (3, 2, 1)
    (problem,) = report["problems"]["first"]
    assert problem["line"] == 2
    assert problem["reason"].startswith("no trainable token is left of the 4,000,0")
    assert grown < 1000, f"{grown:.0f} MB"  # the encoding of the whole line alone would be 1,100
