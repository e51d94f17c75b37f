"""The fullest moment of one layer's MLP in forward, with adapters, and of its attention. Used by parts/adapters.py and
parts/tiled_mlp.py.

Source: the order of peft's Linear.forward, ``base(x) + B(A(dropout(cast(x)))) * scaling``. Compared with the tensors
that torch makes in tests/planner/test_against_engine.py and test_fused_projections.py. Sizes are bytes a token.
"""

from __future__ import annotations

from planner.parts.activations import mlp_pieces
from planner.parts.mlp_moments import MlpPath
from planner.parts.sizes import Sizes


def forward_bytes(s: Sizes, path: MlpPath, *, saves: bool) -> int:
    """``saves``: autograd keeps what the layer saves, which other terms count, and this is what is there beside."""
    f, c = s.f, s.c
    fused, adapts_down = s.fuses_gate_up, "down_proj" in path.adapted
    beside = _beside(s, path, saves=saves)
    product = 0 if saves and adapts_down and not _has_own_copies(path) else c * f
    made = product if saves else mlp_pieces(s) * c * f
    moments = [beside + made + (c * s.d if saves else 0)]  # down's input made, and multiplied
    if "up_proj" in path.adapted or "gate_up_proj" in path.adapted:
        size = beside + _linear(s, path, s.d, 2 * f if fused else f, saves=saves)
        if saves:  # some of what is counted as saved is made only now, or later
            size -= path.product + (3 * c * f if fused else c * f)
        else:
            size += 0 if fused else c * f  # silu(gate), or gate
        moments.append(size)
    elif "gate_proj" in path.adapted and not saves:
        moments.append(beside + _linear(s, path, s.d, f, saves=saves))
    if adapts_down:
        waits = 2 * c * f if fused and not saves else 0  # what gate and up are halves of
        moments.append(beside + waits + product + _linear(s, path, f, s.d, saves=saves))
    return max(moments)


def attention_forward_bytes(s: Sizes, path: MlpPath | None, *, rotates_in_place: bool) -> int:
    """Of a forward that saves nothing, beside the layer's input: what goes into q, k and v, these, and the larger of
    three pieces of q as it is rotated, and attention's output and its projection. ``path``: None without adapters."""
    rotated = 0 if rotates_in_place else 3 * s.c * s.q
    output = s.c * s.d if path is None or "o_proj" not in path.adapted else _linear(s, path, s.q, s.d, saves=False)
    return s.c * (s.d + s.q + 2 * s.kv) + max(rotated, s.c * s.q + output)


def _beside(s: Sizes, path: MlpPath, *, saves: bool) -> int:
    """The residual and the MLP's input; with them, in a forward that saves, the layer's input and the embeddings, in so
    far as nothing has saved them: a norm saves its input, or a copy in fp32, and adapters save theirs."""
    if not saves:
        return 2 * s.c * s.d
    copies = s.is_half and not path.fuses_norm
    is_saved = not _has_own_copies(path) and {"gate_proj", "up_proj", "gate_up_proj"} & set(path.adapted)
    return (1 + (2 if copies else 0) + (0 if is_saved else 1)) * s.c * s.d


def _linear(s: Sizes, path: MlpPath, inputs: int, outputs: int, *, saves: bool) -> int:
    """An adapted linear: its input's copies while A multiplies, beside the base's output, or the outputs of base and B
    and the scaled one."""
    in_fp32 = path.casts and not path.autocast
    copy = 4 * inputs if path.casts and (not saves or path.autocast or path.drops) else 0  # else A saves it
    into_a = 0
    if path.drops and (not saves or path.autocast):
        into_a += (4 if path.casts else s.c) * inputs
    if not saves:
        into_a += 2 * inputs if path.casts and path.autocast else inputs if path.drops else 0  # the cast back, the mask
    return copy + max(s.c * outputs + into_a, (10 if in_fp32 else 3 * s.c) * outputs)


def _has_own_copies(path: MlpPath) -> bool:
    """Whether the linears' inputs are cast or dropped, so that none is saved as it is."""
    return path.casts or path.drops
