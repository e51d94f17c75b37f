"""Tokenising and packing a file: longfit against `datasets.map` with TRL's packing, on the same file in the same run.

    python benchmarks/data_throughput.py MODEL_FOLDER OUT.csv [--rows 10000] [--repeats 3]

Needs datasets and trl beside longfit. The file holds conversations cut from the standard library's own text (prose and
code, about 420 tokens a row). Each contender is a process of its own with an empty cache, in turn, ``repeats`` times:

    longfit         prepare (read, render, tokenise, place targets, store) and the packs of one epoch
    datasets+trl    load_dataset, map with apply_chat_template and its assistant mask, pack_dataset("bfd")
    datasets+trl x2 the same with num_proc=2

seconds: inside the process, after imports (longfit's hold the loading of the tokenizer, the others' do not). peak_mib:
largest proportional set size of the process tree, sampled every 0.1 s. cpu_seconds: of the whole tree, with imports.
tokens and targets must agree, or the comparison is void. On a shared machine look at seconds_min and cpu_seconds.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import pydoc_data.topics
import random
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

CAPACITY = 4096
CONTENDERS = ("longfit", "datasets+trl", "datasets+trl x2")
# TRL takes targets from generation marks; this is the model's own template (ChatML) with the marks put in.
MARKED_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{% if message['role'] == 'assistant' %}{{ '<|im_start|>assistant\n' }}{% generation %}"
    "{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endif %}"
    "{% endfor %}"
)


def write_rows(path: Path, count: int) -> None:
    """Conversations of one to three turns whose texts are paragraphs of the standard library, by a fixed seed."""
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = "\n\n".join([*pydoc_data.topics.topics.values(), *(m.read_text("utf-8", "ignore") for m in modules)])
    paragraphs = [p.strip() for p in text.split("\n\n") if 40 < len(p.strip()) < 1200]  # no row beyond CAPACITY
    choose = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(count):
            messages = []
            for _ in range(choose.randint(1, 3)):
                messages.append({"role": "user", "content": "\n\n".join(choose.sample(paragraphs, 2))})
                messages.append({"role": "assistant", "content": choose.choice(paragraphs)})
            file.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")


def run_longfit(model: str, data: str, cache: str) -> dict[str, Any]:
    sys.modules["torch"] = None  # type: ignore[assignment]  # as core/data/prepare.py does in its process
    from transformers import AutoTokenizer  # noqa: F401  # imported by RowTokenizer, which loads the tokenizer itself

    from core.data.pack import pack_lengths
    from core.data.prepare import Request, prepare
    from core.data.store import TokenStore
    from planner.types import DataConfig

    started = time.perf_counter()
    prepared = prepare(
        Request(data=DataConfig(train=(data,)), model=model, max_length=CAPACITY, cache_dir=cache, pack_length=CAPACITY)
    )
    store = TokenStore(prepared.train_store)
    packs = pack_lengths(store.lengths, CAPACITY, "0 0")
    return {
        "seconds": time.perf_counter() - started, "tokens": store.num_tokens, "targets": store.num_targets,
        "packs": len(packs),
    }  # fmt: skip


def run_trl(model: str, data: str, cache: str, num_proc: int | None) -> dict[str, Any]:
    import numpy as np
    from datasets import load_dataset
    from transformers import AutoTokenizer
    from trl.data_utils import pack_dataset

    tokenizer = AutoTokenizer.from_pretrained(model)

    def tokenize(row: dict[str, Any]) -> dict[str, Any]:
        encoded = tokenizer.apply_chat_template(
            row["messages"], tokenize=True, return_dict=True, return_assistant_tokens_mask=True,
            chat_template=MARKED_TEMPLATE,
        )  # fmt: skip
        return {"input_ids": encoded["input_ids"][:CAPACITY], "assistant_masks": encoded["assistant_masks"][:CAPACITY]}

    started = time.perf_counter()
    rows = load_dataset("json", data_files=data, split="train", cache_dir=cache)
    rows = rows.map(tokenize, remove_columns=rows.column_names, num_proc=num_proc)
    packed = pack_dataset(rows, CAPACITY, "bfd")
    seconds = time.perf_counter() - started
    tokens = targets = 0
    for chunk in packed.with_format("arrow").iter(1000):
        tokens += len(chunk["input_ids"].combine_chunks().values)
        targets += int(np.sum(chunk["assistant_masks"].combine_chunks().values.to_numpy()))
    return {"seconds": seconds, "tokens": tokens, "targets": targets, "packs": len(packed)}


def measure(contender: str, model: str, data: Path) -> dict[str, Any]:
    """One contender in a fresh process; its answer, CPU seconds and peak memory."""
    import psutil

    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": cache, "HF_HOME": cache}
        process = psutil.Popen(
            [sys.executable, __file__, "--contender", contender, model, str(data), cache],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment,
        )  # fmt: skip
        peak, cpu = 0, {}
        while process.poll() is None:
            total = 0
            for member in [process, *process.children(recursive=True)]:
                try:
                    total += member.memory_full_info().pss
                    times = member.cpu_times()
                    cpu[member.pid] = times.user + times.system
                except psutil.Error:
                    continue
            peak = max(peak, total)
            time.sleep(0.1)
        answer = process.stdout.read()
    if process.returncode:
        raise SystemExit(f"{contender} ended with exit code {process.returncode}")
    return {**json.loads(answer), "cpu_seconds": sum(cpu.values()), "peak_mib": peak / 2**20}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    runs: dict[str, list[dict[str, Any]]] = {contender: [] for contender in CONTENDERS}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "rows.jsonl"
        write_rows(data, args.rows)
        for _ in range(args.repeats):
            for contender in CONTENDERS:
                runs[contender].append(measure(contender, args.model, data))
                print(contender, runs[contender][-1], file=sys.stderr)
    agree = {(run["tokens"], run["targets"]) for results in runs.values() for run in results}
    if len(agree) != 1:
        raise SystemExit(f"tokens and targets differ: {agree}")
    save(args.out, runs, args.rows)


def save(out: Path, runs: dict[str, list[dict[str, Any]]], rows: int) -> None:
    from importlib.metadata import version

    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent
    ).stdout.strip()  # fmt: skip
    with out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["contender", "rows", "tokens", "targets", "packs", "seconds_median", "seconds_min", "seconds_max",
             "tokens_per_second", "cpu_seconds", "peak_mib", "cores", "transformers", "tokenizers", "datasets", "trl",
             "commit", "date"]
        )  # fmt: skip
        for contender, results in runs.items():
            seconds = [run["seconds"] for run in results]
            middle = statistics.median(seconds)
            writer.writerow(
                [contender, rows, results[0]["tokens"], results[0]["targets"], results[0]["packs"], f"{middle:.2f}",
                 f"{min(seconds):.2f}", f"{max(seconds):.2f}", round(results[0]["tokens"] / middle),
                 f"{statistics.median(run['cpu_seconds'] for run in results):.1f}",
                 f"{statistics.median(run['peak_mib'] for run in results):.0f}", os.cpu_count(),
                 *(version(name) for name in ("transformers", "tokenizers", "datasets", "trl")), commit,
                 datetime.now(UTC).date().isoformat()]
            )  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:2] == ["--contender"]:
        name, *arguments = sys.argv[2:]
        if name == "longfit":
            found = run_longfit(*arguments)
        else:
            found = run_trl(*arguments, num_proc=2 if name.endswith("x2") else None)
        print(json.dumps(found))
    else:
        main()
