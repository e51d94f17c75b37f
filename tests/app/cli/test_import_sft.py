"""The article's one-GPU command, on the real demo model and through the real planner and trainer, to a finished run."""

from __future__ import annotations

import json

import pytest

from app.cli.main import main
from app.services.demo_model import MODEL, demo_model_dir
from app.services.runs import list_runs
from planner.errors import EnvironmentProblem

ARTICLE = (
    "--train_type lora --lora_rank 64 --lora_alpha 128 --target_modules all-linear --packing True "
    "--sequence_parallel_size 2 --use_ring_attn true --flash_attn_version 3 --galore_rank 64 "
    "--galore_update_interval 200 --galore_scale 0.25 --torch_dtype bfloat16 --per_device_train_batch_size 1 "
    "--num_train_epochs 1 --learning_rate 2e-4 --warmup_ratio 0.03 --eval_steps 100 --save_steps 100"
)


@pytest.fixture
def model(tmp_path, monkeypatch):
    """The converted weights of the cache, seen through a cache of the test's own."""
    try:
        folder = demo_model_dir()
    except EnvironmentProblem as problem:
        pytest.skip(str(problem))
    cache = tmp_path / "cache"
    (cache / "models").mkdir(parents=True)
    (cache / "models" / folder.name).symlink_to(folder)
    monkeypatch.setenv("LONGFIT_CACHE", str(cache))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    for name in ("NPROC_PER_NODE", "NNODES", "USE_HF", "LONGFIT_RUNS"):
        monkeypatch.delenv(name, raising=False)
    return MODEL


@pytest.mark.slow
def test_the_one_gpu_command_with_everything_trains(model, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    rows = [
        {"messages": [{"role": "user", "content": f"Which clause names the fee of contract {i}?"},
                      {"role": "assistant", "content": f"Clause {i % 7}: the fee is {i * 100} euros."}]}
        for i in range(12)
    ]  # fmt: skip
    (tmp_path / "contracts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = [
        "--model", model, "--dataset", "contracts.jsonl#10", "--max_length", "96", "--max_steps", "2",
        "--gradient_accumulation_steps", "1", "--logging_steps", "1", "--output_dir", "out_8k",
        "--system", "Answer briefly, and cite the clause.", *ARTICLE.split(),
    ]  # fmt: skip
    assert main(["sft", "--gpu", "cpu", "--json", *flags]) == 0
    out, err = capsys.readouterr()
    summary = json.loads(out)
    assert (summary["status"], summary["step"]) == ("done", 2)
    for words in ("--galore_rank 64", "--flash_attn_version 3", "--use_ring_attn true", "FITS"):
        assert words in err
    (run,) = list_runs(tmp_path / "out_8k").runs
    config = run.config
    assert config.optimization("fake_parallel").as_dict() == {"groups": 3}  # of the 3 KV heads; 2 do not divide them
    assert config.optimization("lora").as_dict()["rank"] == 64
    assert config.optimization("packing") is not None
    assert config.data.system == "Answer briefly, and cite the clause."
    events = run.paths.events.read_text()
    assert "attention modules work in 3 head groups" in events
