"""What a mixture of experts holds beside the MLP of the same active width: copies of the tokens, one for each expert.

Source: transformers 5.17 integrations/moe.py, grouped_mm_experts_forward. k experts a token: the k*T selected rows of
width d are gathered, multiplied, masked, weighted, put back in order and summed. Compared with the modeling code tensor
by tensor in tests/planner/test_expert_layer.py. Gate, up and product of the active experts are the plain path's
(planner/parts/activations.py, f = k * width).
"""

from __future__ import annotations

from planner.effects import TermSpec
from planner.model_shape import Experts
from planner.parts.activations import MLP_BACKWARD, SAVED_BY_DOWN, SAVED_BY_MLP, both_layers
from planner.parts.sizes import Sizes

SOURCE = "transformers integrations/moe.py"


def expert_terms(s: Sizes, experts: Experts | None, num_evaluation_tokens: int) -> tuple[TermSpec, ...]:
    """Nothing for a dense model."""
    if experts is None:
        return ()
    c, k = s.c, experts.num_active
    rows = c * k * s.d  # bytes a token of one copy
    routing = 56 * k + 6 * experts.num_experts  # six orders and their weights, probabilities and logits
    kept = rows + 32 * k
    active, shared_width = k * experts.width, experts.shared_width
    output = c * s.d if shared_width else 0  # of the shared expert, which runs first
    # gate and up are masked into a second copy
    forward = max(0, max(4 * rows, rows + 4 * c * active) + output + routing - 3 * c * s.f)
    backward = max(0, 3 * c * s.d + 4 * rows + routing - c * (s.d + 3 * s.f) + c * shared_width)
    shared = both_layers(
        s, "experts.shared", "activations", SAVED_BY_DOWN, c * (s.d + 1) * s.T,
        f"{c}(d + 1) * T: output of the shared expert, and its gate", source="transformers modeling_qwen2_moe.py",
    )  # fmt: skip
    return (
        *(shared if shared_width else ()),
        *both_layers(
            s, "experts.output", "activations", SAVED_BY_DOWN, kept * s.T,
            f"({c} * {k}d + 32 * {k}) * T: outputs of {k} experts a token, for the router's gradient", source=SOURCE,
        ),
        *both_layers(
            s, "trainable.experts.input", "activations", SAVED_BY_MLP - MLP_BACKWARD, rows * s.T,
            f"{c} * {k}d * T: inputs of {k} experts a token, for their weights", source=SOURCE,
        ),
        TermSpec(
            key="layer.trainable.experts.product", part="activations", instants=MLP_BACKWARD,
            bytes=(c * s.f if backward else rows) * s.T, formula=f"{c}f * T: products, for the experts' weights",
            source=SOURCE,
        ),
        TermSpec(
            key="layer_backward.experts", part="activations", instants=MLP_BACKWARD, bytes=backward * s.T,
            formula=f"({c}(3d + 4 * {k}d + {shared_width}) + {routing} - {c}(d + 3f)) * T: rows gathered, multiplied, "
            "weighted, and their gradient, and what goes into a shared expert's down, beyond the plain MLP's fullest "
            "moment",
            source=SOURCE,
        ),
        TermSpec(
            key="layer_forward.experts", part="activations", instants=frozenset({"layer_forward"}),
            bytes=forward * s.T,
            formula=f"(max({c} * 4 * {k}d, {c}({k}d + 4 * {active})) + {output + routing} - {c} * 3f) * T: selected "
            "rows and what is made of them, or gate and up and their masked copy, beyond the plain MLP's",
            source=SOURCE,
        ),
        TermSpec(
            key="evaluation.experts", part="activations", instants=frozenset({"evaluation_forward"}),
            bytes=forward * num_evaluation_tokens,
            formula=f"{forward} bytes a token * {num_evaluation_tokens}: the same of an evaluation batch",
            source=SOURCE,
        ),
    )  # fmt: skip
