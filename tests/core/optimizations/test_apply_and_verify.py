"""Each optimization applied to a tiny model: what it changes, what proves it, and that the proof can fail."""

from __future__ import annotations

import pytest
import torch

from core.loss.chunked import ChunkedLoss
from core.loss.head_loss import StockLoss
from core.model.adapters import add_lora
from core.optimizations import REGISTRY
from core.optimizations.evidence import NotActive
from core.parallel.layout import shard_row
from core.parallel.mesh import Mesh
from core.train.build import build_setup, enabled_optimizations, verify_setup
from core.train.forward import forward_loss
from planner.errors import ConfigError
from planner.model_spec import model_spec_from_config
from planner.types import ParallelDegrees
from tests.core.model.tiny_models import (
    CPU,
    loss_and_gradients,
    random_row,
    run_config,
    setting,
    tiny_model,
    tiny_setup,
)

ROW = random_row((13, 20), first_target=4)


def step(model, *optimizations, **overrides):
    setup = tiny_setup(model, *optimizations, **overrides)
    loss_and_gradients(setup, ROW)
    return setup


def claims(setup):
    return [evidence.claim for evidence in verify_setup(setup, REGISTRY)]


def test_optimizations_apply_in_the_order_of_their_stages():
    config = run_config([setting(name) for name in ("fused_loss", "gradient_checkpointing", "lora", "packing")])
    names = [optimization.name for optimization in enabled_optimizations(config, REGISTRY)]
    assert names == ["packing", "lora", "gradient_checkpointing", "fused_loss"]


class TestLora:
    def test_all_linear_means_the_linears_of_the_layers_and_never_the_head(self):
        setup = step(tiny_model(), setting("lora", rank=2))
        adapted = {
            name.split(".lora_")[0].rpartition(".")[2] for name, p in setup.model.named_parameters() if p.requires_grad
        }
        assert adapted == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
        assert "gradients reached both matrices of 14 adapters" in claims(setup)[0]

    @pytest.mark.parametrize("checkpointing", [False, True])
    def test_every_adapter_moves_within_two_steps_also_under_checkpointing(self, checkpointing):
        extra = (setting("gradient_checkpointing"),) if checkpointing else ()
        setup = tiny_setup(tiny_model(dtype=torch.float32), setting("lora", rank=2), *extra)
        optimizer = torch.optim.SGD([p for p in setup.model.parameters() if p.requires_grad], lr=0.1)
        for _ in range(2):
            loss_and_gradients(setup, ROW)
            optimizer.step()
        moved = [name for name, p in setup.model.named_parameters() if ".lora_B." in name and (p != 0).any()]
        assert len(moved) == 14

    def test_the_first_adapter_depends_on_the_seed_alone(self):
        def first_a(seed, noise):
            torch.manual_seed(noise)
            setup = tiny_setup(tiny_model(), setting("lora", rank=2), seed=seed)
            return next(p.detach().clone() for name, p in setup.model.named_parameters() if ".lora_A." in name)

        assert torch.equal(first_a(1, noise=10), first_a(1, noise=11))
        assert not torch.equal(first_a(1, noise=10), first_a(2, noise=10))

    def test_the_global_generator_is_left_alone(self):
        model = tiny_model()
        state = torch.get_rng_state()
        tiny_setup(model, setting("lora", rank=2))
        assert torch.equal(torch.get_rng_state(), state)

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_adapters_take_the_dtype_asked_for_and_the_base_keeps_its_own(self, dtype):
        model = tiny_model(dtype=torch.bfloat16)
        wrapped = add_lora(
            model, rank=2, alpha=4, targets="all-linear", dropout=0.0, dtype=getattr(torch, dtype), seed=0
        )
        dtypes = {(".lora_" in name, p.dtype) for name, p in wrapped.named_parameters()}
        assert dtypes == {(False, torch.bfloat16), (True, getattr(torch, dtype))}

    @pytest.mark.parametrize("target", ["lm_head", "embed_tokens", "q_porj"])
    def test_a_target_that_would_not_train_is_refused_with_those_that_do(self, target):
        with pytest.raises(ConfigError, match=rf"LoRA cannot target {target}.*q_proj, k_proj"):
            tiny_setup(tiny_model(), setting("lora", rank=2, targets=f"q_proj,{target}"))

    def test_an_adapter_that_no_gradient_reaches_stops_the_run(self):
        setup = tiny_setup(tiny_model(), setting("lora", rank=2))
        silent = setup.causal_lm.get_decoder().layers[1].mlp.down_proj
        for parameter in silent.parameters():
            parameter.requires_grad_(False)
        loss_and_gradients(setup, ROW)
        with pytest.raises(NotActive, match=r"no gradient reached 2 adapter matrices.*down_proj.A"):
            verify_setup(setup, REGISTRY)

    def test_a_base_that_is_not_frozen_stops_the_run(self):
        setup = tiny_setup(tiny_model(), setting("lora", rank=2))
        setup.causal_lm.get_decoder().norm.weight.requires_grad_(True)
        loss_and_gradients(setup, ROW)
        with pytest.raises(NotActive, match="1 base parameters are not frozen"):
            verify_setup(setup, REGISTRY)


