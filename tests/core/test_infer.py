"""Answers of core.infer against transformers' own generate, from a model, an adapter and a run."""

import io
import sys

import httpx
import pytest
import torch
from huggingface_hub.errors import OfflineModeIsEnabled, RepositoryNotFoundError
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from core import infer
from core.infer import Sampling, Source, generate, load, main, prompt_ids, source_of_run
from planner.errors import ConfigError, EnvironmentProblem
from tests.core.train.runs import make_run, setting, train
from tests.core.train.tiny_llama import save_tiny_llama

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tiny_model_dir(tmp_path_factory):
    return save_tiny_llama(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture(scope="module")
def lora_run(tiny_model_dir, tmp_path_factory):
    directory = make_run(
        tmp_path_factory.mktemp("runs"), tiny_model_dir, save_steps=3, learning_rate=0.3, lr_scheduler_type="constant"
    )
    train(directory)
    return directory


def reference(model, tokenizer, question, count):
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
    )
    output = model.generate(torch.tensor([ids]), max_new_tokens=count, do_sample=False)[0, len(ids) :]
    return ids, output.tolist()


@pytest.mark.parametrize("step", [None, 3])
def test_a_run_answers_with_its_checkpoint_as_peft_does_greedily(lora_run, tiny_model_dir, step):
    source = source_of_run(lora_run.path, step=step)
    assert source.adapter == lora_run.checkpoints / f"step-{step or 6}"
    model, tokenizer = load(source, CPU)
    written = []
    ids = prompt_ids(source.model, tokenizer, "long documents")
    new_ids = generate(model, tokenizer, ids, Sampling(max_new_tokens=12), write=written.append)

    base = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    their_ids, expected = reference(PeftModel.from_pretrained(base, source.adapter), tokenizer, "long documents", 12)
    assert ids == their_ids
    assert new_ids == expected
    assert "".join(written) == tokenizer.decode(new_ids, skip_special_tokens=True)
    untrained, _ = load(source_of_run(lora_run.path, use_base=True), CPU)
    assert generate(untrained, tokenizer, ids, Sampling(max_new_tokens=12), write=written.append) != new_ids


def test_a_fully_trained_run_answers_with_its_own_weights(tiny_model_dir, tmp_path):
    directory = make_run(tmp_path, tiny_model_dir, setting("gradient_checkpointing"), max_steps=2)
    train(directory)
    source = source_of_run(directory.path)
    assert (source.model, source.adapter) == (str(directory.checkpoints / "step-2"), None)
    model, tokenizer = load(source, CPU)
    ids = prompt_ids(source.model, tokenizer, "name three")
    expected = reference(AutoModelForCausalLM.from_pretrained(source.model), tokenizer, "name three", 8)[1]
    assert generate(model, tokenizer, ids, Sampling(max_new_tokens=8), write=lambda text: None) == expected


def test_the_scaled_rope_of_the_run_is_the_rope_of_the_answer(lora_run, tiny_model_dir):
    plain, _ = load(Source(model=str(tiny_model_dir)), CPU)
    scaled, _ = load(Source(model=str(tiny_model_dir), rope_scaling={"type": "linear", "factor": 4.0}), CPU)
    assert torch.allclose(scaled.model.rotary_emb.inv_freq * 4, plain.model.rotary_emb.inv_freq)
    assert (infer.max_positions(plain.config), infer.max_positions(scaled.config)) == (512, 2048)


def test_sampling_repeats_with_its_seed_and_differs_with_another(tiny_model_dir):
    model, tokenizer = load(Source(model=str(tiny_model_dir)), CPU)
    ids = prompt_ids(str(tiny_model_dir), tokenizer, "answer", system="be long")

    def sample(seed):
        return generate(model, tokenizer, ids, Sampling(max_new_tokens=16, temperature=1.0, seed=seed), write=str)

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)


