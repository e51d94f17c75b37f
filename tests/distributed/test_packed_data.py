"""Prepared and packed data on two and four processes: each sample as if alone, each once, whatever the split."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from core.data.batches import BatchPlan, build_row
from core.data.prepare import Request, prepare
from core.data.store import StoreWriter, TokenStore
from planner.types import DataConfig, ParallelDegrees
from tests.core.data.conftest import train_backend
from tests.core.data.templates import CHATML, DATA
from tests.core.model.tiny_models import (
    VOCABULARY,
    assert_same_gradients,
    plain_loss_and_gradients,
    setting,
    tiny_model,
    tiny_setup,
)
from tests.core.model.token_losses import token_losses
from tests.distributed.pack_programs import epoch_of_store, losses_of_rows
from tests.distributed.rank_programs import train_step

SHAPE = {"heads": 8, "kv_heads": 4}
RING, ULYSSES = setting("ring", degree=2), setting("ulysses", degree=2)
GROUPS = setting("fake_parallel", groups=2)
CHECKPOINTING = setting("gradient_checkpointing", save_attention=True, kept_layers=0)
PATHS = {
    "ring": (ParallelDegrees(ring=2), (RING,)),
    "ring, head groups": (ParallelDegrees(ring=2), (RING, GROUPS, CHECKPOINTING)),
    "ulysses": (ParallelDegrees(ulysses=2), (ULYSSES,)),
    "ulysses, head groups": (ParallelDegrees(ulysses=2), (ULYSSES, GROUPS, CHECKPOINTING)),
    "ring and ulysses": (ParallelDegrees(ring=2, ulysses=2), (RING, ULYSSES)),
}
NO_ROWS = ("pretok_pack", "ga_numbers", "sp_uneven_labels", "tok_pad_is_eos")  # numbers and ids, not rows of a set


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    chance = np.random.default_rng(3)
    with StoreWriter(tmp_path / "store") as writer:
        for length in (37, 5, 23, 1, 17):
            targets = np.arange(length) >= length // 2
            writer.add(chance.integers(2, VOCABULARY, length), targets)
        return writer.finish()


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("model")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=train_backend(), eos_token="<|im_end|>", chat_template=CHATML
    )  # fmt: skip
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("path", PATHS)
def test_token_losses_of_a_shared_pack_are_those_alone_and_a_replaced_sample_moves_no_other(
    run_ranks, store: TokenStore, tmp_path: Path, path: str
) -> None:
    """Bug case B01a, fp32, train mode: 1e-5, and bit for bit."""
    degrees, optimizations = PATHS[path]
    with StoreWriter(tmp_path / "other") as writer:
        for index in range(len(store)):
            tokens, targets = store.sample(index)
            writer.add((tokens + 7) % VOCABULARY if index == 2 else tokens, targets)
        other = writer.finish()
    order = (0, 1, 2, 3, 4)
    rows = [build_row(store, order), build_row(other, order), *(build_row(store, (sample,)) for sample in order)]
    answers = run_ranks(losses_of_rows, degrees.world, degrees, SHAPE, optimizations, rows)
    packed, changed, *alone = answers[0]
    for sample, (begin, end) in enumerate(pairwise(rows[0].cu_seqlens)):
        assert (packed[begin:end] - alone[sample]).abs().max() < 1e-5, sample
        assert torch.equal(packed[begin:end], changed[begin:end]) == (sample != 2), sample
    assert (packed != 0).sum() == rows[0].num_targets
    on_one = token_losses(tiny_setup(tiny_model("llama", dtype=torch.float32, **SHAPE)), rows[0])
    assert (packed - on_one).abs().max() < 1e-5


@pytest.mark.parametrize("axis", ["ring", "ulysses"])
def test_two_ranks_share_a_pack(run_ranks, store: TokenStore, axis: str) -> None:
    row = BatchPlan(store, packing=True, capacity=83).row(0, 0)
    assert len(row.sample_ids) == 5
    want_loss, want = plain_loss_and_gradients(tiny_model("llama", attention="sdpa", **SHAPE), row)
    degrees = ParallelDegrees(**{axis: 2})
    answers = run_ranks(train_step, 2, degrees, "llama", SHAPE, [row], (setting(axis, degree=2),))
    assert abs(answers[0]["loss"] - want_loss) < 1e-9
    assert_same_gradients(answers[0]["gradients"], want, 1e-8)


def test_the_short_rank_of_a_last_batch_changes_nothing(run_ranks, store: TokenStore) -> None:
    """Five units on two ranks: the last micro-batch of rank 1 is an empty row."""
    plans = [BatchPlan(store, data_rank=rank, data_world=2, shuffle=False) for rank in range(2)]
    rows = [plan.row(0, 2) for plan in plans]
    assert [row.sample_ids for row in rows] == [(4,), ()]
    want_loss, want = plain_loss_and_gradients(tiny_model("llama", attention="sdpa", **SHAPE), rows[0])
    answers = run_ranks(train_step, 2, ParallelDegrees(data=2), "llama", SHAPE, rows, ())
    assert abs(answers[0]["loss"] - want_loss) < 1e-9
    assert_same_gradients(answers[0]["gradients"], want, 1e-8)


@pytest.mark.parametrize("packing", [False, True], ids=["rows", "packs"])
@pytest.mark.parametrize("kind", [1, 2, 4])
def test_two_processes_train_what_became_of_each_case_as_one_does(
    run_ranks, model_folder: str, tmp_path: Path, kind: int, packing: bool
) -> None:
    """Every file of bug-case kinds 1, 2 and 4 that holds rows: its samples, each once, one sum of losses."""
    files = sorted(str(path) for end in ("jsonl", "json", "csv") for path in DATA.glob(f"k0{kind}_*.{end}"))
    files = [path for path in files if not Path(path).stem.endswith(NO_ROWS)]
    request = Request(
        data=DataConfig(train=tuple(files), on_bad_row="skip", over_length="truncate_left"), model=model_folder,
        max_length=256, cache_dir=str(tmp_path),
    )  # fmt: skip
    prepared = prepare(request)
    shape = {**SHAPE, "vocab_size": 600}
    loss, gradients, ids = run_ranks(epoch_of_store, 1, prepared.train_store, packing, shape)[0]
    both = run_ranks(epoch_of_store, 2, prepared.train_store, packing, shape)
    seen = sorted(sample for rank in both for row in rank[2] for sample in row)
    assert seen == sorted(sample for row in ids for sample in row) == list(range(prepared.report["train"]["samples"]))
    assert both[0][0] == pytest.approx(loss, rel=1e-9)
    assert_same_gradients(both[0][1], gradients, 1e-8)
