"""Base and adapter as one model against the two beside each other, by plain transformers and PEFT."""

import json

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, Gemma3Config, Gemma3ForConditionalGeneration

from core import merge as merging
from core.infer import Source, load
from core.run.config_file import read_config
from core.train.saved_state import save_weights
from planner.errors import ConfigError, EnvironmentProblem
from tests.core.model.test_text_model import TEXT, VISION
from tests.core.train.runs import make_run, train
from tests.core.train.tiny_llama import save_tiny_llama

CPU = torch.device("cpu")
IDS = torch.tensor([[5, 17, 20, 41, 39, 8, 23]])


@pytest.fixture(scope="module")
def tiny_model_dir(tmp_path_factory):
    return save_tiny_llama(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture(scope="module")
def lora_run(tiny_model_dir, tmp_path_factory):
    directory = make_run(tmp_path_factory.mktemp("runs"), tiny_model_dir, learning_rate=0.3)
    train(directory)
    return directory


def merge(run, into, checkpoint=None):
    into.mkdir()
    checkpoint = checkpoint or run.checkpoints / "step-6"
    return merging.merge(read_config(run.path), checkpoint, into)


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


def side_by_side(base_folder, adapter, **how):
    base = AutoModelForCausalLM.from_pretrained(base_folder, **how)
    return PeftModel.from_pretrained(base, adapter, autocast_adapter_dtype=False)


def test_merged_logits_are_those_of_base_and_adapter(lora_run, tiny_model_dir, tmp_path):
    answer = merge(lora_run, tmp_path / "merged")
    got = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    want = side_by_side(tiny_model_dir, lora_run.checkpoints / "step-6")
    assert answer["merged"] == 2 * 7
    assert (logits(got) - logits(want)).abs().max() < 1e-5
    assert (logits(got) - logits(AutoModelForCausalLM.from_pretrained(tiny_model_dir))).abs().max() > 1e-2
    config, weights = (tmp_path / "merged" / name for name in ("config.json", "model.safetensors"))
    assert weights.stat().st_mode == config.stat().st_mode
    text = "name three long documents"
    saved, base = (AutoTokenizer.from_pretrained(path) for path in (tmp_path / "merged", tiny_model_dir))
    assert (saved(text)["input_ids"], saved.chat_template) == (base(text)["input_ids"], base.chat_template)


def test_a_16_bit_weight_is_rounded_once_from_the_base_as_it_was_trained_on(lora_run, tiny_model_dir, tmp_path):
    run = make_run(tmp_path, tiny_model_dir, dtype="bfloat16")
    merge(run, tmp_path / "merged", lora_run.checkpoints / "step-6")
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    base = load_file(tiny_model_dir / "model.safetensors")
    adapter = load_file(lora_run.checkpoints / "step-6" / "adapter_model.safetensors")
    name = "model.layers.1.mlp.down_proj"
    a, b = (adapter[f"base_model.model.{name}.lora_{matrix}.weight"].double() for matrix in "AB")
    exact = base[f"{name}.weight"].bfloat16().double() + 8 / 4 * (b @ a)
    assert merged[f"{name}.weight"].dtype == torch.bfloat16
    assert torch.equal(merged[f"{name}.weight"], exact.float().bfloat16())
    assert torch.equal(merged["model.norm.weight"], base["model.norm.weight"].bfloat16())
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["dtype"] == "bfloat16"


def test_a_base_of_several_files_stays_so_and_has_an_index(lora_run, tiny_model_dir, tmp_path):
    sharded = tmp_path / "sharded"
    AutoModelForCausalLM.from_pretrained(tiny_model_dir).save_pretrained(sharded, max_shard_size="40KB")
    AutoTokenizer.from_pretrained(tiny_model_dir).save_pretrained(sharded)
    assert len(list(sharded.glob("model-*.safetensors"))) > 1
    merge(make_run(tmp_path, sharded), tmp_path / "merged", lora_run.checkpoints / "step-6")
    merge(lora_run, tmp_path / "whole")
    parts, whole = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("merged", "whole"))
    assert torch.equal(logits(parts), logits(whole))
    index = json.loads((tmp_path / "merged" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in whole.state_dict().values()) - (
        whole.lm_head.weight.nbytes  # tied: saved once
    )


def test_the_scaled_rope_of_the_run_is_in_the_config(lora_run, tiny_model_dir, tmp_path):
    scaling = (("type", "linear"), ("factor", 4.0))
    run = make_run(tmp_path, tiny_model_dir, rope_scaling=scaling)
    merge(run, tmp_path / "merged", lora_run.checkpoints / "step-6")
    got = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    source = Source(
        model=str(tiny_model_dir), adapter=lora_run.checkpoints / "step-6", rope_scaling=dict(scaling), max_length=64
    )
    assert (logits(got) - logits(load(source, CPU)[0])).abs().max() < 1e-5


def test_gemma_3_with_pictures_keeps_its_tower_and_the_names_it_was_published_under(tmp_path):
    torch.manual_seed(0)
    config = Gemma3Config(text_config=TEXT, vision_config=VISION, mm_tokens_per_image=4)
    base = Gemma3ForConditionalGeneration(config)
    base.save_pretrained(tmp_path / "base")
    run = make_run(tmp_path, tmp_path / "base")
    adapter = LoraConfig(r=4, lora_alpha=8, target_modules=r".*\.language_model\.layers\..*\.(q_proj|down_proj)")
    model = get_peft_model(base, adapter)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    (tmp_path / "adapter").mkdir()
    save_weights(model, tmp_path / "adapter")
    answer = merge(run, tmp_path / "merged", tmp_path / "adapter")
    assert answer["merged"] == 2 * TEXT["num_hidden_layers"]
    got = Gemma3ForConditionalGeneration.from_pretrained(tmp_path / "merged")
    assert (logits(got) - logits(model)).abs().max() < 1e-5
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("base", "merged"))
    assert before.keys() == after.keys()
    tower = [name for name in before if "vision_tower" in name]
    assert tower
    assert all(torch.equal(before[name], after[name]) for name in tower)


