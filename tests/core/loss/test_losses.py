"""Chunked loss against stock loss and plain cross entropy: value, both gradients, what it holds, and how it scales."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from core.loss.chunked import ChunkedLoss
from core.loss.head_loss import StockLoss

DATA = Path(__file__).parents[2] / "data"
TOKENS, WIDTH, VOCABULARY = 43, 16, 101


def inputs(dtype=torch.float64, *, share_of_targets=0.6, trains_head=True):
    generator = torch.Generator().manual_seed(5)
    hidden = torch.randn(1, TOKENS, WIDTH, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    head = torch.randn(VOCABULARY, WIDTH, generator=generator, dtype=torch.float64).to(dtype)
    labels = torch.randint(0, VOCABULARY, (1, TOKENS), generator=generator)
    labels[torch.rand(1, TOKENS, generator=generator) > share_of_targets] = -100
    return hidden, head.requires_grad_(trains_head), labels


def plain(hidden, head, labels):
    """In float64, from the values of the inputs."""
    hidden, head = hidden.detach().double().requires_grad_(), head.detach().double().requires_grad_()
    loss = functional.cross_entropy(functional.linear(hidden[0], head), labels[0], reduction="sum")
    return loss.detach(), *torch.autograd.grad(loss, (hidden, head))


@pytest.mark.parametrize(
    "loss_function",
    [StockLoss(), ChunkedLoss(1), ChunkedLoss(7), ChunkedLoss(1000)],
    ids=["stock", "chunks of 1", "chunks of 7", "one chunk"],
)
@pytest.mark.parametrize("share_of_targets", [1.0, 0.6, 0.05])
def test_loss_and_gradients_equal_plain_cross_entropy(loss_function, share_of_targets):
    hidden, head, labels = inputs(share_of_targets=share_of_targets)
    want = plain(hidden, head, labels)
    loss = loss_function(hidden, head, labels)
    got = (loss, *torch.autograd.grad(loss, (hidden, head)))
    for ours, expected in zip(got, want):
        assert (ours - expected).abs().max() < 1e-11


@pytest.mark.parametrize("loss_function", [StockLoss(), ChunkedLoss(8)], ids=["stock", "chunked"])
def test_without_a_target_loss_and_gradients_are_zero_and_not_nan(loss_function):
    hidden, head, labels = inputs(share_of_targets=0.0)
    loss = loss_function(hidden, head, labels)
    assert loss == 0
    for gradient in torch.autograd.grad(loss, (hidden, head)):
        assert (gradient == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_sixteen_bit_inputs_accumulate_in_float32(dtype):
    """The error is a few roundings of the dtype, no worse than the stock path's, whatever the chunk."""
    hidden, head, labels = inputs(dtype)
    want = plain(hidden, head, labels)

    def errors(loss_function):
        loss = loss_function(hidden, head, labels)
        assert loss.dtype == torch.float32
        got = (loss, *torch.autograd.grad(loss, (hidden, head)))
        assert got[1].dtype == got[2].dtype == dtype
        return [((g.double() - w).abs().max() / w.abs().max()).item() for g, w in zip(got, want)]

    floor = 4 * torch.finfo(dtype).eps
    for ours, stock in zip(errors(ChunkedLoss(9)), errors(StockLoss())):
        assert ours <= 2 * stock + floor


def test_a_frozen_head_costs_no_gradient_and_the_incoming_gradient_scales():
    hidden, head, labels = inputs(trains_head=False)
    want = plain(hidden, head, labels)
    loss = ChunkedLoss(7)(hidden, head, labels) / 12
    loss.backward()
    assert head.grad is None
    assert (hidden.grad - want[1] / 12).abs().max() < 1e-12


def test_a_second_backward_is_refused_because_the_gradients_were_scaled_in_place():
    hidden, head, labels = inputs()
    loss = ChunkedLoss(7)(hidden, head, labels)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="one backward only"):
        loss.backward()


def test_evaluation_forms_no_gradient():
    hidden, head, labels = inputs()
    with torch.no_grad(), Widest() as widest:
        loss = ChunkedLoss(7)(hidden, head, labels)
    assert not loss.requires_grad
    assert (loss - plain(hidden, head, labels)[0]).abs() < 1e-11
    assert widest.elements < TOKENS * VOCABULARY


class Widest(TorchDispatchMode):
    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        sizes = [x.numel() for x in tree_leaves(out) if isinstance(x, torch.Tensor) and VOCABULARY in x.shape]
        self.elements = max([self.elements, *sizes])
        return out


def test_logits_of_more_than_a_chunk_never_exist():
    hidden, head, labels = inputs(share_of_targets=1.0, trains_head=False)
    with Widest() as widest:
        ChunkedLoss(20)(hidden, head, labels).backward()
    assert widest.elements == 20 * VOCABULARY > head.numel()


def test_prompts_cost_nothing():
    hidden, head, labels = inputs(share_of_targets=0.3)
    loss_function = ChunkedLoss(5)
    loss_function(hidden, head, labels)
    num_targets = int((labels != -100).sum())
    assert (loss_function.num_targets, loss_function.num_chunks) == (num_targets, -(-num_targets // 5))


def test_under_autocast_both_losses_multiply_in_its_dtype():
    hidden, head, labels = inputs(torch.float32)
    losses = []
    for loss_function in (StockLoss(), ChunkedLoss(7)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            losses.append(loss_function(hidden, head, labels))
        hidden.grad = head.grad = None
        losses[-1].backward()
        assert hidden.grad.dtype == head.grad.dtype == torch.float32
    assert losses[0].dtype == losses[1].dtype == torch.float32
    assert losses[0] != StockLoss()(hidden, head, labels)
    assert abs(losses[0] - losses[1]) < 1e-2 * losses[0]


def test_shards_of_unequal_target_counts_add_up_to_the_loss_of_the_row():
    """A mean of shard means gives 0.5, division by the local count 2.0 or NaN; right is 1.0."""
    case = json.loads((DATA / "k02_sp_uneven_labels.json").read_text())
    nll = torch.tensor(case["per_target_nll_example"], dtype=torch.float64)
    # a head of two classes whose logits give exactly these losses for class 0
    hidden = torch.zeros(1, 16, 2, dtype=torch.float64)
    labels = torch.full((1, 16), -100)
    targets = torch.arange(9, 15)  # shifted: token 10 is predicted from position 9
    hidden[0, targets, 0], hidden[0, targets, 1], labels[0, targets] = -nll, torch.log1p(-(-nll).exp()), 0
    head = torch.eye(2, dtype=torch.float64)
    for loss_function in (StockLoss(), ChunkedLoss(4)):
        shards = [loss_function(hidden[:, part], head, labels[:, part]) for part in (slice(0, 8), slice(8, 16))]
        assert shards[0] == 0
        assert abs(sum(shards) / 6 - case["right_loss"]) < 1e-12
