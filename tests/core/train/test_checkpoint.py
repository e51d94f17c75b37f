"""The checkpoint directory as a format: plain files stand in for tensors, no torch."""

import errno
import json
import os
import random
import resource
import shutil

import pytest

from core.train.checkpoint import MANIFEST, newest_valid, problem_with, prune, step_path, write_checkpoint
from planner.errors import EnvironmentProblem

SIZES = {"adapter_model.safetensors": 3000, "optimizer.safetensors": 6000, "trainer_state.json": 200}


def fill(directory):
    for name, size in SIZES.items():
        (directory / name).write_bytes(random.Random(name).randbytes(size))
    (directory / "tokenizer").mkdir()
    (directory / "tokenizer" / "vocab.json").write_text("{}")


def names(checkpoints):
    return sorted(path.name for path in checkpoints.iterdir())


def test_written_checkpoint_is_valid_and_leaves_no_hidden_folder(tmp_path):
    path = write_checkpoint(tmp_path / "checkpoints", 3, fill)
    assert path == step_path(tmp_path / "checkpoints", 3)
    assert problem_with(path) is None
    assert names(path.parent) == ["step-3"]
    manifest = json.loads((path / MANIFEST).read_text())["body"]
    assert manifest["step"] == 3
    assert {name: entry["bytes"] for name, entry in manifest["files"].items()} == SIZES | {"tokenizer/vocab.json": 2}


@pytest.mark.parametrize("seed", range(100))
def test_truncation_a_flipped_byte_or_a_missing_file_is_always_found(tmp_path, seed):
    write_checkpoint(tmp_path, 1, fill)
    newer = write_checkpoint(tmp_path, 2, fill)
    chance = random.Random(seed)
    victim = newer / chance.choice([*SIZES, MANIFEST])
    content = bytearray(victim.read_bytes())
    damage = chance.choice(["truncate", "flip", "remove"])
    if damage == "truncate":
        victim.write_bytes(content[: chance.randrange(len(content))])
    elif damage == "flip":
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        victim.write_bytes(content)
    else:
        victim.unlink()
    found = newest_valid(tmp_path)
    assert (found.path, found.step) == (tmp_path / "step-1", 1)
    assert [skipped.path for skipped in found.skipped] == [newer]
    assert victim.name in found.skipped[0].reason


def test_broken_folders_are_skipped_with_their_reasons_and_other_names_are_ignored(tmp_path):
    good = write_checkpoint(tmp_path, 10, fill)
    for step in (20, 30, 40, 60):
        shutil.copytree(good, tmp_path / f"step-{step}")
    (tmp_path / "step-20" / "trainer_state.json").unlink()
    for path in (tmp_path / "step-30").glob("*.safetensors"):
        path.write_bytes(b"")
    for path in (tmp_path / "step-40").glob("*.safetensors"):
        os.truncate(path, path.stat().st_size // 2)
    for name in ("step-50", "step-final", "step-abc", "step-", "step-0070", ".tmp-step-80"):
        (tmp_path / name).mkdir()
    found = newest_valid(tmp_path)
    assert found.path == good
    reasons = [(skipped.path.name, skipped.reason) for skipped in found.skipped]
    assert [name for name, _ in reasons] == ["step-60", "step-50", "step-40", "step-30", "step-20"]
    assert "step 10" in reasons[0][1]
    assert "no manifest.json" in reasons[1][1]
    assert "1500 bytes instead of 3000" in reasons[2][1]
    assert "0 bytes instead of 3000" in reasons[3][1]
    assert "trainer_state.json is missing" in reasons[4][1]


def test_no_checkpoint_at_all_is_not_an_error(tmp_path):
    assert newest_valid(tmp_path / "absent").path is None
    assert newest_valid(tmp_path) == newest_valid(tmp_path / "absent")


@pytest.mark.parametrize("limit", [0, 100, 2999, 3000, 4000, 5999])
def test_a_disk_that_refuses_a_write_costs_the_new_checkpoint_only(tmp_path, limit):
    older = write_checkpoint(tmp_path, 1, fill)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(EnvironmentProblem) as failure:
            write_checkpoint(tmp_path, 2, fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "checkpoint of step 2" in failure.value.what
    assert "File too large" in failure.value.why
    assert "step-1" in failure.value.why
    assert names(tmp_path) == ["step-1"]
    assert problem_with(older) is None


@pytest.mark.parametrize("call", ["fsync", "open", "rename", "mkdir"])
def test_every_system_call_of_a_save_may_fail(tmp_path, monkeypatch, call):
    """The n-th fsync, open, rename or mkdir says ENOSPC, for every n that a save reaches."""
    write_checkpoint(tmp_path, 1, fill)
    original = getattr(os, call)
    failures = 0
    for failing in range(100):
        count = 0

        def refuse(*args, _failing=failing, **kwargs):
            nonlocal count
            count += 1
            if count == _failing + 1:
                raise OSError(errno.ENOSPC, "No space left on device")
            return original(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, refuse)
            try:
                write_checkpoint(tmp_path, 2, fill)
            except EnvironmentProblem as failure:
                assert "No space left on device" in failure.why  # noqa: PT017
                failures += 1
                assert newest_valid(tmp_path).step in (1, 2)
                assert problem_with(tmp_path / "step-1") is None
        assert not [name for name in names(tmp_path) if name.startswith(".tmp")]
        if count <= failing:
            break
    assert failures >= 1
    assert newest_valid(tmp_path).step == 2


def test_an_error_of_our_own_passes_through_and_cleans_up(tmp_path):
    def broken(directory):
        fill(directory)
        raise KeyError("state")

    with pytest.raises(KeyError):
        write_checkpoint(tmp_path, 2, broken)
    assert names(tmp_path) == []


def test_leftovers_of_a_kill_go_with_the_next_save_and_a_torn_step_is_replaced(tmp_path):
    (tmp_path / ".tmp-step-4").mkdir()
    (tmp_path / ".old-step-1").mkdir()
    torn = tmp_path / "step-5"
    torn.mkdir()
    (torn / "adapter_model.safetensors").write_bytes(b"torn")
    assert problem_with(write_checkpoint(tmp_path, 5, fill)) is None
    assert names(tmp_path) == ["step-5"]


@pytest.mark.parametrize(
    ("limit", "keep", "left"),
    [
        (0, (), [1, 2, 3, 4]),
        (9, (), [1, 2, 3, 4]),
        (2, (), [3, 4]),
        (2, (1,), [1, 4]),
        (1, (1,), [1, 4]),
        (1, (), [4]),
        (3, (2,), [2, 3, 4]),
    ],
)
def test_prune_keeps_the_newest_and_the_best_within_the_limit(tmp_path, limit, keep, left):
    for step in (1, 2, 3, 4):
        write_checkpoint(tmp_path, step, fill)
    removed = prune(tmp_path, limit=limit, keep=keep)
    assert names(tmp_path) == [f"step-{step}" for step in left]
    assert sorted([*removed, *left]) == [1, 2, 3, 4]
