"""Exported folders as other tools read them, and what is refused; the merging itself is tests/core/test_merge.py."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from app.cli.main import main
from app.services import export as service
from core import export as folders
from core.run.directory import RunDirectory
from core.train.checkpoint import write_checkpoint
from tests.core.train.runs import make_run, setting, train
from tests.core.train.tiny_llama import save_tiny_llama

IDS = torch.tensor([[5, 17, 20, 41]])


@pytest.fixture(scope="module")
def tiny_model_dir(tmp_path_factory):
    return save_tiny_llama(tmp_path_factory.mktemp("tiny-llama"))


def finish(directory):
    """What the supervisor would have written beside the checkpoints."""
    _, channel, _ = train(directory)
    directory.metrics.write_text("".join(json.dumps(row) + "\n" for row in channel.rows))
    directory.preset.write_text("model: tiny\nmax_length: 64\n")
    return directory


@pytest.fixture(scope="module")
def runs(tiny_model_dir, tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    lora = make_run(root, tiny_model_dir, name="lora-run", save_steps=3, learning_rate=0.3, eval_lengths=(9, 12))
    finish(lora)
    finish(make_run(root, tiny_model_dir, setting("gradient_checkpointing"), name="full-run", max_steps=2))
    qlora = make_run(root, tiny_model_dir, setting("qlora", rank=4, alpha=8, targets="all-linear"), name="qlora-run")
    source = lora.checkpoints / "step-6"

    def fill(folder):
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            shutil.copy(source / name, folder)

    write_checkpoint(qlora.checkpoints, 6, fill)
    return root


@pytest.fixture
def longfit(runs, capfd):
    """longfit export ... --runs-dir: (exit code, stdout, stderr)."""

    def call(*arguments):
        capfd.readouterr()
        code = main(["export", *map(str, arguments), "--runs-dir", str(runs)])
        return code, *capfd.readouterr()

    return call


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


def test_an_adapter_is_loaded_by_plain_peft_and_its_card_tells_of_its_own_step(longfit, runs, tiny_model_dir, tmp_path):
    out = tmp_path / "new" / "adapter"
    code, stdout, err = longfit("lora-run", "--step", "3", "--out", out)
    assert (code, stdout) == (0, f"{out}\n")
    assert "step 3 of lora-run: the adapter" in err
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "README.md"} <= {
        path.name for path in out.iterdir()
    }
    assert not {"optimizer.safetensors", "rng.safetensors", "manifest.json"} & {path.name for path in out.iterdir()}
    got, want = (
        logits(PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model_dir), path))
        for path in (out, runs / "lora-run" / "checkpoints" / "step-3")
    )
    assert torch.equal(got, want)
    card = (out / "README.md").read_text()
    rows = [json.loads(line) for line in (runs / "lora-run" / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    held_out = next(row["eval_loss"] for row in rows if "eval_loss" in row)
    assert f"base_model: '{tiny_model_dir}'\nlibrary_name: peft" in card
    assert f"| loss, first and last | {losses[0]:.4f}, {losses[2]:.4f} |" in card
    assert f"| held-out loss, before and after | {held_out:.4f}, {held_out:.4f} |" in card
    assert "| optimizer steps | 3 |" in card
    assert "rank 4, alpha 8" in card
    assert "max_length: 64" in card  # the preset


def test_a_fully_trained_run_is_a_model_folder_with_merge_and_without(longfit, runs, tmp_path):
    for name, flags in (("one", ()), ("two", ("--merge",))):
        code, out, _ = longfit("full-run", "--out", tmp_path / name, "--json", *flags)
        answer = json.loads(out)
        assert (code, answer["kind"], answer["step"], answer["schema"]) == (0, "model", 2, 1)
        got = AutoModelForCausalLM.from_pretrained(tmp_path / name)
        want = AutoModelForCausalLM.from_pretrained(runs / "full-run" / "checkpoints" / "step-2")
        assert torch.equal(logits(got), logits(want))
        assert AutoTokenizer.from_pretrained(tmp_path / name)("long")["input_ids"]
        assert answer["size_bytes"] == sum(path.stat().st_size for path in (tmp_path / name).iterdir())


def test_a_qlora_run_is_merged_into_its_base_in_16_bits_and_says_so(longfit, runs, tiny_model_dir, tmp_path):
    code, out, err = longfit("qlora-run", "--merge", "--out", tmp_path / "merged", "--json")
    assert (code, json.loads(out)["kind"]) == (0, "merged"), err
    assert "merging model.safetensors, 1 of 1" in err
    base = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    want = PeftModel.from_pretrained(base, runs / "qlora-run" / "checkpoints" / "step-6")
    assert (logits(AutoModelForCausalLM.from_pretrained(tmp_path / "merged")) - logits(want)).abs().max() < 1e-5
    card = (tmp_path / "merged" / "README.md").read_text()
    assert "saw the base in 4 bits (NF4); the adapter was merged into the base in float32" in card
    assert "library_name: transformers" in card


def test_without_out_the_folder_is_named_after_run_step_and_kind(longfit, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert longfit("lora-run")[1] == f"{tmp_path / 'lora-run-step-6-adapter'}\n"


def test_nothing_is_overwritten_not_even_a_dangling_link(longfit, tmp_path):
    taken = tmp_path / "taken"
    taken.mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    for out in (taken, link):
        code, _, err = longfit("lora-run", "--out", out)
        assert code == 2
        assert f"error: {out} is there already." in err
    assert list(taken.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "facts"),
    [
        (("lora-run", "--step", "4"), 2, ["no checkpoint of step 4", "It holds step-3, step-6.", "Take one of these."]),
        (("no-such-run",), 6, ["There is no run 'no-such-run'"]),
    ],
)
def test_what_is_not_there_is_refused(longfit, tmp_path, arguments, code, facts):
    got, out, err = longfit(*arguments, "--out", tmp_path / "out")
    assert (got, out) == (code, "")
    assert all(fact in err for fact in facts), err
    assert "--base" not in err  # infer's advice
    assert list(tmp_path.iterdir()) == []


def test_too_little_room_is_told_in_bytes_and_leaves_nothing(longfit, runs, tmp_path, monkeypatch):
    checkpoint = runs / "lora-run" / "checkpoints" / "step-6"
    size = folders.size_of(folders.exported_files(checkpoint))
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda path: type("Usage", (), {"free": size - 1}))
    code, _, err = longfit("lora-run", "--out", tmp_path / "out")
    assert code == 5
    assert f"It takes {size:,} bytes, and {size - 1:,} are free there." in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_export_that_breaks_off_leaves_nothing(longfit, tmp_path, monkeypatch, error):
    def fail(source, target):
        target.write_bytes(b"half")
        raise error

    monkeypatch.setattr(folders.shutil, "copyfile", fail)
    code, out, _ = longfit("lora-run", "--out", tmp_path / "out")
    assert (code, out) == ((5, "") if isinstance(error, OSError) else (130, ""))
    assert list(tmp_path.iterdir()) == []


def test_a_merging_process_that_is_killed_is_told_and_leaves_nothing(longfit, tmp_path, monkeypatch):
    killed = (sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    monkeypatch.setattr(service, "python_argv", lambda *arguments: killed)
    code, _, err = longfit("lora-run", "--merge", "--out", tmp_path / "out")
    assert code == 1
    assert "It ended by signal 9." in err
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_base_is_refused_in_the_merging_process_s_own_words(longfit, tmp_path, tiny_model_dir, runs):
    bare = save_tiny_llama(tmp_path / "bare")
    (bare / "model.safetensors").unlink()
    run = make_run(runs, bare, name="bare-run")
    shutil.copytree(runs / "lora-run" / "checkpoints" / "step-6", run.checkpoints / "step-6")
    code, _, err = longfit("bare-run", "--merge", "--out", tmp_path / "out")
    assert code == 2
    assert "fix: Put it back." in err
    assert not (tmp_path / "out").exists()


def test_an_adapter_is_exported_without_torch(runs, tmp_path):
    code = (
        "import sys; from pathlib import Path; from app.services.export import export; "
        "from core.run.directory import RunDirectory; "
        "export(RunDirectory(Path(sys.argv[1])), out=Path(sys.argv[2])); assert 'torch' not in sys.modules"
    )
    run = RunDirectory(runs / "lora-run")
    subprocess.run([sys.executable, "-c", code, str(run.path), str(tmp_path / "out")], check=True)
