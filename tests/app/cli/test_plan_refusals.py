"""`longfit plan` and bad input: refused with the numbers, the reason, and the smallest change that works."""

from __future__ import annotations

import pytest

from app.cli.main import main

PRESET = "qwen2.5-7b-8k-1x24g"


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (("--set", "=3"), ("no key before the '='",)),
        (("--set", "max_length=0"), ("max_length is 0", "least it can be is 8")),
        (("--set", "max_length=-8"), ("max_length is -8", "least it can be is 8")),
        (("--set", "max_length=8k"), ("'8k'", "Write max_length: 8192")),
        (("--set", "max_length=99999999999999"), ("99999999999999", "16777216 or less")),
        (("--set", "max_length=200000"), ("200000", "32768", "factor: 6.5")),
        (("--gpu", "A11"), ("A11", "A10")),
        (("--gpu", "V100"), ("V100-16G or V100-32G",)),
        (("--gpu", "0xA10"), ("0 GPUs", "Write 1xA10")),
        (("--gpu", "4xA10", "--set", "sequence_parallel=3"), ("4 / 3", "degree 2, the nearest of 1, 2, 4; or 3 or 6")),
        (("--gpu", "4xA10", "--set", "ulysses=3"), ("28 query heads", "1, 2, 4")),
        (("--gpu", "2xA10", "--set", "ulysses=2", "--set", "ring=2"), ("degree of 4", "2 GPUs", "1, 2")),
        (("--set", "sequence_parallel=2"), ("one GPU", "fake_parallel: 2")),
        (("--set", "per_device_train_batch_size=0"), ("per_device_train_batch_size is 0",)),
        (("--set", "model=Qwen/Qwen3-7B"), ("Qwen/Qwen3-7B", "Qwen/Qwen3-8B")),
        (("--memory-limit", "5"), ("'5'", "Write 24GB")),
        (("--ladder", "--set", "max_length=200000"), ("200000", "factor: 6.5")),
        (("--gpu", "A10", "--goal", "cheapest"), ("cheapest has no answer on A10", "goal fastest")),
        (("--explain", "logit"), ("'logit'", "logits")),
    ],
)
def test_it_is_refused_with_a_way_out(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], facts: tuple[str, ...]
) -> None:
    assert main(["plan", PRESET, *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    for fact in facts:
        assert fact in said.err


def test_cheapest_prints_what_tokens_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", PRESET, "--gpu", "L40S", "--goal", "cheapest"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Recommended, cheapest first" in out
    assert "per million tokens" in out
