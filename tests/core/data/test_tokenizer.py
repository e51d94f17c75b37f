"""Token level: one begin token, the end token trained by position, targets that decode to the answers, seams exact."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from core.data.example import Continuation, Conversation, Document, Example, RowError
from core.data.tokenizer import RowTokenizer, Tokenized, fingerprint, target_mask, tokenizer_folder
from planner.errors import ConfigError
from tests.core.data.templates import DATA, INSTRUCT, NO_END, WITH_BOS

SaveTokenizer = Callable[..., Path]


def chat(*words: str) -> Conversation:
    roles = ("user", "assistant")
    return Conversation(messages=[{"role": roles[at % 2], "content": text} for at, text in enumerate(words)])


def one(tokenizer: RowTokenizer, example: Example, train_on: str = "assistant") -> Tokenized:
    (result,) = tokenizer.tokenize([example], train_on)
    assert isinstance(result, Tokenized)
    return result


def segments(tokenizer: RowTokenizer, result: Tokenized) -> list[str]:
    """Decoded runs of targets."""
    runs: list[list[int]] = []
    for at, (token, is_target) in enumerate(zip(result.tokens.tolist(), result.targets.tolist())):
        if is_target and (at == 0 or not result.targets[at - 1]):
            runs.append([])
        if is_target:
            runs[-1].append(token)
    return [tokenizer.decode(run) for run in runs]


def test_exactly_one_begin_token_in_training_and_inference(save_tokenizer: SaveTokenizer) -> None:
    """Bug case B04a: the template writes <s> and the tokenizer would add another."""
    tokenizer = RowTokenizer(save_tokenizer(WITH_BOS, bos="<s>", eos="</s>", adds_bos=True))
    conversation = chat("Hi", "Hello.", "More?", "No.")
    row = one(tokenizer, conversation)
    assert row.tokens.tolist().count(tokenizer.bos_id) == 1
    prompt = tokenizer._backend.encode(tokenizer.chat.prompt(conversation), add_special_tokens=False).ids
    assert row.tokens[: len(prompt)].tolist() == prompt
    document = one(tokenizer, Document(text="<s>Hello"))
    assert document.tokens.tolist().count(tokenizer.bos_id) == 1
    assert document.tokens[-1] == tokenizer.eos_id


def test_a_tokenizer_without_begin_token_gets_none(chatml: RowTokenizer) -> None:
    assert chatml.bos_id is None
    row = one(chatml, Document(text="Hello"))
    assert chatml.decode(row.tokens) == "Hello<|im_end|>"
    assert row.targets.all()


def test_the_end_token_is_trained_by_position_though_it_pads(save_tokenizer: SaveTokenizer) -> None:
    """Bug case B04b: pad = eos, and the same id also closes the user's turn, where it is no target."""
    case = json.loads((DATA / "k04_tok_pad_is_eos.json").read_text())
    assert case["pad_token"] == case["eos_token"]
    tokenizer = RowTokenizer(save_tokenizer(bos=case["bos_token"], eos="<|im_end|>", pad="<|im_end|>"))
    row = one(tokenizer, chat("Hi", "Hello."))
    ends = np.flatnonzero(row.tokens == tokenizer.eos_id)
    assert row.targets[ends].tolist() == [False, True]
    apart = [one(tokenizer, chat("Hi", "Hello.")), one(tokenizer, chat("longer question", "Yes."))]
    together = tokenizer.tokenize([chat("Hi", "Hello."), chat("longer question", "Yes.")])
    for left, right in zip(apart, together):
        assert left.tokens.tolist() == right.tokens.tolist()
        assert left.targets.tolist() == right.targets.tolist()


def test_where_the_template_closes_nothing_the_end_token_is_appended(save_tokenizer: SaveTokenizer) -> None:
    tokenizer = RowTokenizer(save_tokenizer(NO_END, eos="</s>"))
    assert segments(tokenizer, one(tokenizer, chat("a", "b", "c", "d"))) == ["b", "d</s>"]


def test_tokens_are_those_of_transformers(chatml_folder: Path, chatml: RowTokenizer) -> None:
    from transformers import AutoTokenizer

    stock = AutoTokenizer.from_pretrained(chatml_folder)
    conversation = chat("第一行 👨‍👩‍👧 é", "café <|im_start|> done")
    expected = stock.apply_chat_template(conversation.messages, tokenize=True)["input_ids"]
    assert one(chatml, conversation).tokens.tolist() == expected


def test_unicode_survives_byte_for_byte(chatml: RowTokenizer) -> None:
    """Bug case B04g."""
    text = "Family 👨‍👩‍👧‍👦 flag 🏳️‍🌈 é 第一行 مرحبا"
    row = one(chatml, chat("q", text))
    assert segments(chatml, row) == [f"{text}<|im_end|>"]