def test_a_system_prompt_stands_before_the_question(tiny_model_dir):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    text = tokenizer.decode(prompt_ids(str(tiny_model_dir), tokenizer, "why?", system="be long"))
    expected = "<|im_start|>system\nbe long<|im_end|>\n<|im_start|>user\nwhy?<|im_end|>\n<|im_start|>assistant\n"
    assert text == expected


def test_a_model_without_chat_template_continues_bare_text_and_takes_no_system_prompt(tiny_model_dir):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    tokenizer.chat_template = None
    assert tokenizer.decode(prompt_ids("unused", tokenizer, "three long")) == "three long"
    with pytest.raises(ConfigError, match="chat template"):
        prompt_ids("unused", tokenizer, "three long", system="be brief")


def test_more_tokens_than_positions_are_refused_with_the_numbers(tiny_model_dir):
    model, tokenizer = load(Source(model=str(tiny_model_dir)), CPU)
    with pytest.raises(ConfigError, match="at most 502 new tokens"):
        generate(model, tokenizer, [5] * 10, Sampling(max_new_tokens=503), write=str)


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["--run", "{run}", "--step", "4"], ["no checkpoint of step 4", "step-3, step-6", "--base"]),
        (["--run", "/nowhere"], ["/nowhere is not a run directory"]),
        (["--model", "/nowhere"], ["/nowhere", "could not be loaded"]),
        (["--model", "{model}", "--adapter", "/nowhere"], ["adapter /nowhere"]),
        (["--model", "{model}", "--prompt", "  "], ["The prompt is empty"]),
    ],
)
def test_bad_input_is_said_on_stderr_with_a_code_and_nothing_on_stdout(
    lora_run, tiny_model_dir, capsys, arguments, facts
):
    arguments = [text.format(run=lora_run.path, model=tiny_model_dir) for text in ["--prompt", "x", *arguments]]
    assert main(arguments) in (2, 6)
    output = capsys.readouterr()
    assert output.out == ""
    assert all(fact in output.err for fact in facts), output.err


@pytest.mark.parametrize(
    ("error", "kind", "facts"),
    [
        (httpx.ConnectError("Name or service not known"), EnvironmentProblem,
         ["hub cannot be asked", "Name or service not known", "hf download owner/name"]),
        (OfflineModeIsEnabled("offline mode is enabled."), EnvironmentProblem, ["offline mode is enabled. "]),
        (RepositoryNotFoundError("404: no such\nmore", response=httpx.Response(404, request=httpx.Request("GET", "h"))),
         ConfigError, ["404: no such", "hf auth login"]),
    ],
)  # fmt: skip
def test_the_hub_is_asked_once_for_a_model_that_is_not_here(monkeypatch, error, kind, facts):
    asked = []

    def model_info(self, model, *, timeout):
        asked.append(model)
        raise error

    monkeypatch.setattr(infer.HfApi, "model_info", model_info)
    with pytest.raises(kind) as raised:
        load(Source(model="owner/name"), CPU)
    assert asked == ["owner/name"]
    assert all(fact in str(raised.value) for fact in facts), str(raised.value)


def test_a_damaged_checkpoint_is_refused_by_step_and_passed_over_otherwise(tiny_model_dir, tmp_path):
    directory = make_run(tmp_path, tiny_model_dir, save_steps=3)
    train(directory)
    (directory.checkpoints / "step-6" / "adapter_model.safetensors").write_bytes(b"")
    assert source_of_run(directory.path).adapter == directory.checkpoints / "step-3"
    with pytest.raises(ConfigError, match=r"adapter_model.safetensors has 0 bytes"):
        source_of_run(directory.path, step=6)


def test_the_answer_goes_to_stdout_and_the_prompt_may_come_from_stdin(lora_run, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("long documents"))
    assert main(["--run", str(lora_run.path), "--prompt", "-", "--max-new-tokens", "5"]) == 0
    output = capsys.readouterr()
    assert output.out.endswith("\n")
    assert "5 new ones" in output.err
