"""Packed samples train as if alone, from the file to the loss: bug cases B01a and B02a through the real data path."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from core.data.batches import BatchPlan, build_row
from core.data.prepare import Request, prepare
from core.data.row import IGNORE_INDEX, Row
from core.data.store import StoreWriter, TokenStore
from core.parallel.layout import shard_row
from core.train.forward import forward_loss
from core.train.setup import TrainingSetup
from planner.types import DataConfig
from tests.core.data.templates import DATA
from tests.core.model.tiny_models import (
    assert_same_gradients,
    loss_and_gradients,
    plain_loss_and_gradients,
    setting,
    tiny_model,
    tiny_setup,
)

VOCABULARY = 600  # of the tokenizer of conftest


def store_of(name: str, model: Path, cache: Path) -> TokenStore:
    data = DataConfig(train=(str(DATA / name),))
    return TokenStore(
        prepare(Request(data=data, model=str(model), max_length=512, cache_dir=str(cache))).train_store
    )  # fmt: skip


def setup_in(dtype: torch.dtype = torch.float32, *optimizations: object) -> TrainingSetup:
    return tiny_setup(tiny_model("llama", dtype=dtype, vocab_size=VOCABULARY), *optimizations)


def token_losses(setup: TrainingSetup, row: Row) -> Tensor:
    """(S,) cross entropy of each position, 0 where there is no target; the forward and attention of training."""
    seen: list[Tensor] = []

    def record(hidden: Tensor, head: Tensor, labels: Tensor, target_index: Tensor) -> Tensor:
        logits = hidden[0] @ head.T
        seen.append(functional.cross_entropy(logits, labels[0], ignore_index=IGNORE_INDEX, reduction="none"))
        return seen[0].sum()

    setup.loss = record
    forward_loss(setup, shard_row(row, setup.mesh, setup.device))
    return seen[0].detach()[: len(row.input_ids)]


@pytest.mark.parametrize("optimizations", [(), (setting("fake_parallel", groups=3),)], ids=["plain", "head groups"])
def test_token_losses_of_packed_samples_equal_those_alone(
    chatml_folder: Path, tmp_path: Path, optimizations: tuple[object, ...]
) -> None:
    """Bug case B01a, fp32, train mode: 1e-5."""
    store = store_of("k01_pack_leak.jsonl", chatml_folder, tmp_path)
    plan = BatchPlan(store, packing=True, capacity=512)
    packed = plan.row(0, 0)
    assert sorted(packed.sample_ids) == [0, 1, 2]
    losses = token_losses(setup_in(torch.float32, *optimizations), packed)
    for sample, (begin, end) in zip(packed.sample_ids, pairwise(packed.cu_seqlens)):
        alone = token_losses(setup_in(torch.float32, *optimizations), build_row(store, (sample,)))
        assert (losses[begin:end] - alone).abs().max() < 1e-5


def test_replacing_one_sample_moves_no_other(chatml_folder: Path, tmp_path: Path) -> None:
    """Bug case B01a: other ids in sample 1, the losses of 2 and 3 stay bit for bit."""
    store = store_of("k01_pack_leak.jsonl", chatml_folder, tmp_path)
    with StoreWriter(tmp_path / "other") as writer:
        for index in range(3):
            tokens, targets = store.sample(index)
            writer.add(tokens if index else (tokens + 7) % VOCABULARY, targets)
        other = writer.finish()
    before, after = (token_losses(setup_in(), build_row(which, (0, 1, 2))) for which in (store, other))
    first_end = build_row(store, (0, 1, 2)).cu_seqlens[1]
    assert not torch.equal(before[:first_end], after[:first_end])
    assert torch.equal(before[first_end:], after[first_end:])


def test_one_row_of_two_samples_equals_two_rows_of_one(chatml_folder: Path, tmp_path: Path) -> None:
    """Bug case B02a: batch 2 x accumulation 1 and batch 1 x accumulation 2 have one loss and one gradient.

    Losses are sums over targets and the window divides once by its number of targets, so a short sample weighs what
    it holds; a window is the same whether its rows lie on one rank or on two.
    """
    store = store_of("k02_ga_short_long.jsonl", chatml_folder, tmp_path)
    together = BatchPlan(store, units_per_batch=2, shuffle=False).row(0, 0)
    apart = [BatchPlan(store, shuffle=False).row(0, index) for index in range(2)]
    assert together.num_targets == sum(row.num_targets for row in apart) == store.num_targets
    want_loss, want = plain_loss_and_gradients(tiny_model("llama", attention="sdpa", vocab_size=VOCABULARY), together)
    parts = [loss_and_gradients(setup_in(torch.float64), row, store.num_targets) for row in apart]
    whole_loss, whole = loss_and_gradients(setup_in(torch.float64), together, store.num_targets)
    assert abs(whole_loss - want_loss / store.num_targets) < 1e-8
    assert abs(sum(loss for loss, _ in parts) - whole_loss) < 1e-12
    added = {name: parts[0][1][name] + parts[1][1][name] for name in whole}
    assert_same_gradients(added, whole, 1e-10)
    assert_same_gradients(whole, {name: value / store.num_targets for name, value in want.items()}, 1e-6)


def test_an_empty_row_adds_neither_loss_nor_gradient(tmp_path: Path) -> None:
    """What a data rank gets when fewer units are left than ranks."""
    with StoreWriter(tmp_path / "s") as writer:
        writer.add(torch.arange(5, 12).numpy(), torch.ones(7, dtype=torch.bool).numpy())
        store = writer.finish()
    loss, gradients = loss_and_gradients(setup_in(), build_row(store, ()))
    assert loss == 0
    assert all((gradient == 0).all() for gradient in gradients.values())