def test_a_prompt_and_its_completion_are_tokenised_apart(chatml: RowTokenizer) -> None:
    row = one(chatml, Continuation(prompt="Count wo", completion="rds."))
    prompt = one(chatml, Document(text="Count wo")).tokens[:-1]
    assert row.tokens[: len(prompt)].tolist() == prompt.tolist()
    assert segments(chatml, row) == ["rds.<|im_end|>"]
    assert one(chatml, Continuation(prompt="Count wo", completion="rds."), "all").targets.all()


def test_spaces_at_the_edge_of_a_span_are_seen_though_positions_trim_them(save_tokenizer: SaveTokenizer) -> None:
    """Llama 3's byte-level post-processor leaves leading spaces out of the positions, not out of the tokens."""
    folder = save_tokenizer(INSTRUCT, bos="<s>", eos="</s>")
    settings_file = folder / "tokenizer.json"
    content = json.loads(settings_file.read_text(encoding="utf-8"))
    content["post_processor"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    settings_file.write_text(json.dumps(content), encoding="utf-8")
    tokenizer = RowTokenizer(folder)
    assert segments(tokenizer, one(tokenizer, chat("a", "b"))) == [" b</s>"]


def test_a_token_that_holds_words_of_both_sides_refuses_the_row() -> None:
    backend = Tokenizer(models.WordLevel({"half": 0, "[UNK]": 1}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    encoding = backend.encode("half half")
    assert target_mask(encoding, "half half", [(5, 9)]).tolist() == [False, True]
    with pytest.raises(RowError, match="one token holds words of an answer and 'ha'"):
        target_mask(encoding, "half half", [(2, 9)])


def test_bad_rows_keep_their_place_among_good_ones(save_tokenizer: SaveTokenizer) -> None:
    tokenizer = RowTokenizer(save_tokenizer(INSTRUCT, bos="<s>", eos="</s>"))
    wrong = Conversation(messages=[{"role": "assistant", "content": "I start."}, *chat("a", "b").messages])
    results = tokenizer.tokenize([chat("a", "b"), wrong, Document(text="text"), chat("c", "d")])
    assert [type(result) for result in results] == [Tokenized, RowError, Tokenized, Tokenized]
    assert segments(tokenizer, results[3]) == [" d</s>"]


@settings(max_examples=60, deadline=None)
@given(
    turns=st.lists(st.text(min_size=1, max_size=30).filter(str.strip), min_size=2, max_size=6).filter(
        lambda t: len(t) % 2 == 0
    )
)
def test_targets_decode_to_the_answers_for_any_text(chatml: RowTokenizer, turns: list[str]) -> None:
    row = one(chatml, chat(*turns))
    assert segments(chatml, row) == [f"{answer}<|im_end|>" for answer in turns[1::2]]


def test_problems_of_the_tokenizer_itself_are_told(tmp_path: Path, save_tokenizer: SaveTokenizer) -> None:
    with pytest.raises(ConfigError, match="cannot be loaded"):
        RowTokenizer(tmp_path)
    with pytest.raises(ConfigError, match="no chat template"):
        RowTokenizer(save_tokenizer(None)).tokenize([chat("a", "b")])
    base = RowTokenizer(save_tokenizer(None))
    assert one(base, Document(text="a base model reads text")).targets.all()


def test_a_model_that_is_nowhere_says_what_the_hub_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> str:
        raise ConnectionError("no route to host")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(ConfigError, match="There is no tokenizer for 'no/such-model'") as caught:
        tokenizer_folder("no/such-model")
    assert "no route to host" in caught.value.why


def test_the_fingerprint_changes_with_the_template_only_if_it_changes(save_tokenizer: SaveTokenizer) -> None:
    folder = save_tokenizer()
    before = fingerprint(folder)
    (folder / "README.md").write_text("other files do not matter")
    assert fingerprint(folder) == before
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + " ")
    assert fingerprint(folder) != before


def test_post_processors_that_add_an_end_token_do_not_double_it(save_tokenizer: SaveTokenizer) -> None:
    folder = save_tokenizer(bos="<s>", eos="</s>")
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ends = [("<s>", backend.token_to_id("<s>")), ("</s>", backend.token_to_id("</s>"))]
    backend.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    backend.save(str(folder / "tokenizer.json"))
    tokenizer = RowTokenizer(folder)
    document = one(tokenizer, Document(text="Hello"))
    assert tokenizer.decode(document.tokens) == "<s>Hello</s>"
    assert document.targets.tolist() == [False, *[True] * (len(document.tokens) - 1)]
    assert segments(tokenizer, one(tokenizer, Continuation(prompt="a ", completion="b"))) == ["b</s>"]