def test_an_adapted_weight_that_the_base_has_not_is_refused_by_name(lora_run, tiny_model_dir, tmp_path):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (adapter / name).write_bytes((lora_run.checkpoints / "step-6" / name).read_bytes())
    tensors = load_file(adapter / "adapter_model.safetensors")
    moved = {name: tensor.clone() for name, tensor in tensors.items() if ".layers.0.mlp.up_proj." in name}
    moved = {name.replace(".layers.", ".blocks."): tensor for name, tensor in moved.items()}
    save_file({**tensors, **moved}, adapter / "adapter_model.safetensors")
    with pytest.raises(ConfigError, match=r"1 of 15 adapted weights .* model\.blocks\.0"):
        merge(lora_run, tmp_path / "merged", adapter)
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**config, "use_dora": True}))
    with pytest.raises(ConfigError, match="use_dora"):
        merge(lora_run, tmp_path / "other", adapter)


def test_a_base_of_other_shapes_or_without_weights_or_quantised_is_refused(lora_run, tiny_model_dir, tmp_path):
    checkpoint = lora_run.checkpoints / "step-6"
    wider = make_run(tmp_path, save_tiny_llama(tmp_path / "wider", hidden_size=64), name="wider-run")
    with pytest.raises(ConfigError, match=r"does not fit the base .* the base has 64 x 64"):
        merge(wider, tmp_path / "one", checkpoint)
    bare = save_tiny_llama(tmp_path / "bare")
    (bare / "model.safetensors").unlink()
    run = make_run(tmp_path, bare, name="bare-run")
    with pytest.raises(ConfigError, match=r"not on this machine\. model\.safetensors is missing"):
        merge(run, tmp_path / "two", checkpoint)
    config = json.loads((tiny_model_dir / "config.json").read_text())
    (bare / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "bitsandbytes"}}))
    with pytest.raises(ConfigError, match="stored quantised"):
        merge(run, tmp_path / "three", checkpoint)


def test_too_little_room_is_told_in_bytes_before_anything_is_written(lora_run, tiny_model_dir, tmp_path, monkeypatch):
    size = sum(tensor.nbytes for tensor in load_file(tiny_model_dir / "model.safetensors").values())
    monkeypatch.setattr("core.export.shutil.disk_usage", lambda path: type("Usage", (), {"free": size - 1}))
    with pytest.raises(EnvironmentProblem, match=f"takes {size:,} bytes, and {size - 1:,} are free"):
        merge(lora_run, tmp_path / "merged")
    assert list((tmp_path / "merged").iterdir()) == []


def test_the_process_answers_in_json(lora_run, tmp_path, capsys):
    (tmp_path / "merged").mkdir()
    arguments = ["--run", str(lora_run.path), "--into", str(tmp_path / "merged"), "--checkpoint"]
    assert merging.main([*arguments, str(lora_run.checkpoints / "step-6")]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["weights_bytes"] < (tmp_path / "merged" / "model.safetensors").stat().st_size
    assert merging.main([*arguments, "/nowhere"]) == 5
    assert "adapter_config.json" in json.loads(capsys.readouterr().out)["error"]["why"]
