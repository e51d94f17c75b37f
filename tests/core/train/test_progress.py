from dataclasses import replace

import pytest

from core.train.progress import Best, Origin, Progress, Sums, read_state, write_state
from core.train.windows import Position

ORIGIN = Origin(config_hash="abc", world=2, device="cpu", deterministic=True, versions={"torch": "2.13.0"})


def test_state_file_gives_every_number_back_exactly(tmp_path):
    progress = Progress(
        step=7,
        position=Position(epoch=1, micro_batch=3),
        epochs_done=1.0 / 3.0,
        tokens_seen=10**12,
        unlogged=Sums(loss=0.1 + 0.2, num_targets=5, tokens=6, seconds=1e-9),
        best=Best(step=5, eval_loss=2.0 / 3.0),
    )
    write_state(tmp_path, progress, ORIGIN, {"lr_scheduler_type": "cosine", "learning_rate": 1e-5})
    assert read_state(tmp_path) == (progress, ORIGIN)
    write_state(tmp_path, Progress(), ORIGIN, {})
    assert read_state(tmp_path) == (Progress(), ORIGIN)


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"config_hash": "def"}, "abc -> def"),
        ({"world": 4}, "2 processes saved it, 4 continue"),
        ({"device": "NVIDIA H200"}, "saved on cpu, continued on NVIDIA H200"),
        ({"deterministic": False}, "deterministic: true"),
        ({"versions": {"torch": "2.14.0"}}, "torch 2.13.0 -> 2.14.0"),
        ({"versions": {}}, "torch 2.13.0 -> absent"),
    ],
)
def test_each_difference_that_costs_exactness_is_named(changes, fact):
    assert ORIGIN.differences(ORIGIN) == ()
    (reason,) = ORIGIN.differences(replace(ORIGIN, **changes))
    assert fact in reason
