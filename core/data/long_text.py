"""One text of many megabytes to tokens in bounded memory. Called by RowTokenizer for texts longer than WINDOW.

An Encoding of the tokenizers library costs about 270 bytes a token, 5 GB for a line of 24 MB. So the text is encoded
in windows that overlap, and two windows are joined where both begin a new word (a pre-token) at the same character:

    text       ... and then the grain was weighed and ...
    window k   ... and then the grain was wei|               kept up to "the"
    window k+1          |en the grain was weighed and ...    kept from "the"

Pre-tokenisers read from left to right and start afresh at each word, so from there on both go the same way; that they
really do is checked on the rest of the overlap. A text whose windows cannot be joined is encoded in one piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

WINDOW = 1_000_000  # characters
OVERLAP = 10_000
_AT_ONCE = 4  # windows given to the tokenizer together, which spreads them over the cores


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Tokens [first, last) of ``encoding``, which is that of text[begin:...]; they cover text[start:end]."""

    encoding: Any
    begin: int
    first: int
    last: int
    start: int
    end: int


def encode_long(backend: Any, text: str, *, window: int = WINDOW, overlap: int = OVERLAP) -> Iterator[Stretch]:
    """Stretches whose tokens, end to end, are those of the whole text (without special tokens of the tokenizer).

    At most _AT_ONCE + 1 encodings are alive while the caller holds one stretch at a time.
    """
    begins = list(range(0, max(len(text) - overlap, 1), window - overlap))
    before: _Window | None = None
    start = first = 0
    for group in range(0, len(begins), _AT_ONCE):
        here = begins[group : group + _AT_ONCE]
        encodings = backend.encode_batch([text[at : at + window] for at in here], add_special_tokens=False)
        for at, encoding in zip(here, encodings):
            after = _Window(encoding=encoding, begin=at)
            if before is not None:
                seam = _seam(before, after, at + overlap)
                if seam is None:
                    whole = backend.encode(text[start:], add_special_tokens=False)
                    yield Stretch(encoding=whole, begin=start, first=0, last=len(whole.ids), start=start, end=len(text))
                    return
                end, last, following = seam
                yield Stretch(
                    encoding=before.encoding, begin=before.begin, first=first, last=last, start=start, end=end
                )
                start, first = end, following
            before = after
    assert before is not None
    tail = before.encoding
    yield Stretch(encoding=tail, begin=before.begin, first=first, last=len(tail.ids), start=start, end=len(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    encoding: Any
    begin: int

    def word_starts(self, low: int, high: int) -> dict[int, int]:
        """Character -> token, for tokens that begin a word at low <= character < high."""
        words, offsets = self.encoding.word_ids, self.encoding.offsets
        starts = {}
        for at, (previous, word) in enumerate(pairwise(words), 1):
            character = self.begin + offsets[at][0]
            if word != previous and low <= character < high and offsets[at - 1][1] <= offsets[at][0]:
                starts[character] = at
        return starts


def _seam(before: _Window, after: _Window, end_of_before: int) -> tuple[int, int, int] | None:
    """(character, token of ``before``, token of ``after``) where the two can be joined."""
    margin = (end_of_before - after.begin) // 4  # the cut itself may have broken a word of either window
    low, high = after.begin + margin, end_of_before - margin
    left, right = before.word_starts(low, high), after.word_starts(low, high)
    common = sorted(left.keys() & right.keys())
    if len(common) < 2:
        return None
    first, last = common[0], common[-1]
    if before.encoding.ids[left[first] : left[last]] != after.encoding.ids[right[first] : right[last]]:
        return None
    return first, left[first], right[first]
