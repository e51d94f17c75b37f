"""The MLP by tiles of tokens in numbers: `core/optimizations/tiled_mlp.py` returns it.

A layer keeps the MLP's input; backward runs one tile after another forward and backward, so that what the MLP saves and
makes exists for one tile. Source: ALST (arXiv 2506.13996), section 3.1.1; gradients as outputs of one function, so that
no tile's weight gradient is counted twice.
"""

from __future__ import annotations

from typing import Any

from planner.effects import Confine, Drop, Effect, Scale, TermSpec, Work
from planner.optimization import PlanContext
from planner.parts.activations import MLP_BACKWARD, SAVED_BY_MLP, both_layers, evaluation_terms
from planner.parts.adapters import adapted_linears, adapter_effect, attention_in_forward
from planner.parts.mlp_moments import output_norm_backward
from planner.parts.recompute import checkpointing_effect, has_liger_norms, last_norm_bytes, recomputes_last_layer
from planner.parts.sizes import evaluation_tokens
from planner.types import DTYPE_BYTES, Instant, OptimizationSetting

MLP = ("gate_proj", "up_proj", "gate_up_proj", "down_proj")
OF_ONE_TILE = (
    "mlp", "liger.mlp", "adapter.mlp_input", "adapter.mlp_input_masks", "adapter.mlp_product",
    "adapter.mlp_product_masks", "trainable.mlp_input", "trainable.mlp_product",
)  # fmt: skip
IN_BACKWARD = ("layer_backward.mlp", "layer_backward.liger_mlp", "layer_backward.adapter", "backward_end.adapter")
IN_FORWARD = ("layer_forward.layer", "layer_forward.adapter")
IN_EVALUATION = ("evaluation.layer", "evaluation.adapter")


def tiled_mlp_effect(ctx: PlanContext, *, tiles: int) -> Effect:
    s = ctx.sizes
    tiles = min(tiles, s.T)  # one tile, too, keeps its input only and runs forward again
    recomputes = recomputes_last_layer(ctx)
    rows, mlp = s.c * s.d * s.T, 3 * s.d * s.f
    scaled = (
        *(f"layer.{piece}" for piece in OF_ONE_TILE), *IN_BACKWARD, *IN_EVALUATION, *(IN_FORWARD if recomputes else ())
    )  # fmt: skip
    whole_forward = 3 * rows - 2 * rows // tiles
    evaluated = s.c * s.d * evaluation_tokens(ctx)
    element, trained = _trained(ctx)
    return Effect(
        add=(
            *both_layers(s, "tiled_mlp.input", "activations", SAVED_BY_MLP, rows, f"{s.c}d * T: the MLP's input"),
            TermSpec(
                key="layer_backward.tiles", part="activations", instants=MLP_BACKWARD, bytes=2 * rows - rows // tiles,
                formula=f"2 * {s.c}d * T less one tile's: gradients of the MLP's output, and of its input as it fills",
            ),
            TermSpec(
                key="layer_backward.norm", part="activations", instants=MLP_BACKWARD,
                bytes=_norm_beyond_tiles(ctx, tiles),
                formula=f"(20 + {s.c})d * T: the norm's backward in fp32, where it holds more than the tiles before it",
            ),
            *(
                (
                    TermSpec(
                        key="layer_forward.tiles", part="activations", instants=frozenset({"layer_forward"}),
                        bytes=whole_forward,
                        formula=f"3 * {s.c}d * T, and a tile's less: residual, the MLP's input, and its output as it "
                        "fills",
                    ),
                )
                if recomputes
                else ()
            ),
            *_attention_beyond_tiles(ctx, tiles),
            TermSpec(
                key="evaluation.tiles", part="activations", instants=frozenset({"evaluation_forward"}),
                bytes=5 * evaluated - 4 * evaluated // tiles,
                formula=f"5 * {s.c}d * tokens, and a tile's less: what is whole beside a tile",
            ),
            TermSpec(
                key="layer_backward.tile_sums", part="gradients", instants=MLP_BACKWARD, bytes=(4 + element) * trained,
                formula=f"(4 + {element}) * {trained}: weight gradients of the MLP, summed in float32, and a tile's",
                source="core/model/tiled_mlp.py",
            ),
        ),
        drop=(
            *(Drop(key=f"other_layers.{piece}", formula="a layer keeps the MLP's input only") for piece in OF_ONE_TILE),
            Drop(key="layer_backward.post_norm", formula="counted beside the tiles"),
        ),
        # where every layer is recomputed, these exist in its backward only already
        confine=()
        if recomputes
        else tuple(
            Confine(key=f"layer.{piece}", instants=MLP_BACKWARD, formula="exists while its tile runs backward")
            for piece in OF_ONE_TILE
        ),
        scale=tuple(
            Scale(key=key, numerator=1, denominator=tiles, formula=f"one of {tiles} tiles") for key in scaled
        ),
        add_work=(
            Work(
                key="gemm.tiles", kind="gemm", amount=2 * s.N * mlp * s.T,
                formula="2 * N * 3df * T: the MLP of each tile forward again in backward",
            ),
            Work(
                key="memory.tiles", kind="memory", amount=s.N * 5 * s.c * s.f * s.T,
                formula=f"N * 5 * {s.c}f * T: SwiGLU of each tile again",
            ),
        ),
    )  # fmt: skip


