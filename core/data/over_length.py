"""What becomes of a row longer than max_length: one stated policy, the same with and without packing. Pure."""

from __future__ import annotations

from typing import Literal

import numpy as np

Fate = Literal["kept", "truncated", "split", "dropped"]
Piece = tuple[np.ndarray, np.ndarray]  # tokens (n,), targets (n,) bool


def fit_length(
    tokens: np.ndarray,
    targets: np.ndarray,
    *,
    max_length: int,
    policy: str,
    bos_id: int | None = None,
    borders: np.ndarray | None = None,
    overlap: int = 1,
) -> tuple[Fate, list[Piece]]:
    """(what happened, the pieces that stay), each at most ``max_length`` tokens. Exactly max_length is kept whole.

    Policies:
        drop            no piece
        truncate_right  the first max_length tokens
        truncate_left   the last max_length tokens; a begin token stays in front
        split           pieces that begin with the last ``overlap`` tokens of the one before, as context only:

            max_length 4, tokens a b c d e f g      ->   a b c d | d e f g      (. = context, not predicted again)
            predicted                                    . b c d   . e f g      every token once, as in the whole row

    Args:
        borders: ascending token indices at which a split may cut; the last one that fits is taken, else max_length.
        overlap: 1 <= overlap < max_length.
    """
    length = len(tokens)
    if length <= max_length:
        return "kept", [(tokens, targets)]
    if policy == "drop":
        return "dropped", []
    if policy == "truncate_right":
        return "truncated", [(tokens[:max_length], targets[:max_length])]
    if policy == "truncate_left":
        begins = bos_id is not None and tokens[0] == bos_id and max_length > 1
        cut = length - max_length + begins
        kept = np.r_[0, cut:length] if begins else np.arange(cut, length)
        return "truncated", [(tokens[kept], targets[kept])]
    if policy == "split":
        return "split", _split(
            tokens, targets, max_length, np.empty(0, np.int64) if borders is None else borders, overlap
        )
    raise ValueError(f"over_length policy {policy!r}")


def _split(tokens: np.ndarray, targets: np.ndarray, max_length: int, borders: np.ndarray, overlap: int) -> list[Piece]:
    if not 1 <= overlap < max_length:
        raise ValueError(f"an overlap of {overlap} tokens in pieces of {max_length}")
    pieces: list[Piece] = []
    start = predicted = 0  # of the piece at hand; and up to where tokens were predicted
    while True:
        end = min(start + max_length, len(tokens))
        if end < len(tokens):
            at = int(np.searchsorted(borders, end, side="right")) - 1
            if at >= 0 and borders[at] > predicted:
                end = int(borders[at])
        mask = targets[start:end].copy()
        mask[: predicted - start] = False
        pieces.append((tokens[start:end], mask))
        if end == len(tokens):
            return pieces
        start, predicted = max(end - overlap, 0), end
