"""Windows of a long text give the tokens of the whole text, whatever stands at their edges."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from core.data import long_text, tokenizer
from core.data.example import Conversation, Document
from core.data.long_text import encode_long
from core.data.tokenizer import RowTokenizer, Tokenized

PIECES = [
    "grain ",
    "the clerk ",
    "12345678 ",
    "第一行 ",
    "👨‍👩‍👧 ",
    "\n\n",
    "   ",
    "<|im_end|>",
    "don't ",
    "e\u0301",
    "x" * 40 + " ",
]


def text_of(seed: int, count: int) -> str:
    choose = random.Random(seed)
    return "".join(choose.choice(PIECES) for _ in range(count))


def joined(backend: Any, text: str, window: int, overlap: int) -> list[int]:
    ids: list[int] = []
    end = 0
    for part in encode_long(backend, text, window=window, overlap=overlap):
        assert part.start == end
        end = part.end
        ids += part.encoding.ids[part.first : part.last]
    assert end == len(text)
    return ids


@pytest.mark.parametrize("seed", range(25))
def test_windows_join_to_the_whole(chatml: RowTokenizer, seed: int) -> None:
    text = text_of(seed, 400)
    expected = chatml._backend.encode(text, add_special_tokens=False).ids
    assert joined(chatml._backend, text, 600, 200) == expected
    assert len(list(encode_long(chatml._backend, text, window=600, overlap=200))) > 2


def test_a_text_without_words_is_encoded_in_one_piece(chatml: RowTokenizer) -> None:
    text = "x" * 3000
    parts = list(encode_long(chatml._backend, text, window=600, overlap=200))
    assert len(parts) == 1
    assert parts[0].encoding.ids == chatml._backend.encode(text, add_special_tokens=False).ids


def test_a_tokenizer_without_pre_tokeniser_is_not_cut() -> None:
    backend = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[("a", "b")]))
    text = "ab" * 500
    assert joined(backend, text, 101, 31) == [2] * 500


def test_rows_beyond_the_window_have_the_same_tokens_and_targets(
    chatml: RowTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = text_of(1, 300).replace("<|im_end|>", "").strip()
    examples = [
        Conversation(messages=[{"role": "user", "content": text_of(2, 300)}, {"role": "assistant", "content": answer}]),
        Document(text=text_of(3, 300)),
    ]
    short = chatml.tokenize(examples)
    monkeypatch.setattr(tokenizer, "WINDOW", 500)
    monkeypatch.setattr(long_text.encode_long, "__kwdefaults__", {"window": 500, "overlap": 150})
    for one, other in zip(short, chatml.tokenize(examples)):
        assert isinstance(one, Tokenized)
        assert isinstance(other, Tokenized)
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.targets.tolist() == other.targets.tolist()