def _attention_beyond_tiles(ctx: PlanContext, tiles: int) -> tuple[TermSpec, ...]:
    """Where a forward saves nothing and tiles are small, attention is the fullest moment of a layer, or the last norm
    that of the forward."""
    s, tokens = ctx.sizes, evaluation_tokens(ctx)
    one, evaluated = s.c * s.d * s.T, s.c * s.d * tokens
    of_tile = {spec.key: spec.bytes // tiles for spec in _whole_mlp(ctx)}
    in_evaluation = 5 * evaluated - 4 * evaluated // tiles + sum(of_tile.get(key, 0) for key in IN_EVALUATION)
    in_forward = 3 * one - 2 * one // tiles + sum(of_tile.get(key, 0) for key in IN_FORWARD)
    checkpointing = ctx.config.optimization("gradient_checkpointing")
    kept = s.c * s.q if checkpointing and checkpointing.as_dict()["save_attention"] else 0
    evaluated_attention = (2 * s.c * s.d + attention_in_forward(ctx, drops=False)) * tokens
    moments: list[tuple[str, Instant, int]] = [
        ("evaluation.attention", "evaluation_forward", evaluated_attention - in_evaluation)
    ]
    if recomputes_last_layer(ctx):
        attention = max(attention_in_forward(ctx, drops=True) - kept, last_norm_bytes(ctx)) * s.T
        moments.append(("layer_forward.attention", "layer_forward", attention - in_forward))
    return tuple(
        TermSpec(
            key=key, part="activations", instants=frozenset({instant}), bytes=max(0, beyond),
            formula="normed input, q, k, v, and q as it is rotated, or attention's output and its projection, where "
            "they are more than is there beside a tile",
        )
        for key, instant, beyond in moments
    )  # fmt: skip


def _whole_mlp(ctx: PlanContext) -> tuple[TermSpec, ...]:
    """What the MLP without tiles holds in forward and evaluation."""
    setting = ctx.config.adapters
    if setting is None:
        return (*checkpointing_effect(ctx).add, *evaluation_terms(ctx.sizes, evaluation_tokens(ctx)))
    return adapter_effect(ctx, **_knobs(setting)).add


def _norm_beyond_tiles(ctx: PlanContext, tiles: int) -> int:
    """With small tiles the norm before the MLP is the fullest moment of its backward: five fp32 pieces of its input and
    the residual's gradient. Liger's writes over what is there."""
    s = ctx.sizes
    if has_liger_norms(ctx):
        return 0
    rows, (element, trained) = s.c * s.d * s.T, _trained(ctx)
    in_norm = output_norm_backward(s) if ctx.model.norms_outputs else (20 + s.c) * s.d
    one_tile = (s.c * (6 * s.f + s.d) * s.T + _of_adapters(ctx)) // tiles
    beside = 2 if ctx.model.norms_outputs else 3  # the MLP's input is there while the norm of its output runs backward
    return max(0, in_norm * s.T - (beside * rows - rows // tiles + one_tile + (4 + element) * trained))


def _of_adapters(ctx: PlanContext) -> int:
    """What adapters add to the fullest moment of the whole MLP's backward."""
    setting = ctx.config.adapters
    if setting is None:
        return 0
    scaled = {*(f"layer.{piece}" for piece in OF_ONE_TILE), *IN_BACKWARD}
    return sum(
        spec.bytes for spec in adapter_effect(ctx, **_knobs(setting)).add
        if spec.key in scaled and "layer_backward" in spec.instants
    )  # fmt: skip


def _knobs(setting: OptimizationSetting) -> dict[str, Any]:
    return {name: setting.as_dict()[name] for name in ("rank", "targets", "dropout", "adapter_dtype")}


def _trained(ctx: PlanContext) -> tuple[int, int]:
    """(bytes of a parameter, how many are trained) of one layer's MLP."""
    linears = ctx.model.linears
    mlp = [name for name in MLP if name in linears]
    setting = ctx.config.adapters
    if setting is None:
        return ctx.sizes.c, sum(linears[name][0] * linears[name][1] for name in mlp)
    knobs = setting.as_dict()
    adapted = adapted_linears(knobs["targets"], mlp)
    return DTYPE_BYTES[knobs["adapter_dtype"]], knobs["rank"] * sum(sum(linears[name]) for name in adapted)
