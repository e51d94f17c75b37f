"""Held-out loss by position: buckets add up to the loss, each is what plain cross entropy says of its targets."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn import functional

from app.cli.attach import position_words
from core.data.row import IGNORE_INDEX
from core.loss.chunked import ChunkedLoss
from core.loss.head_loss import StockLoss
from core.train import position_loss
from core.train.position_loss import PositionLoss, position_edges
from tests.core.train.runs import make_run, train

CPU = torch.device("cpu")


def test_edges_double_until_the_longest_sample_fits() -> None:
    assert position_edges(1) == (1024,)
    assert position_edges(1024) == (1024,)
    assert position_edges(1025) == (1024, 2048)
    assert position_edges(100_000)[-1] == 131_072


@pytest.mark.parametrize("loss", [StockLoss(), ChunkedLoss(5)], ids=["stock", "chunked"])
def test_buckets_are_the_cross_entropies_of_their_positions(loss) -> None:
    generator = torch.Generator().manual_seed(0)
    positions = torch.cat((torch.arange(40), torch.arange(7), torch.arange(20)))[None]  # three packed samples
    tokens = positions.shape[1]
    hidden, head = torch.randn(1, tokens, 8, generator=generator), torch.randn(50, 8, generator=generator)
    labels = torch.randint(0, 50, (1, tokens), generator=generator)
    labels[torch.rand(1, tokens, generator=generator) < 0.4] = IGNORE_INDEX
    target_index = (labels[0] != IGNORE_INDEX).nonzero()[:, 0]

    split = PositionLoss(loss, (8, 16, 64, 128), CPU)
    split.position_ids = positions
    total = split(hidden, head, labels, target_index)

    per_token = functional.cross_entropy(hidden[0] @ head.T, labels[0], reduction="none", ignore_index=IGNORE_INDEX)
    bounds = (0, 8, 16, 64, 128)
    for bucket, (begin, end) in enumerate(itertools.pairwise(bounds)):
        inside = (positions[0] >= begin) & (positions[0] < end)
        assert split.sums[bucket] == pytest.approx(per_token[inside].sum().item(), abs=1e-4)
        assert split.num_targets[bucket] == int((inside & (labels[0] != IGNORE_INDEX)).sum())
    assert total.item() == pytest.approx(per_token.sum().item(), abs=1e-4)


def test_a_shard_without_targets_adds_nothing() -> None:
    split = PositionLoss(StockLoss(), (8, 16), CPU)
    split.position_ids = torch.arange(4)[None]
    nothing = torch.full((1, 4), IGNORE_INDEX)
    assert split(torch.randn(1, 4, 8), torch.randn(50, 8), nothing, torch.empty(0, dtype=torch.int64)) == 0
    assert split.num_targets == [0, 0]


def test_a_run_reports_its_held_out_loss_by_position(tiny_model_dir, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(position_loss, "FIRST_EDGE_TOKENS", 8)
    _, channel, _ = train(make_run(tmp_path, tiny_model_dir, max_steps=1, eval_lengths=(40, 5, 17)))
    for row in (row for row in channel.rows if "eval_loss" in row):
        buckets = row["eval_loss_by_position"]
        assert [(bucket["begin"], bucket["end"]) for bucket in buckets] == [(0, 8), (8, 16), (16, 32), (32, 64)]
        counts = [bucket["num_targets"] for bucket in buckets]
        assert sum(counts) == channel.of("evaluation")[0]["num_targets"]
        mean = sum(bucket["loss"] * bucket["num_targets"] for bucket in buckets) / sum(counts)
        assert row["eval_loss"] == pytest.approx(mean, rel=1e-12)


def test_the_line_of_an_evaluation_shows_buckets_only_where_there_are_several() -> None:
    short = {"begin": 0, "end": 1024, "loss": 1.3, "num_targets": 5}
    long = {"begin": 1024, "end": 2048, "loss": 1.2, "num_targets": 5}
    assert position_words({"eval_loss_by_position": [short]}) == ""
    assert position_words({"eval_loss_by_position": [short, long]}) == ", at 0-1,024 1.3000, 1,024-2,048 1.2000"
    assert position_words({}) == ""