class TestGradientCheckpointing:
    def test_every_layer_recomputes(self):
        setup = step(tiny_model(layers=3), setting("gradient_checkpointing"))
        assert claims(setup) == ["3 of 3 decoder layers recompute in backward"]

    def test_a_layer_that_does_not_recompute_stops_the_run(self):
        setup = tiny_setup(tiny_model(layers=3), setting("gradient_checkpointing"))
        setup.causal_lm.get_decoder().layers[1].gradient_checkpointing = False
        loss_and_gradients(setup, ROW)
        with pytest.raises(NotActive, match="2 of 3 layers recomputed in backward, 3 should"):
            verify_setup(setup, REGISTRY)

    @pytest.mark.parametrize("extra", [(), (setting("lora", rank=2),), (setting("checkpoint_offload"),)])
    @pytest.mark.parametrize("kept_layers", [1, 2])
    def test_kept_layers_do_not_recompute_and_change_no_gradient(self, extra, kept_layers):
        setup = tiny_setup(tiny_model(layers=3), setting("gradient_checkpointing", kept_layers=kept_layers), *extra)
        loss, got = loss_and_gradients(setup, ROW)
        assert claims(setup)[len(extra) if extra and extra[0].name == "lora" else 0].startswith(
            f"{3 - kept_layers} of 3 decoder layers recompute"
        )
        without = [s for s in extra if s.name != "checkpoint_offload"]
        want_loss, want = loss_and_gradients(tiny_setup(tiny_model(layers=3), *without), ROW)
        assert loss == want_loss
        assert got.keys() == want.keys()
        assert all(torch.equal(got[name], want[name]) for name in want)

    def test_only_the_layer_inputs_are_saved(self):
        def saved_bytes(*optimizations):
            setup = tiny_setup(tiny_model(layers=3, dtype=torch.float32), *optimizations)
            storages = {}

            def pack(x):
                storages[x.untyped_storage().data_ptr()] = (x.untyped_storage().nbytes(), x)
                return x

            weights = {p.untyped_storage().data_ptr() for p in setup.model.parameters()}
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
                forward_loss(setup, shard_row(ROW, setup.mesh, setup.device))
            return sum(nbytes for pointer, (nbytes, _) in storages.items() if pointer not in weights)

        everything, inputs = saved_bytes(), saved_bytes(setting("gradient_checkpointing"))
        assert inputs < everything / 3


class TestFusedLoss:
    def test_it_replaces_the_loss_and_counts_targets(self):
        setup = step(tiny_model(), setting("fused_loss", chunk_tokens=10))
        assert isinstance(setup.loss, ChunkedLoss)
        assert claims(setup) == [f"{ROW.num_targets} targets in {-(-ROW.num_targets // 10)} chunks of at most 10"]

    def test_another_loss_in_its_place_stops_the_run(self):
        setup = tiny_setup(tiny_model(), setting("fused_loss"))
        setup.loss = StockLoss()
        with pytest.raises(NotActive, match="StockLoss"):
            verify_setup(setup, REGISTRY)


class TestPacking:
    def test_it_counts_samples_in_rows(self):
        setup = step(tiny_model(), setting("packing"))
        assert setup.packing
        assert claims(setup) == ["2 samples in 1 row, each attending to itself alone"]

    def test_no_row_seen_is_no_proof(self):
        with pytest.raises(NotActive, match="0 rows seen"):
            verify_setup(tiny_setup(tiny_model(), setting("packing")), REGISTRY)


class TestDegrees:
    @pytest.mark.parametrize("axis", ["ring", "ulysses"])
    def test_a_degree_that_the_processes_are_not_laid_out_for_is_refused(self, axis):
        with pytest.raises(ConfigError, match=rf"{axis} degree 2 was asked for, but the processes are laid out for 1"):
            tiny_setup(tiny_model(), setting(axis, degree=2))

    @pytest.mark.parametrize("axis", ["ring", "ulysses"])
    def test_a_degree_of_one_is_the_plain_run(self, axis):
        setup = step(tiny_model(), setting(axis, degree=1))
        assert type(setup.attention).__name__ == "LocalAttention"
        assert claims(setup)[0].startswith("degree 1")


def test_fake_parallel_counts_the_modules_it_runs_in():
    setup = step(tiny_model(layers=3), setting("fake_parallel", groups=3))
    assert claims(setup) == ["3 of 3 attention modules work in 3 head groups"]
    setup.restore()
    with pytest.raises(NotActive, match="0 of 3"):
        verify_setup(setup, REGISTRY)


def test_a_head_with_a_bias_is_refused():
    model = tiny_model()
    model.lm_head.bias = torch.nn.Parameter(torch.zeros(model.config.vocab_size))
    with pytest.raises(ConfigError, match="head of tiny has a bias"):
        tiny_setup(model)


def test_the_attention_kernel_is_proven_before_the_first_step():
    events = []
    model = tiny_model(dtype=torch.float32)
    spec = model_spec_from_config("tiny", model.config.to_dict())
    mesh = Mesh(degrees=ParallelDegrees(), rank=0)
    build_setup(run_config(), spec, model, mesh, CPU, lambda kind, data: events.append((kind, data)), REGISTRY)
    [(kind, data)] = events
    assert kind == "evidence"
    assert data["optimization"] == "attention"
    assert data["claim"].startswith("torch CPU flash")
