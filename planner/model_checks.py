"""Models that are planned and not trained with, each with what the numbers cover. Called by planner/checks.py, by
core/model/load.py before any weight is read, and by app/cli/models.py.
"""

from __future__ import annotations

from planner.model_shape import Experts, ModelSpec

ALIGNED = 8  # elements of 16 bits in the 16 bytes that rows of a grouped product start at (torch GroupedMMUtils.h)


def planned_only_models(model: ModelSpec, *, method: str = "lora") -> tuple[tuple[str, str, str], ...]:
    """(what, why, fix) of each reason for which a launch refuses to train this model by ``method``, full, lora or
    qlora."""
    reasons = []
    if model.experts is not None:
        reasons += _experts(model, model.experts, method)
    if model.tower_parameters:
        reasons.append(
            (
                f"{model.name} reads pictures too: it is planned only, for text.",
                f"The vision tower's {model.tower_parameters / 1e9:.2f} billion parameters are counted as weights; its "
                "activations are not, because text does not pass through it.",
                "Plan it as it is, or choose the text model of the same family to train.",
            )
        )
    return tuple(reasons)


def _experts(model: ModelSpec, experts: Experts, method: str) -> list[tuple[str, str, str]]:
    reasons = []
    if method == "full":
        active, held = model.num_active_parameters / 1e9, model.num_parameters / 1e9
        reasons.append(
            (
                f"{model.name} has {experts.num_experts} experts in {experts.num_layers} of {model.num_layers} layers: "
                "full fine-tuning of it is planned only.",
                f"All {held:.1f} billion parameters are counted in memory, the {active:.1f} billion that a token meets "
                "in time. Its router would train too, and longfit's loss has no balancing loss: without it a router "
                "sends ever more tokens to ever fewer experts.",
                "Train adapters: lora, or qlora. Router and experts stay as they are then.",
            )
        )
    if model.hidden_size % ALIGNED or experts.width % ALIGNED:
        reasons.append(
            (
                f"{model.name} has experts of {model.hidden_size} x {experts.width}: it is planned only.",
                f"torch multiplies grouped rows of whole 16 bytes: widths in 16 bits are multiples of {ALIGNED}.",
                "Plan it as it is, or choose a model of such widths.",
            )
        )
    if experts.num_layers < model.num_layers:
        reasons.append(
            (
                f"{model.name} has experts in {experts.num_layers} of {model.num_layers} layers: it is planned only.",
                "Its other layers have linears of their own, which adapters and 4-bit storage would reach and the plan "
                "does not count.",
                "Plan it as it is, or choose a model with experts in every layer.",
            )
        )
    return reasons
