"""Text to tokens with targets, for one model. Called by prepare; the only data module that needs transformers.

The fast tokenizer is asked directly and in batches: the Rust side then uses all cores, and targets are placed through
its character-to-token map, at the two ends of each span only.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from core.data.chat import ChatTemplate
from core.data.example import Conversation, Document, Example, RowError, TokenRow
from core.data.long_text import WINDOW, encode_long
from core.data.spans import Span
from planner.errors import ConfigError

# What a tokenizer is made of; config.json tells transformers its class.
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
    "chat_template.json", "vocab.json", "merges.txt", "tokenizer.model", "generation_config.json", "config.json",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenized:
    tokens: np.ndarray  # (n,) int32
    targets: np.ndarray  # (n,) bool: this token is to be predicted
    borders: np.ndarray  # ascending token indices where a split may cut; empty unless asked for
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A row as text, before the tokenizer."""

    text: str
    spans: tuple[Span, ...]
    opens: bool  # raw text: the tokenizer adds its begin token; a chat template writes its own
    closes: bool  # an end token is appended as the last target
    notes: tuple[str, ...]


LaidOut = Layout | Tokenized | RowError


def tokenizer_folder(model: str) -> Path:
    """The folder with a model's tokenizer: the model's own folder, or the hub's cache, filled when it can be reached.

    Raises: ConfigError when there is none.
    """
    folder = Path(os.path.expanduser(model))
    if folder.is_dir():
        return folder.resolve()
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, allow_patterns=list(TOKENIZER_FILES)))
    except Exception as error:  # no network, no such model, no right to it: each client version raises its own
        raise ConfigError(
            f"There is no tokenizer for {model!r}.",
            why=f"It is no folder here, and the hub says: {str(error).strip().splitlines()[0]}",
            fix="Give the model's folder, or download it first: hf download " + model,
        ) from error


def fingerprint(folder: Path) -> str:
    """A hash of the tokenizer's files, known without importing transformers."""
    digest = hashlib.blake2b(digest_size=16)
    for name in TOKENIZER_FILES:
        file = folder / name
        if file.is_file():
            digest.update(name.encode() + b"\0" + hashlib.blake2b(file.read_bytes()).digest())
    return digest.hexdigest()


