"""Models that are planned and not trained with yet, each with what the numbers cover. Called by planner/checks.py."""

from __future__ import annotations

from planner.model_shape import ModelSpec


def planned_only_models(model: ModelSpec) -> tuple[tuple[str, str, str], ...]:
    """(what, why, fix) of each reason for which a launch refuses this model."""
    reasons = []
    experts = model.experts
    if experts is not None:
        active, held = model.num_active_parameters / 1e9, model.num_parameters / 1e9
        reasons.append(
            (
                f"{model.name} has {experts.num_experts} experts in {experts.num_layers} of {model.num_layers} layers: "
                "it is planned only.",
                f"All {held:.1f} billion parameters are counted in memory, the {active:.1f} billion that a token meets "
                "in time. Experts are stored as three-dimensional parameters, so adapters cover "
                f"{', '.join(model.linears)} (experts would need PEFT's target_parameters), and qlora leaves experts "
                "in 16 bits. The router's balancing loss is not trained yet.",
                "Plan it as it is, or choose a dense model to train.",
            )
        )
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
