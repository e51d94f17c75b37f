import pytest
import torch
from torch import nn

from core.train.optimizer import _buckets, build_optimizer, clip_gradients, gradient_norm, set_learning_rate


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.linear = nn.Linear(4, 3)
        self.norm = nn.LayerNorm(3)
        self.frozen = nn.Linear(3, 3)
        self.frozen.requires_grad_(False)

    def forward(self, ids):
        return self.norm(self.linear(self.embedding(ids)))


def build(model, **changes):
    settings = {"optim": "adamw_torch", "learning_rate": 0.1, "weight_decay": 0.5, "betas": (0.8, 0.9), "epsilon": 1e-8}
    return build_optimizer(model, **(settings | changes))


def test_weight_decay_reaches_matrices_only():
    model = Block()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    build(model).step()
    after = dict(model.named_parameters())
    for name in ("embedding.weight", "linear.weight"):
        assert torch.allclose(after[name], before[name] * (1 - 0.1 * 0.5))
    for name in ("linear.bias", "norm.weight", "norm.bias", "frozen.weight", "frozen.bias"):
        assert torch.equal(after[name], before[name])


@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused"])
def test_update_follows_the_formula_of_adamw(optim):
    model = nn.Linear(2, 1, bias=False)
    weight = model.weight.detach().clone()
    optimizer = build(model, optim=optim, weight_decay=0.0)
    assert optimizer.param_groups[0]["fused"] is (True if optim == "adamw_torch_fused" else None)
    gradient = torch.tensor([[0.5, -2.0]])
    moments = [torch.zeros(1, 2), torch.zeros(1, 2)]
    for step in (1, 2, 3):
        model.weight.grad = gradient * step
        set_learning_rate(optimizer, 0.1 / step)
        optimizer.step()
        moments[0] = 0.8 * moments[0] + 0.2 * gradient * step
        moments[1] = 0.9 * moments[1] + 0.1 * (gradient * step) ** 2
        corrected = [moments[0] / (1 - 0.8**step), moments[1] / (1 - 0.9**step)]
        weight = weight - 0.1 / step * corrected[0] / (corrected[1].sqrt() + 1e-8)
        assert torch.allclose(model.weight, weight, atol=1e-6)


@pytest.mark.parametrize(("max_norm", "after"), [(1.0, 1.0), (10.0, 5.0), (0.0, 5.0)])
def test_clipping_scales_all_gradients_together_and_zero_switches_it_off(max_norm, after):
    parameters = [nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))]
    parameters[0].grad, parameters[1].grad = torch.tensor([3.0]), torch.tensor([-4.0])
    norm = gradient_norm(parameters)
    assert norm.item() == 5.0
    clip_gradients(parameters, norm, max_norm)
    assert gradient_norm(parameters).item() == pytest.approx(after, rel=1e-5)
    assert parameters[0].grad.item() / parameters[1].grad.item() == pytest.approx(-0.75)


def test_norm_of_bfloat16_gradients_is_accumulated_in_float32():
    parameter = nn.Parameter(torch.zeros(4096, dtype=torch.bfloat16))
    parameter.grad = torch.full_like(parameter, 1.0)
    assert gradient_norm([parameter]).item() == 64.0
    parameter.grad[0] = float("inf")
    assert gradient_norm([parameter]).item() == float("inf")


def test_buckets_keep_order_and_size_and_never_mix_dtypes():
    tensors = [
        torch.zeros(n, dtype=d)
        for n, d in [
            (10, torch.float32),
            (20, torch.bfloat16),
            (100, torch.float32),
            (1, torch.float64),
            (1, torch.float32),
        ]
    ]
    buckets = list(_buckets(tensors, bucket_bytes=200))
    assert [[x.numel() for x in bucket] for bucket in buckets] == [[10], [20], [50], [50], [1], [1]]


def test_a_gradient_larger_than_a_bucket_is_summed_in_pieces_of_itself():
    large = torch.arange(101.0)
    pieces = [piece for bucket in _buckets([large], bucket_bytes=40) for piece in bucket]
    assert [piece.numel() for piece in pieces] == [10] * 10 + [1]
    for piece in pieces:
        piece += 1
    assert torch.equal(large, torch.arange(101.0) + 1)
