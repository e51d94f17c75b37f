"""What is compared, and when it counts as off; the dry runs themselves are tested in tests/core/verify."""

from __future__ import annotations

import pytest

from app.services.verify import (
    LAYER_METHODS,
    LAYER_MODELS,
    LONG_LAYER_MODELS,
    REFERENCE_METHODS,
    REFERENCE_MODELS,
    Difference,
    cases_of,
    compare,
    verify,
)
from planner.errors import ConfigError
from planner.layer_policy import FAMILIES
from planner.types import INSTANTS

MIB = 1024**2


def test_a_share_of_the_peak_or_some_bytes_may_differ_whichever_is_larger() -> None:
    (case,) = cases_of(["qwen2.5-7b-8k-1x24g"])
    planned = {found.instant: found.planned_bytes for found in compare(case, dict.fromkeys(INSTANTS, 1)).differences}
    share = round(0.005 * planned["layer_backward"])

    def off(**excess: int) -> list[str]:
        held = {instant: planned[instant] + excess.get(instant, 0) for instant in ("load", "layer_backward")}
        return [found.instant for found in compare(case, held).off]

    assert share > 64 * MIB
    assert off(load=share - MIB, layer_backward=MIB - share) == []
    assert off(load=share + MIB) == ["load"]
    assert off(layer_backward=-share - MIB) == ["layer_backward"]
    small = Difference(instant="load", planned_bytes=2 * MIB, dry_run_bytes=MIB, allowed_bytes=64 * MIB)
    assert not small.is_off
    assert small.error == 1.0


def test_without_names_models_of_six_families_at_least_with_every_method_of_both_engines() -> None:
    cases = cases_of(())
    modules = [case for case in cases if case.resolved.config.engine == "module"]
    assert len(modules) == len(REFERENCE_MODELS) * len(REFERENCE_METHODS) >= 40
    families = {case.resolved.model.family for case in modules}
    assert families >= {"gemma", "gemma3_text", "llama", "mistral", "qwen2", "qwen3", "smollm3"}
    by_layers = [case.resolved for case in cases if case.resolved.config.engine == "layer"]
    assert len(by_layers) + len(modules) == len(cases)
    assert len(by_layers) == (len(LAYER_MODELS) + len(LONG_LAYER_MODELS)) * len(LAYER_METHODS)
    for family in FAMILIES:
        lengths = [found.config.max_length for found in by_layers if found.model.family == family]
        assert lengths.count(8192) >= 2 * len(LAYER_METHODS)
        assert lengths.count(65536) >= len(LAYER_METHODS)
    assert {found.config.method for found in by_layers} == {"lora", "qlora"}
    configs = [case.resolved.config for case in modules]
    assert {config.method for config in configs} == {"full", "lora"}
    assert {config.optimization("gradient_checkpointing") is None for config in configs} == {True, False}
    assert {config.optimization("fused_loss") is None for config in configs} == {True, False}
    assert {config.autocast for config in configs} == {True, False}


def test_a_preset_is_one_case_by_the_engine_of_its_run_and_a_model_has_every_method_of_both() -> None:
    (case,) = cases_of(["qwen2.5-7b-8k-1x24g"])
    assert case.title == "qwen2.5-7b-8k-1x24g"
    assert case.label == "layer engine: qwen2.5-7b-8k-1x24g"
    (full,) = cases_of(["llama3.1-8b-full-32k-1x141g"])
    assert full.label == "llama3.1-8b-full-32k-1x141g"
    assert [case.title for case in cases_of(["qwen3-4b"])] == [*REFERENCE_METHODS, *LAYER_METHODS]
    assert [case.title for case in cases_of(["gemma-7b"])] == list(REFERENCE_METHODS)


def test_methods_that_a_model_or_a_machine_cannot_do_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """SmolLM2-135M has three KV heads."""
    halves, quantised = "bf16 LoRA, 2 head groups", "QLoRA, attention kept"
    titles = [case.title for case in cases_of(["smollm2-135m"])]
    assert halves not in titles
    assert quantised in titles
    monkeypatch.setattr("app.services.verify.installed_version", lambda name: None)
    assert quantised not in [case.title for case in cases_of(["qwen3-4b"])]


def test_what_cannot_be_verified_is_refused() -> None:
    with pytest.raises(ConfigError, match="meant for 2 GPUs"):
        cases_of(["qwen2.5-7b-16k-2x24g"])
    with pytest.raises(ConfigError, match="not known here"):
        cases_of(["no-such-model"])


def test_only_tensors_are_compared_and_the_peak_is_of_both() -> None:
    (case,) = cases_of(["qwen2.5-7b-8k-1x24g"])
    verified = compare(case, {"load": 10, "layer_backward": 30, "forward_loss": 20})
    assert [found.instant for found in verified.differences] == ["load", "forward_loss", "layer_backward"]
    planned = {found.instant: found.planned_bytes for found in verified.differences}
    assert planned["load"] == 2 * 7_615_616_512 + 2 * 161_480_704
    assert verified.peak.dry_run_bytes == 30
    assert verified.peak.planned_bytes == max(planned.values())
    assert verified.off


def test_the_process_answers_for_a_whole_model() -> None:
    """The real thing, once by each engine: SmolLM2-135M at 8K, in a process that imports torch."""
    titles = ("bf16 LoRA, checkpointing, fused loss", "bf16 LoRA, attention kept")
    cases = [case for case in cases_of(["smollm2-135m"]) if case.title in titles]
    assert [case.resolved.config.engine for case in cases] == ["module", "layer"]
    for verified in verify(tuple(cases)):
        assert len(verified.differences) == 10
        assert abs(verified.peak.error) <= 0.005
        assert not verified.off
