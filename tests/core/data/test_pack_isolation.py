"""Packed samples train as if alone, from the file to the loss: bug cases B01a and B02a through the real data path."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from core.attention.kernel import CpuFlashKernel, ReferenceKernel
from core.data.batches import BatchPlan, build_row
from core.data.prepare import Request, prepare
from core.data.store import StoreWriter, TokenStore
from core.train.setup import TrainingSetup
from planner.types import DataConfig, OptimizationSetting
from tests.core.data.templates import DATA
from tests.core.model.tiny_models import (
    assert_same_gradients,
    loss_and_gradients,
    plain_loss_and_gradients,
    setting,
    tiny_model,
    tiny_setup,
)
from tests.core.model.token_losses import token_losses

VOCABULARY = 600  # of the tokenizer of conftest


def store_of(name: str, model: Path, cache: Path) -> TokenStore:
    data = DataConfig(train=(str(DATA / name),))
    return TokenStore(
        prepare(Request(data=data, model=str(model), max_length=512, cache_dir=str(cache))).train_store
    )  # fmt: skip


def setup_in(
    dtype: torch.dtype = torch.float32, *optimizations: OptimizationSetting, engine: str = "module"
) -> TrainingSetup:
    model = tiny_model("llama", dtype=dtype, vocab_size=VOCABULARY)
    adapters = (setting("lora", rank=3, adapter_dtype="float32"),) if engine == "layer" else ()
    return tiny_setup(model, *adapters, *optimizations, engine=engine, max_length=512)


CHECKPOINTING = setting("gradient_checkpointing", save_attention=False, kept_layers=0)
KEEPING = setting("gradient_checkpointing", save_attention=True, kept_layers=1)
PATHS: dict[str, tuple[str, tuple[OptimizationSetting, ...]]] = {
    "plain": ("module", ()),
    "checkpointing": ("module", (CHECKPOINTING,)),
    "kept attention": ("module", (KEEPING,)),
    "offloaded layer inputs": ("module", (CHECKPOINTING, setting("checkpoint_offload", kept_layers=1))),
    "head groups": ("module", (setting("fake_parallel", groups=3),)),
    "head groups, checkpointing, chunked loss": (
        "module", (setting("fake_parallel", groups=3), CHECKPOINTING, setting("fused_loss", chunk_tokens=16)),
    ),
    "layers": ("layer", (CHECKPOINTING,)),
    "layers, kept attention": ("layer", (KEEPING,)),
    "layers, offloaded": ("layer", (CHECKPOINTING, setting("checkpoint_offload", kept_layers=1))),
    "layers, head groups": ("layer", (setting("fake_parallel", groups=3), CHECKPOINTING)),
}  # fmt: skip
KERNELS = {"torch": CpuFlashKernel, "reference": ReferenceKernel}


@pytest.fixture(scope="module")
def doors(chatml_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return store_of("k01_pack_leak.jsonl", chatml_folder, tmp_path_factory.mktemp("doors"))


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> Callable[..., TrainingSetup]:
    """path(dtype) -> a fresh run that attends and recomputes in one of the ways there are."""
    engine, optimizations = PATHS[request.param]
    return lambda dtype=torch.float32: setup_in(dtype, *optimizations, engine=engine)


@pytest.mark.parametrize("kernel", KERNELS)
def test_token_losses_of_packed_samples_equal_those_alone(
    path: Callable[..., TrainingSetup], kernel: str, doors: TokenStore
) -> None:
    """Bug case B01a, fp32, train mode: 1e-5."""
    packed = BatchPlan(doors, packing=True, capacity=512).row(0, 0)
    assert sorted(packed.sample_ids) == [0, 1, 2]
    setup = path()
    setup.attention.kernel = KERNELS[kernel]()
    losses = token_losses(setup, packed)
    assert (losses != 0).sum() == packed.num_targets == doors.num_targets
    for sample, (begin, end) in zip(packed.sample_ids, pairwise(packed.cu_seqlens)):
        assert (losses[begin:end] - token_losses(setup, build_row(doors, (sample,)))).abs().max() < 1e-5


def test_replacing_one_sample_moves_no_other(
    path: Callable[..., TrainingSetup], doors: TokenStore, tmp_path: Path
) -> None:
    """Bug case B01a: other ids in sample 1, the losses of 2 and 3 stay bit for bit."""
    other = with_another_first_sample(doors, tmp_path / "other")
    before, after = (token_losses(path(), build_row(which, (0, 1, 2))) for which in (doors, other))
    first_end = build_row(doors, (0, 1, 2)).cu_seqlens[1]
    assert not torch.equal(before[:first_end], after[:first_end])
    assert torch.equal(before[first_end:], after[first_end:])


def test_gradients_of_a_pack_are_the_sum_of_those_alone(path: Callable[..., TrainingSetup], doors: TokenStore) -> None:
    _, packed = loss_and_gradients(path(torch.float64), build_row(doors, (0, 1, 2)))
    alone = [loss_and_gradients(path(torch.float64), build_row(doors, (sample,)))[1] for sample in range(3)]
    added = {name: sum(gradients[name] for gradients in alone) for name in packed}
    assert_same_gradients(packed, added, 1e-6)  # transformers' norms compute in float32


def with_another_first_sample(store: TokenStore, path: Path) -> TokenStore:
    with StoreWriter(path) as writer:
        for index in range(len(store)):
            tokens, targets = store.sample(index)
            writer.add(tokens if index else (tokens + 7) % VOCABULARY, targets)
        return writer.finish()


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


def test_a_sample_of_one_token_trains_nothing_and_spoils_nothing(
    path: Callable[..., TrainingSetup], tmp_path: Path
) -> None:
    """Bug case B01e, down to the loss: 21 targets in packs, the one-token sample adds zero and no NaN."""
    samples = json.loads((DATA / "k01_pretok_pack.json").read_text("utf-8"))["samples"]
    with StoreWriter(tmp_path / "store") as writer:
        for tokens in samples:
            writer.add(np.array(tokens), np.ones(len(tokens), dtype=bool))
        store = writer.finish()
    plan, setup = BatchPlan(store, packing=True, capacity=8), path()
    losses = [token_losses(setup, plan.row(0, index)) for index in range(plan.num_micro_batches(0))]
    assert sum(int((loss > 0).sum()) for loss in losses) == 21
    lone = next(index for index, tokens in enumerate(samples) if len(tokens) == 1)
    loss, gradients = loss_and_gradients(setup, build_row(store, (lone,)))
    assert loss == 0
    assert all((gradient == 0).all() for gradient in gradients.values())


def test_an_empty_row_adds_neither_loss_nor_gradient(tmp_path: Path) -> None:
    """What a data rank gets when fewer units are left than ranks."""
    with StoreWriter(tmp_path / "s") as writer:
        writer.add(torch.arange(5, 12).numpy(), torch.ones(7, dtype=torch.bool).numpy())
        store = writer.finish()
    loss, gradients = loss_and_gradients(setup_in(), build_row(store, ()))
    assert loss == 0
    assert all((gradient == 0).all() for gradient in gradients.values())
