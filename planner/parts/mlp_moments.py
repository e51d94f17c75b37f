"""The moments of one layer's MLP in backward, with adapters, of which the fullest counts. Used by parts/adapters.py.

Source: the order of peft's Linear.forward, ``base(x) + B(A(cast(x))) * scaling``, of its backward, and of a recompute
that starts when backward first asks for a tensor of the layer: tests/planner/test_against_engine.py compares it with
the tensors that torch really makes. Sizes are bytes a token beyond what other terms count as saved: gate, up, the
norm's and the adapters' inputs and, without Liger, silu(gate). down's input is gone or counted here.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from planner.parts.sizes import Sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpPath:
    """How the MLP of a layer runs."""

    adapted: Collection[str]  # linears with an adapter
    casts: bool  # fp32 adapters on a 16-bit base
    autocast: bool
    fuses_swiglu: bool  # gate and up are saved, silu(gate) is not, gradients are written over them
    fuses_norm: bool  # the norm saves its input as it is, no fp32 copy
    drops: bool = False  # dropout on the adapters' input
    norms_output: bool = False  # the norm of what the MLP made runs backward first, and asks first for the recompute
    product: int = 0  # bytes a token that down's adapter saves of its input
    frees_input: bool = False  # the layer's own is gone after its recompute: no norm saves it, no checkpoint keeps it


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    bytes: int  # a token
    what: str
    input_is_gone: bool = False  # the layer's own: MlpPath.frees_input, and its recompute is over


def without_adapters(s: Sizes, *, fuses_swiglu: bool) -> int:
    """Backward of gate * up, beside the residual's gradient: product alone, or product, up and silu(gate)."""
    return s.c * (s.d + (s.f if fuses_swiglu else 3 * s.f))


def output_norm_backward(s: Sizes) -> int:
    """Backward of the norm of what the MLP made: its input in fp32, five more such pieces, and the gradient."""
    return (24 + s.c) * s.d + 4


def fullest_moment(s: Sizes, path: MlpPath, *, recomputed: bool) -> Moment:
    """``recomputed``: the layer runs forward again in backward."""
    plain = Moment(bytes=without_adapters(s, fuses_swiglu=path.fuses_swiglu), what="gradients of silu(gate) * up")
    moments = [replace(moment, input_is_gone=path.frees_input) for moment in (plain, *_backward(s, path))]
    moments += _recompute(s, path) if recomputed else []
    return max(moments, key=lambda moment: moment.bytes - moment.input_is_gone * s.c * s.d)


def _backward(s: Sizes, path: MlpPath) -> list[Moment]:
    d, f, c = s.d, s.f, s.c
    saved = (2 if path.fuses_swiglu else 3) * c * f
    in_fp32 = path.casts and not path.autocast
    moments = []
    if path.norms_output:
        size = output_norm_backward(s) + path.product
        what = "norm of what the MLP made: its input and five more in fp32, down's input"
        moments.append(Moment(bytes=size, what=what))
    if "down_proj" in path.adapted:
        if path.casts and path.drops:
            size, what = (
                9 * f + (4 if in_fp32 else 2) * d,
                "gradient of down's dropped input in fp32, what is left, mask",
            )
        elif in_fp32:
            size, what = 8 * f + 4 * d, "down's input and its gradient in fp32"
        elif path.casts:
            size, what = 6 * f + 2 * d, "gradient of down's input in fp32 and cast"
        else:
            size, what = c * (3 * f + d), "gradients of down's input by base and adapter, and their sum"
        if path.norms_output and path.casts:  # the norm's input has a gradient beside the residual's
            size += c * d
        moments.append(Moment(bytes=size, what=what))
    if "up_proj" in path.adapted:  # what comes to gate waits, and without Liger gate too; silu(gate) and up are gone
        size = (12 if path.fuses_swiglu else 14) * f if in_fp32 else 3 * c * f
        moments.append(Moment(bytes=size + c * d - saved, what="gradient of up, as it is and scaled"))
    if "gate_up_proj" in path.adapted:
        size = 20 * f if in_fp32 else 4 * c * f
        moments.append(Moment(bytes=size + c * d - saved, what="gradient of gate and up, as it is and scaled"))
    return moments


def _recompute(s: Sizes, path: MlpPath) -> list[Moment]:
    d, f, c = s.d, s.f, s.c
    saved = (2 if path.fuses_swiglu else 3) * c * f
    silu = 0 if path.fuses_swiglu else c * f
    in_fp32 = path.casts and not path.autocast
    adapts_down = "down_proj" in path.adapted
    # what waits: the residual's gradient, and scaled for down's adapter; the residual itself, where a norm copied it
    waits = c * d + (0 if path.fuses_norm or not s.is_half else c * d)
    if path.norms_output and s.norms_in_float32:
        waits += 4 * d  # the norm after it begins by casting its gradient, which asks for nothing
    if adapts_down and not path.norms_output:
        waits += 6 * d if in_fp32 else c * d
    own_copies = path.casts or path.drops
    shares_input = not own_copies and {"gate_proj", "up_proj", "gate_up_proj"} & set(
        path.adapted
    )  # then it is counted as saved
    waits += 0 if shares_input else c * d
    width = 2 * f if s.fuses_gate_up else f
    outputs = 10 * width if in_fp32 else 3 * c * width  # of the base, of B, and scaled
    # and the input in fp32: on its way back to 16 bit, or to what dropout leaves
    outputs += 4 * d if path.casts and (path.autocast or path.drops) else 0
    moments = []
    if "up_proj" in path.adapted:
        size, which = c * f + silu + outputs, "up"
    elif "gate_up_proj" in path.adapted:
        size, which = outputs, "gate and up"
    else:
        size, which = outputs if "gate_proj" in path.adapted else 0, "gate"
    what = f"{which} recomputed: outputs of base and adapter, scaled"
    moments.append(Moment(bytes=size + waits - saved, what=what))
    product = c * f  # down's input
    if adapts_down and path.casts:
        product += (4 + (2 if path.autocast else 0)) * f
    if adapts_down and path.drops:
        product += ((4 if path.casts else c) + 1) * f  # what is left of it, and the mask
    output = c * d if adapts_down or path.norms_output else 0  # of the base
    if adapts_down and path.norms_output:  # the norm after it is still to come: of the base, of B, and scaled
        dropped = 4 * f if path.drops and path.casts and path.autocast else 0  # gone by then
        output = max(output, (10 if in_fp32 else 3 * c) * d - dropped)
    moments.append(Moment(bytes=product + waits + output, what="down recomputed: its input and that input's casts"))
    return moments
