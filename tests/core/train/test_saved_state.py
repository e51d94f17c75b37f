"""Weights, optimizer and generators come back bit for bit, in the layouts that other tools read."""

import json

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from core.train import saved_state
from core.train.optimizer import build_optimizer
from planner.errors import ConfigError

IDS = torch.tensor([[3, 7, 11, 5, 2]])


@pytest.fixture
def adapted(tiny_model_dir):
    torch.manual_seed(1)
    base = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    return get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", lora_dropout=0.1))


@pytest.fixture
def whole(tiny_model_dir):
    return AutoModelForCausalLM.from_pretrained(tiny_model_dir)


def optimizer_of(model, optim="adamw_torch", master_weights="none"):
    return build_optimizer(
        model, optim=optim, learning_rate=0.01, weight_decay=0.1, betas=(0.9, 0.99), epsilon=1e-8,
        master_weights=master_weights, seed=3,
    )  # fmt: skip


def take_steps(model, optimizer, steps):
    losses = []
    for _ in range(steps):
        loss = model(input_ids=IDS, labels=IDS).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_adapter_folder_is_loaded_by_peft_with_equal_logits(adapted, tiny_model_dir, tmp_path):
    take_steps(adapted, optimizer_of(adapted), 2)
    saved_state.save_weights(adapted, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    assert json.loads((tmp_path / "adapter_config.json").read_text())["inference_mode"] is True
    assert adapted.peft_config["default"].inference_mode is False
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model_dir), tmp_path)
    adapted.eval()
    with torch.no_grad():
        assert torch.equal(loaded(IDS).logits, adapted(IDS).logits)


def test_whole_model_folder_is_loaded_by_transformers_with_equal_logits(whole, tmp_path):
    whole.config.use_cache = False
    take_steps(whole, optimizer_of(whole), 2)
    saved_state.save_weights(whole, tmp_path)
    assert whole.config.use_cache is False
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["use_cache"] is True
    assert not any("attn_implementation" in key for key in config)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(loaded(IDS).logits, whole(IDS).logits)


EXP_AVERAGES = {"step", "exp_avg", "exp_avg_sq"}
SMALL = {"step", "state1", "state2"}  # adapters below 4,096 elements: float32 states
EIGHT_BIT = {"step", "state1", "state2", "qmap1", "qmap2", "absmax1", "absmax2"}


@pytest.mark.parametrize(
    ("optim", "master_weights", "dtype", "states"),
    [
        ("adamw_torch", "none", torch.float32, EXP_AVERAGES),
        ("adamw_torch_fused", "none", torch.float32, EXP_AVERAGES),
        ("adamw_torch", "fp32", torch.bfloat16, EXP_AVERAGES | {"master"}),
        ("adamw_torch_fused", "stochastic", torch.bfloat16, EXP_AVERAGES),
        ("adamw_8bit", "none", torch.float32, EIGHT_BIT),
    ],
)
@pytest.mark.parametrize("kind", ["adapted", "whole"])
def test_training_goes_on_from_a_saved_state_as_if_never_stopped(
    kind, optim, master_weights, dtype, states, request, tiny_model_dir, tmp_path
):
    model = request.getfixturevalue(kind).to(dtype)
    optimizer = optimizer_of(model, optim, master_weights)
    torch.manual_seed(5)
    take_steps(model, optimizer, 3)
    device = torch.device("cpu")
    saved_state.save_weights(model, tmp_path)
    saved_state.save_optimizer(optimizer, model, tmp_path)
    saved_state.save_rng_states(saved_state.gather_rng_states(device, 1), tmp_path)
    expected = take_steps(model, optimizer, 3)

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(1.0)
    saved_state.load_weights(model, tmp_path)
    fresh = optimizer_of(model, optim, master_weights)
    saved_state.load_optimizer(fresh, model, tmp_path)
    assert saved_state.restore_rng_state(0, device, tmp_path)
    assert take_steps(model, fresh, 3) == expected
    assert set().union(*fresh.state.values()) == (states if kind == "whole" or optim != "adamw_8bit" else SMALL)


def test_a_rank_without_saved_generator_is_told(tmp_path):
    device = torch.device("cpu")
    saved_state.save_rng_states(saved_state.gather_rng_states(device, 1), tmp_path)
    before = torch.get_rng_state()
    assert saved_state.restore_rng_state(1, device, tmp_path) is False
    assert torch.equal(torch.get_rng_state(), before)


def test_weights_of_another_model_are_refused_by_name(adapted, whole, tmp_path):
    saved_state.save_weights(adapted, tmp_path)
    other = get_peft_model(whole, LoraConfig(r=4, target_modules=["q_proj"]))
    with pytest.raises(ConfigError, match=r"0 tensors are missing.*24 are unknown.*down_proj"):
        saved_state.load_weights(other, tmp_path)


def test_tokenizer_files_are_copied_and_load_with_the_chat_template(tiny_model_dir, tmp_path):
    saved_state.copy_tokenizer(str(tiny_model_dir), tmp_path)
    messages = [{"role": "user", "content": "long documents"}]
    original, copied = AutoTokenizer.from_pretrained(tiny_model_dir), AutoTokenizer.from_pretrained(tmp_path)
    assert copied.apply_chat_template(messages)["input_ids"] == original.apply_chat_template(messages)["input_ids"]
    assert copied.eos_token == "<|im_end|>"


def test_nothing_in_a_checkpoint_is_a_pickle(adapted, tmp_path):
    optimizer = optimizer_of(adapted)
    take_steps(adapted, optimizer, 1)
    saved_state.save_weights(adapted, tmp_path)
    saved_state.save_optimizer(optimizer, adapted, tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".safetensors"}
