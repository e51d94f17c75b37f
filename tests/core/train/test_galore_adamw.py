"""GaLore's AdamW against the plain formula and the authors' package; its states, their plan, and a resume."""

from __future__ import annotations

import math

import pytest
import torch

from core.optimizations import REGISTRY
from core.optimizations.evidence import NotActive
from core.train import saved_state
from core.train.build import verify_setup
from core.train.galore_adamw import GaloreAdamW, Projection
from core.train.optimizer import build_optimizer, state_tensors
from planner.model_spec import model_spec_from_config
from planner.parts.galore import PROJ_TYPES
from tests.core.model.tiny_models import loss_and_gradients, random_row, setting, tiny_model, tiny_setup
from tests.planner.plans import account_of

RATE, BETAS, EPSILON = 1e-2, (0.8, 0.9), 1e-12
SETTINGS = {"learning_rate": RATE, "weight_decay": 0.0, "betas": BETAS, "epsilon": EPSILON}
SHAPES = {"wide": (12, 20), "tall": (20, 12), "square": (16, 16)}


def gradients(shape, steps):
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(shape, generator=generator) for _ in range(steps)]


def optimizer_of(parameter, proj_type, *, gap=3, rank=4, scale=0.5):
    projection = Projection(rank=rank, update_proj_gap=gap, scale=scale, proj_type=proj_type)
    groups = [{"params": [parameter], "projected": True}]
    return GaloreAdamW(
        groups, projection=projection, fused=False, lr=RATE, betas=BETAS, eps=EPSILON, weight_decay=0.0
    )  # fmt: skip


def moved(parameter, optimizer, steps):
    for gradient in steps:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


