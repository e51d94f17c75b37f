"""A small byte-level tokenizer trained on the spot, saved like a model's, with any chat template."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from core.data.tokenizer import RowTokenizer

DATA = Path(__file__).parents[2] / "data"
CHATML = (DATA / "k04_tpl_no_generation_mark.jinja").read_text(encoding="utf-8")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>"]
CORPUS = [
    "Count words. The clerk wrote another line about grain. Please read this ledger entry carefully.",
    "alpha user assistant system Which colour is door A? Door A is crimson. value item tick tock",
    *[path.read_text(encoding="utf-8", errors="ignore") for path in sorted(DATA.glob("k04_*.jsonl"))[:6]],
] * 3

SaveTokenizer = Callable[..., Path]


def train_backend() -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=600, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )  # fmt: skip
    return backend


@pytest.fixture(scope="session")
def save_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> SaveTokenizer:
    """save_tokenizer(template, bos=..., eos=..., pad=..., adds_bos=...) -> folder."""
    from transformers import PreTrainedTokenizerFast

    trained = train_backend().to_str()

    def save(
        template: str | None = CHATML,
        *,
        bos: str | None = None,
        eos: str | None = "<|im_end|>",
        pad: str | None = None,
        adds_bos: bool = False,
    ) -> Path:
        backend = Tokenizer.from_str(trained)
        if adds_bos and bos is not None:
            backend.post_processor = processors.TemplateProcessing(
                single=f"{bos} $A", special_tokens=[(bos, backend.token_to_id(bos))]
            )
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=backend, bos_token=bos, eos_token=eos, pad_token=pad, chat_template=template
        )
        folder = tmp_path_factory.mktemp("tokenizer")
        tokenizer.save_pretrained(folder)
        return folder

    return save


@pytest.fixture(scope="session")
def chatml_folder(save_tokenizer: SaveTokenizer) -> Path:
    return save_tokenizer()


@pytest.fixture(scope="session")
def chatml(chatml_folder: Path) -> RowTokenizer:
    return RowTokenizer(chatml_folder)
