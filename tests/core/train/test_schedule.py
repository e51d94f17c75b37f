import math

import pytest

from core.train.schedule import WSD_DECAY_SHARE, learning_rate_factor, warmup_length

TOTAL = 50


def curve(kind, warmup):
    return [learning_rate_factor(kind, step, total_steps=TOTAL, warmup_steps=warmup) for step in range(TOTAL + 1)]


@pytest.mark.parametrize("warmup", [0, 1, 7])
@pytest.mark.parametrize("kind", ["linear", "cosine", "constant", "wsd"])
def test_factor_equals_the_scheduler_of_transformers(kind, warmup):
    torch = pytest.importorskip("torch")
    from transformers import optimization

    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scheduler = {
        "linear": lambda: optimization.get_linear_schedule_with_warmup(optimizer, warmup, TOTAL),
        "cosine": lambda: optimization.get_cosine_schedule_with_warmup(optimizer, warmup, TOTAL),
        "constant": lambda: optimization.get_constant_schedule_with_warmup(optimizer, warmup),
        "wsd": lambda: optimization.get_wsd_schedule(
            optimizer, warmup, math.ceil(WSD_DECAY_SHARE * TOTAL), num_training_steps=TOTAL, decay_type="1-sqrt"
        ),
    }[kind]()
    theirs = []
    for _ in range(TOTAL):
        theirs.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    assert curve(kind, warmup)[:TOTAL] == pytest.approx(theirs, abs=1e-12)


def test_wsd_is_flat_between_warmup_and_the_last_fifth():
    factors = curve("wsd", 5)
    assert factors[5:41] == [1.0] * 36
    assert factors[41] < 1.0
    assert factors[50] == 0.0


@pytest.mark.parametrize("kind", ["linear", "cosine", "constant", "wsd"])
def test_one_step_run_trains_at_the_full_rate(kind):
    assert learning_rate_factor(kind, 0, total_steps=1, warmup_steps=0) == 1.0


def test_warmup_longer_than_the_run_never_leaves_zero_to_one():
    for kind in ("linear", "cosine", "constant", "wsd"):
        factors = [learning_rate_factor(kind, step, total_steps=3, warmup_steps=8) for step in range(4)]
        assert factors == [0.0, 0.125, 0.25, 0.375]


def test_warmup_steps_rule_over_the_ratio_and_the_ratio_rounds_up():
    assert warmup_length(total_steps=100, warmup_ratio=0.5, warmup_steps=3) == 3
    assert warmup_length(total_steps=101, warmup_ratio=0.03, warmup_steps=0) == 4
    assert warmup_length(total_steps=100, warmup_ratio=0.0, warmup_steps=0) == 0