def by_the_paper(weight, steps, *, side, rank=4, gap=3, scale=0.5):
    """Algorithm 2 for one side, written out."""
    m = v = 0.0
    for t, gradient in enumerate(steps):
        if t % gap == 0:
            u, _, vh = torch.linalg.svd(gradient, full_matrices=False)
            p = u[:, :rank] if side == "left" else vh[:rank].T
        low = p.T @ gradient if side == "left" else gradient @ p
        m, v = BETAS[0] * m + (1 - BETAS[0]) * low, BETAS[1] * v + (1 - BETAS[1]) * low**2
        corrected = m / (1 - BETAS[0] ** (t + 1)), v / (1 - BETAS[1] ** (t + 1))
        normed = corrected[0] / (corrected[1].sqrt() + EPSILON)
        weight = weight - RATE * scale * (p @ normed if side == "left" else normed @ p.T)
    return weight


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_side_follows_the_formula(shape, side):
    parameter = torch.nn.Parameter(torch.ones(SHAPES[shape]))
    steps = gradients(SHAPES[shape], 7)
    got = moved(parameter, optimizer_of(parameter, side), steps)
    assert torch.allclose(got, by_the_paper(torch.ones(SHAPES[shape]), steps, side=side), atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
# not "full": there the gradient that was decomposed is diagonal, and AdamW makes signs of the rounding beside it
@pytest.mark.parametrize("proj_type", ["std", "reverse_std", "left", "right"])
def test_it_moves_as_the_authors_package_does(shape, proj_type):
    galore_torch = pytest.importorskip("galore_torch.adamw", reason="pip install --no-deps galore-torch")
    if proj_type in ("std", "reverse_std") and shape == "square":
        pytest.skip("the package tells sides by the projected gradient's shape, which a square matrix does not keep")
    ours, theirs = (torch.nn.Parameter(torch.ones(SHAPES[shape])) for _ in range(2))
    knobs = {"rank": 4, "update_proj_gap": 3, "scale": 0.5, "proj_type": proj_type}
    reference = galore_torch.AdamW(
        [{"params": [theirs], **knobs}], lr=RATE, betas=BETAS, eps=EPSILON, no_deprecation_warning=True
    )
    steps = gradients(SHAPES[shape], 7)
    assert torch.allclose(moved(ours, optimizer_of(ours, proj_type), steps), moved(theirs, reference, steps), atol=1e-6)


def test_what_is_not_projected_moves_as_adamw_moves_it():
    model, plain = (tiny_model(dtype=torch.float32) for _ in range(2))
    projection = Projection(rank=4, update_proj_gap=2, scale=1.0, proj_type="std")
    settings = SETTINGS | {"weight_decay": 0.1}
    optimizers = [
        build_optimizer(model, optim="adamw_torch", projection=projection, **settings),
        build_optimizer(plain, optim="adamw_torch", **settings),
    ]
    for a, b in zip(model.parameters(), plain.parameters()):
        a.grad = b.grad = torch.randn(a.shape)
    for optimizer in optimizers:
        optimizer.step()
    same = {name for (name, a), b in zip(model.named_parameters(), plain.parameters()) if torch.equal(a, b)}
    assert same == {name for name, _ in model.named_parameters() if "proj" not in name}


def test_a_rank_that_is_not_below_both_sides_leaves_a_matrix_alone():
    assert Projection(rank=12, update_proj_gap=1, scale=1.0, proj_type="std").sides(20, 12) == ()
    assert Projection(rank=11, update_proj_gap=1, scale=1.0, proj_type="std").sides(20, 12) == ("right",)


@pytest.mark.parametrize("proj_type", PROJ_TYPES)
def test_states_are_as_large_as_planned(proj_type):
    model = tiny_model("qwen2", heads=16, kv_heads=4, intermediate_size=130, dtype=torch.bfloat16)
    knobs = {"rank": 24, "update_proj_gap": 5, "scale": 0.25, "proj_type": proj_type}
    optimizer = build_optimizer(model, optim="adamw_torch", projection=Projection(**knobs), **SETTINGS)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    held = sum(
        value.nbytes
        for parameter in model.parameters()
        for name, value in state_tensors(optimizer, parameter).items()
        if name not in ("step", "num_steps")
    )
    spec = model_spec_from_config("tiny", model.config.to_dict())
    terms = account_of({"galore": knobs}, model=spec).combined.specs
    assert held == sum(term.bytes for term in terms if term.key.startswith("optimizer."))
    assert all(
        value.untyped_storage().nbytes() == value.nbytes
        for parameter in model.parameters()
        for value in state_tensors(optimizer, parameter).values()
    )


def test_training_goes_on_from_a_saved_state_within_a_gap_as_if_never_stopped(tmp_path):
    projection = Projection(rank=4, update_proj_gap=3, scale=0.5, proj_type="std")

    def fresh():
        model = tiny_model(dtype=torch.float32)
        return model, build_optimizer(model, optim="adamw_torch", projection=projection, **SETTINGS)

    def take(model, optimizer, numbers):
        for number in numbers:
            generator = torch.Generator().manual_seed(number)
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            optimizer.step()

    whole, optimizer = fresh()
    take(whole, optimizer, range(5))
    saved_state.save_weights(whole, tmp_path)
    saved_state.save_optimizer(optimizer, whole, tmp_path)
    take(whole, optimizer, range(5, 9))
    resumed, other = fresh()
    saved_state.load_weights(resumed, tmp_path)
    saved_state.load_optimizer(other, resumed, tmp_path)
    take(resumed, other, range(5, 9))
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters()))


class TestInARun:
    def step(self, *, build=True):
        setup = tiny_setup(tiny_model(dtype=torch.float32), setting("galore", rank=8))
        loss_and_gradients(setup, random_row((13, 20)))
        if build:
            setup.optimizer = build_optimizer(setup.model, optim="adamw_torch", projection=setup.projection, **SETTINGS)
            setup.optimizer.step()
        return setup

    def test_the_proof_counts_matrices_and_their_states(self):
        [evidence] = verify_setup(self.step(), REGISTRY)
        # two layers of q 54x54, k and v 18x54, o 54x54, gate and up 40x54, down 54x40
        longer = 2 * 8 * (54 + 54 + 54 + 54 + 3 * 54)
        assert evidence.claim == f"14 of 14 matrices have states of rank 8, {2 * 4 * longer:,} bytes"

    def test_another_optimizer_stops_the_run(self):
        with pytest.raises(NotActive, match="0 of 14 matrices have projected states"):
            verify_setup(self.step(build=False), REGISTRY)

    def test_it_learns(self):
        setup = tiny_setup(tiny_model(dtype=torch.float32), setting("galore", rank=8, scale=1.0, update_proj_gap=2))
        row = random_row((13, 20))
        settings = SETTINGS | {"learning_rate": 3e-3}
        optimizer = build_optimizer(setup.model, optim="adamw_torch", projection=setup.projection, **settings)
        losses = []
        for _ in range(12):
            loss, _ = loss_and_gradients(setup, row, divide_by=row.num_targets)
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0] - 0.5
        assert all(math.isfinite(loss) for loss in losses)
