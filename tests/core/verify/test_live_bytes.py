"""Bytes of live tensors are those of their storages, each once, from the operator that made it to its last user."""

from __future__ import annotations

import torch

from core.verify.live_bytes import LiveBytes


def test_a_storage_counts_once_and_until_its_last_view_is_gone() -> None:
    with LiveBytes() as live:
        x = torch.zeros(1000)
        view = x.view(10, 100)[2:]
        assert live.live_bytes == 4000
        del x
        assert live.live_bytes == 4000
        del view
        assert live.live_bytes == 0


def test_the_peak_belongs_to_the_phase_in_which_it_occurred() -> None:
    with LiveBytes() as live:
        live.phase = "first"
        x = torch.zeros(1000)
        _ = x + 1
        del _
        live.phase = "second"
        x += 1
        assert live.peaks == {"first": 8000, "second": 4000}


def test_what_autograd_saves_is_alive_until_backward() -> None:
    weight = torch.ones(10, 10, requires_grad=True)
    with LiveBytes([weight]) as live:
        x = torch.ones(10, 10) * 2.0
        loss = (x @ weight).exp().sum()
        del x
        assert live.live_bytes == 2 * 400 + 4  # x for the weight's gradient, exp for its own, and the loss
        loss.backward()
        del loss
        assert live.live_bytes == weight.grad.untyped_storage().nbytes() == 400


def test_tensors_from_before_and_of_no_device_do_not_count() -> None:
    before = torch.zeros(100)
    with LiveBytes([before]) as live:
        before.add_(1)
        torch.zeros(100, device="meta")
        assert live.live_bytes == 0


def test_scratch_of_a_kernel_is_part_of_the_peak_only() -> None:
    with LiveBytes(scratch={"aten.logsumexp.default": lambda args: 1000}) as live:
        live.phase = "loss"
        x = torch.zeros(25)
        result = x.logsumexp(0)
        assert live.live_bytes == 100 + result.untyped_storage().nbytes()
        assert live.peaks["loss"] == 1104
