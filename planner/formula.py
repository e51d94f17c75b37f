"""Formula texts with numbers put in: what a symbol of planner/types.py is in one plan.

Called by planner/plan_json.py and app/views/explain_view.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from planner.types import Plan

_SYMBOL = re.compile(r"(?<![\w.'])(\d+(?:\.\d+)?)?(linears|kv|[TLdfNHKhqVr])(?![\w'])")
_BEFORE, _AFTER = "(*/+-=;", ")*/+-=;:,("  # a letter beside none of these is a word, not a factor


def symbols_of(plan: Plan) -> dict[str, int]:
    """Of one rank."""
    model, config = plan.model, plan.config
    symbols = {
        "T": int(plan.batch["tokens_per_rank"]), "L": config.max_length, "d": model.hidden_size,
        "f": model.intermediate_size, "N": model.num_layers, "H": model.num_attention_heads, "K": model.num_kv_heads,
        "h": model.head_dim, "q": model.q_width, "kv": model.kv_width, "V": model.vocab_size,
        "linears": model.num_linear_parameters,
    }  # fmt: skip
    adapters = config.adapters
    return symbols if adapters is None else {**symbols, "r": adapters.as_dict()["rank"]}


def with_numbers(formula: str, symbols: Mapping[str, int]) -> str:
    """``4d * T: gradients`` -> ``4 * 3584 * 8192: gradients``; unchanged where no symbol is left to be replaced."""

    def number(match: re.Match[str]) -> str:
        factor, symbol = match[1], match[2]
        before = formula[: match.start()].rstrip()[-1:]
        after = formula[match.end() :].lstrip()[:1]
        closes = formula[match.start() - 1 : match.start()] == ")"  # (4 + 2)d
        is_factor = (
            factor is not None or closes or ((not before or before in _BEFORE) and (not after or after in _AFTER))
        )
        if symbol not in symbols or not is_factor:
            return match[0]
        value = str(symbols[symbol])
        product = f"{factor} * {value}" if factor is not None else value
        opens = formula[match.end() : match.end() + 1] == "("
        return f"{' * ' if closes else ''}{product}{' * ' if opens else ''}"

    return _SYMBOL.sub(number, formula)


def has_numbers(formula: str) -> bool:
    """Whether the text goes on with the numbers itself: ``4d * T = 4 * 3584 * 8192``."""
    return re.search(r"= \d", formula) is not None
