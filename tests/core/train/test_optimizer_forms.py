"""The other forms of AdamW: 8-bit states, float32 masters, rounding by chance; what they hold and what they keep."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from core.train.optimizer import build_optimizer, state_tensors
from core.train.wide_adamw import WideAdamW, round_by_chance
from planner.model_spec import model_spec_from_config
from tests.core.model.tiny_models import tiny_model
from tests.planner.plans import account_of

SETTINGS = {"learning_rate": 1e-2, "weight_decay": 0.1, "betas": (0.9, 0.99), "epsilon": 1e-8}


def model_of(dtype, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(96, 80), nn.Linear(80, 3)).to(dtype)


def take_steps(model, optimizer, steps, seed=1):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
        optimizer.step()


@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused"])
def test_a_master_copy_takes_the_steps_of_a_float32_model(optim):
    narrow, wide = model_of(torch.bfloat16), model_of(torch.bfloat16).float()
    optimizer = build_optimizer(narrow, optim=optim, master_weights="fp32", **SETTINGS)
    plain = torch.optim.AdamW(
        [{"params": [p for p in wide.parameters() if p.ndim == 2], "weight_decay": 0.1},
         {"params": [p for p in wide.parameters() if p.ndim == 1], "weight_decay": 0.0}],
        lr=1e-2, betas=(0.9, 0.99), eps=1e-8, foreach=False, fused=optim == "adamw_torch_fused",
    )  # fmt: skip
    generator = torch.Generator().manual_seed(1)
    for _ in range(5):
        for a, b in zip(narrow.parameters(), wide.parameters()):
            a.grad = torch.randn(a.shape, generator=generator).to(torch.bfloat16)
            b.grad = a.grad.float()
        optimizer.step()
        plain.step()
    for a, b in zip(narrow.parameters(), wide.parameters()):
        assert torch.equal(optimizer.state[a]["master"], b)
        assert torch.equal(a, b.bfloat16())


def test_updates_below_half_a_unit_add_up_in_a_master_and_are_lost_without():
    def moved(master_weights):
        layer = nn.Linear(64, 64, bias=False).bfloat16()
        nn.init.ones_(layer.weight)
        optimizer = build_optimizer(
            layer,
            optim="adamw_torch",
            master_weights=master_weights,
            **SETTINGS | {"learning_rate": 1e-5, "weight_decay": 0},
        )
        for _ in range(800):  # 0.008 in all, each far below 1/512
            layer.weight.grad = torch.ones_like(layer.weight)
            optimizer.step()
        return (1 - layer.weight.float()).mean().item()

    assert moved("none") == 0
    assert moved("fp32") == pytest.approx(0.0078125)  # two units below 1, where they are 1/256
    assert moved("stochastic") == pytest.approx(0.008, rel=0.1)


def test_rounding_by_chance_takes_a_neighbour_with_the_share_of_the_way_to_it():
    low, high = 1.0, 1.0078125
    x = torch.full((200_000,), low + 0.3 * (high - low))
    rounded = round_by_chance(x, torch.bfloat16, torch.Generator().manual_seed(0))
    assert set(rounded.unique().tolist()) == {low, high}
    assert (rounded == high).float().mean().item() == pytest.approx(0.3, abs=0.005)
    exact = torch.tensor([-2.5, 0.0, float("inf"), -float("inf")])
    assert torch.equal(round_by_chance(exact, torch.bfloat16, torch.Generator().manual_seed(0)), exact)
    assert round_by_chance(torch.tensor([float("nan")]), torch.bfloat16, torch.Generator()).isnan().all()


def test_ranks_with_one_seed_round_alike_and_steps_round_anew():
    one, other, third = (model_of(torch.bfloat16) for _ in range(3))
    for model, seed in ((one, 7), (other, 7), (third, 8)):
        torch.rand(seed)  # the global generator has no part in it
        take_steps(
            model, build_optimizer(model, optim="adamw_torch", master_weights="stochastic", seed=seed, **SETTINGS), 3
        )
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters()))
    assert not all(torch.equal(a, b) for a, b in zip(one.parameters(), third.parameters()))


def test_8_bit_states_lead_near_the_wide_ones():
    narrow, wide = model_of(torch.float32), model_of(torch.float32)
    take_steps(narrow, build_optimizer(narrow, optim="adamw_8bit", **SETTINGS), 10)
    take_steps(wide, build_optimizer(wide, optim="adamw_torch", **SETTINGS), 10)
    start = model_of(torch.float32)
    for a, b, c in zip(narrow.parameters(), wide.parameters(), start.parameters()):
        assert (a - b).norm() < 0.05 * (b - c).norm()


@pytest.mark.parametrize(
    ("optim", "master_weights"), [("adamw_8bit", "none"), ("adamw_torch", "fp32"), ("adamw_torch", "stochastic")]
)
def test_states_are_as_large_as_planned(optim, master_weights):
    """Tensors on both sides of 4,096 elements and of whole blocks of 256."""
    model = tiny_model("qwen2", heads=16, kv_heads=4, intermediate_size=130, vocab_size=301, dtype=torch.bfloat16)
    optimizer = build_optimizer(model, optim=optim, master_weights=master_weights, **SETTINGS)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    held = sum(
        value.nbytes
        for parameter in model.parameters()
        for name, value in state_tensors(optimizer, parameter).items()
        if name != "step"
    )
    spec = model_spec_from_config("tiny", model.config.to_dict())
    terms = account_of({}, model=spec, optim=optim, master_weights=master_weights).combined.specs
    assert held == sum(term.bytes for term in terms if term.key.startswith("optimizer."))


def test_wide_updates_are_those_of_16_bit_parameters_only_where_asked_for():
    assert not isinstance(build_optimizer(model_of(torch.bfloat16), optim="adamw_torch", **SETTINGS), WideAdamW)
