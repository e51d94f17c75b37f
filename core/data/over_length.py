"""What becomes of a row longer than max_length: one stated policy, the same with and without packing. Pure."""

from __future__ import annotations

from typing import Literal

import numpy as np

Fate = Literal["kept", "truncated", "split", "dropped"]
Piece = tuple[np.ndarray, np.ndarray]  # tokens (n,), targets (n,) bool


def fit_length(
    tokens: np.ndarray, targets: np.ndarray, *, max_length: int, policy: str, bos_id: int | None = None
) -> tuple[Fate, list[Piece]]:
    """(what happened, the pieces that stay), each at most ``max_length`` tokens. Exactly max_length is kept whole.

    Policies:
        drop            no piece
        truncate_right  the first max_length tokens
        truncate_left   the last max_length tokens; a begin token stays in front
        split           consecutive pieces, each beginning with the last token of the one before:

            max_length 4, tokens a b c d e f g      ->   a b c d | d e f g      (. = context, not predicted again)
            predicted                                    . b c d   . e f g      every token once, as in the whole row
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
        step = max(max_length - 1, 1)
        starts = range(0, max(length - 1, 1), step)
        return "split", [(tokens[at : at + max_length], targets[at : at + max_length]) for at in starts]
    raise ValueError(f"over_length policy {policy!r}")