class RowTokenizer:
    """Raises: ConfigError for a folder without a tokenizer, or one whose tokenizer has no fast (Rust) side."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        except Exception as error:  # missing files, broken JSON, unknown class: transformers raises what it likes
            raise ConfigError(
                f"The tokenizer in {folder} cannot be loaded.",
                why=str(error).strip().splitlines()[0],
                fix=f"The folder needs tokenizer.json and tokenizer_config.json; it holds {_names(folder)}.",
            ) from error
        if not tokenizer.is_fast:
            raise ConfigError(
                f"The tokenizer in {folder} is a slow one ({type(tokenizer).__name__}).",
                why="Targets are placed through the character positions that only fast tokenizers keep.",
                fix="Save it as tokenizer.json: transformers converts most tokenizers when it loads them.",
            )
        self._tokenizer = tokenizer
        self._backend = _with_true_offsets(tokenizer.backend_tokenizer)
        self.bos_id: int | None = tokenizer.bos_token_id
        self.eos_id: int | None = tokenizer.eos_token_id
        added = tokenizer.added_tokens_decoder
        self.special_tokens = tuple(token.content for token in added.values() if token.special)
        stops = {self.eos_id, *_generation_stops(folder)} - {None}
        self.stop_tokens = tuple(token for token in tokenizer.convert_ids_to_tokens(sorted(stops)) if token)
        self._chat: ChatTemplate | None = None
        plain, opened = self._ids("a"), self._backend.encode("a").ids
        self._opening = opened[: next(at for at in range(len(opened)) if opened[at : at + len(plain)] == plain)]
        self._num_tokens = len(tokenizer)
        self._joins_cleanly = self.decode([*self._ids("a b"), *self._ids("c d")]) == "a bc d"

    @property
    def chat(self) -> ChatTemplate:
        """Raises: ConfigError when the model has no chat template."""
        if self._chat is None:
            if not self._tokenizer.chat_template:
                raise ConfigError(
                    "The model has no chat template, and the data holds conversations.",
                    why="A base model does not say how turns are written.",
                    fix="Choose its chat or instruct version, or train on raw text (shape: text or prompt_completion).",
                )
            self._chat = ChatTemplate(
                self._apply_template, special_tokens=self.special_tokens, stop_tokens=self.stop_tokens
            )
        return self._chat

    def tokenize(
        self, examples: Sequence[Example], train_on: str = "assistant", *, split_at: str = ""
    ) -> list[Tokenized | RowError]:
        """Each example's tokens and targets, or why it has none. ``split_at``: text behind which borders are noted."""
        layouts = self.lay_out(examples, train_on)
        return self.finish(layouts, self.encode(layouts), split_at=split_at)

    def lay_out(self, examples: Sequence[Example], train_on: str = "assistant") -> list[LaidOut]:
        """First step: texts with spans (templates are rendered here); what came as tokens is done."""
        return [self._layout(example, train_on) for example in examples]

    def encode(self, layouts: Sequence[LaidOut]) -> dict[int, Any]:
        """Second step: Encoding of each layout's text by its index, without the long ones. All cores, without the
        interpreter lock, so that the other steps can go on in another thread."""
        encodings: dict[int, Any] = {}
        for opens in (True, False):
            batch = {
                at: layout.text
                for at, layout in enumerate(layouts)
                if isinstance(layout, Layout) and layout.opens is opens and len(layout.text) <= WINDOW
            }
            encodings.update(zip(batch, self._backend.encode_batch(list(batch.values()), add_special_tokens=opens)))
        return encodings

    def finish(
        self, layouts: Sequence[LaidOut], encodings: dict[int, Any], *, split_at: str = ""
    ) -> list[Tokenized | RowError]:
        """Third step: targets, end tokens, borders."""
        results: list[Tokenized | RowError] = []
        for at, layout in enumerate(layouts):
            if not isinstance(layout, Layout):
                results.append(layout)
                continue
            try:
                results.append(self._finish(layout, encodings.pop(at, None), split_at))
            except RowError as error:
                results.append(error)
        return results

    def _layout(self, example: Example, train_on: str) -> LaidOut:
        if isinstance(example, TokenRow):
            return self._given(example, train_on)
        if isinstance(example, Conversation):
            try:
                chat = self.chat.render(example, train_on)
            except RowError as error:
                return error
            return Layout(text=chat.text, spans=chat.spans, opens=False, closes=chat.needs_eos, notes=chat.notes)
        if isinstance(example, Document):
            text, begin = example.text, 0
        else:
            text, begin = example.prompt + example.completion, 0 if train_on == "all" else len(example.prompt)
        return Layout(text=text, spans=((begin, len(text)),), opens=True, closes=True, notes=example.notes)

    def _given(self, example: TokenRow, train_on: str) -> Tokenized | RowError:
        if max(example.tokens) >= self._num_tokens:
            return RowError("value", f"token {max(example.tokens):,} is not one of the model's {self._num_tokens:,}")
        targets = np.array(example.targets, dtype=np.bool_)
        if train_on == "all":
            targets[:] = True
        elif train_on == "last":  # the last stretch of targets
            begins = np.flatnonzero(targets & ~np.r_[False, targets[:-1]])
            targets[: begins[-1] if len(begins) else 0] = False
        tokens = np.array(example.tokens, dtype=np.int32)
        return Tokenized(tokens=tokens, targets=targets, borders=np.empty(0, np.int64), notes=example.notes)

    def _finish(self, layout: Layout, encoding: Any, split_at: str) -> Tokenized:
        begin, end = layout.spans[0] if layout.spans else (0, 0)
        borders = np.empty(0, np.int64)
        if layout.opens and begin > 0 and self._joins_cleanly:
            tokens, targets = self._apart(layout.text[:begin], layout.text[begin:end])
        elif encoding is not None:
            tokens = np.array(encoding.ids, dtype=np.int32)
            targets = target_mask(encoding, layout.text, layout.spans)
            borders = border_tokens(encoding, layout.text, split_at)
        else:
            tokens, targets, borders = self._long(layout, split_at)
        notes = layout.notes
        if len(tokens) > 1 and self.bos_id is not None and tokens[0] == tokens[1] == self.bos_id:
            tokens, targets, borders = tokens[1:], targets[1:], borders - 1  # the text began with what is added
        if layout.closes and self.eos_id is not None:
            if len(tokens) == 0 or tokens[-1] != self.eos_id:
                tokens, targets = np.append(tokens, np.int32(self.eos_id)), np.append(targets, True)
            targets[-1] = True
        elif layout.closes:
            notes = (*notes, "no end token appended (the tokenizer has none)")
        return Tokenized(tokens=tokens, targets=targets, borders=borders, notes=notes)

    def _long(self, layout: Layout, split_at: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokens, targets and borders of a text of any length, stretch by stretch."""
        head = self._opening if layout.opens else []
        tokens, targets = [np.array(head, dtype=np.int32)], [np.zeros(len(head), dtype=np.bool_)]
        borders, count = [np.empty(0, np.int64)], len(head)
        for part in encode_long(self._backend, layout.text):
            inside = [(max(begin, part.start), min(end, part.end)) for begin, end in layout.spans]
            spans = [(begin - part.begin, end - part.begin) for begin, end in inside if begin < end]
            text = layout.text[part.begin : part.end]
            mask = target_mask(part.encoding, text, spans)
            cuts = border_tokens(part.encoding, text, split_at)
            borders.append(cuts[(cuts >= part.first) & (cuts < part.last)] - part.first + count)
            count += part.last - part.first
            tokens.append(np.array(part.encoding.ids[part.first : part.last], dtype=np.int32))
            targets.append(mask[part.first : part.last])
        return np.concatenate(tokens), np.concatenate(targets), np.concatenate(borders)

    def _apart(self, prompt: str, completion: str) -> tuple[np.ndarray, np.ndarray]:
        """Prompt and completion tokenised apart, as at inference: no token then spans the seam."""
        head, tail = [*self._opening, *self._ids(prompt)], self._ids(completion)
        targets = np.zeros(len(head) + len(tail), dtype=np.bool_)
        targets[len(head) :] = True
        return np.array(head + tail, dtype=np.int32), targets

    def decode(self, ids: Sequence[int]) -> str:
        return self._backend.decode(list(ids), skip_special_tokens=False)

    def _ids(self, text: str) -> list[int]:
        return self._backend.encode(text, add_special_tokens=False).ids

    def _apply_template(
        self, messages: list[dict[str, Any]], tools: list[Any] | None = None, *, add_generation_prompt: bool = False
    ) -> str:
        return self._tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=add_generation_prompt
        )


def target_mask(encoding: Any, text: str, spans: Sequence[Span]) -> np.ndarray:
    """(n,) bool: the tokens of an Encoding that lie in the character spans.

    Raises:
        RowError: a token reaches over the edge of a span into words (white space may merge, words may not).
    """
    targets = np.zeros(len(encoding.ids), dtype=np.bool_)
    for begin, end in spans:
        first = _first_not_none(encoding.char_to_token(at) for at in range(begin, end))
        last = _first_not_none(encoding.char_to_token(at) for at in range(end - 1, begin - 1, -1))
        if first is None or last is None:
            continue  # the tokenizer's normaliser leaves nothing of it
        while first > 0 and (chars := encoding.token_to_chars(first - 1)) and begin <= chars[0]:
            first -= 1
        while last + 1 < len(targets) and (chars := encoding.token_to_chars(last + 1)) and chars[0] < end:
            last += 1  # a character of several tokens
        left, right = encoding.token_to_chars(first)[0], encoding.token_to_chars(last)[1]
        outside = text[left:begin] + text[end:right]
        if outside.strip():
            raise RowError("seam", f"one token holds words of an answer and {outside!r} around it")
        targets[first : last + 1] = True
    return targets


def border_tokens(encoding: Any, text: str, split_at: str) -> np.ndarray:
    """(m,) int64: the first token behind each ``split_at`` in the text; none when it is ""."""
    if not split_at:
        return np.empty(0, np.int64)
    ends = [match.end() for match in re.finditer(re.escape(split_at), text)]
    starts = np.array([start for start, _ in encoding.offsets], dtype=np.int64)
    return np.unique(np.searchsorted(starts, ends))


def _first_not_none(values: Any) -> int | None:
    return next((value for value in values if value is not None), None)


def _with_true_offsets(backend: Any) -> Any:
    """The backend without padding and truncation, and with positions that include leading spaces.

    Byte-level tokenizers such as Llama 3's trim spaces from the positions (not from the tokens), which would hide a
    space at the edge of a span. A post-processor can be changed only through its pickled state.
    """
    backend.no_padding()
    backend.no_truncation()
    processor = backend.post_processor
    if processor is None:
        return backend
    state = json.loads(processor.__getstate__())
    for part in _processors(state):
        if part.get("type") == "ByteLevel":
            part["trim_offsets"] = False
    processor.__setstate__(json.dumps(state).encode())
    backend.post_processor = processor
    return backend


def _processors(node: dict[str, Any]) -> list[dict[str, Any]]:
    return [node, *(inner for child in node.get("processors", []) for inner in _processors(child))]


def _generation_stops(folder: Path) -> list[int]:
    try:
        ids = json.loads((folder / "generation_config.json").read_text(encoding="utf-8")).get("eos_token_id")
    except (OSError, ValueError):
        return []
    return [ids] if isinstance(ids, int) else [item for item in ids or [] if isinstance(item, int)]


def _names(folder: Path) -> str:
    return ", ".join(sorted(path.name for path in folder.iterdir())[:12]) or "nothing"
