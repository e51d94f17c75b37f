"""The tensors that are trained, by size: optimizers keep their states, pages and buffers tensor by tensor.

Used by planner/parts/optimizer.py and planner/parts/galore.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from planner.types import ModelSpec

INPUTS_OF_ATTENTION = ("q_proj", "k_proj", "v_proj", "qkv_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """``count`` tensors of ``elements`` elements each."""

    elements: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a run trains, in one dtype of ``element_bytes``."""

    groups: tuple[Group, ...]
    element_bytes: int
    early_parameters: int  # whose gradients exist before any layer runs backward: the head's
    late_parameters: int  # whose gradients do not exist yet while the first layer's MLP runs backward
    layer_parameters: int  # of one decoder layer
    layer_largest: int = 0  # of its largest tensor
    down_parameters: int = 0  # of a layer: whose gradients exist while the last one's product gate * up runs backward
    upper_parameters: int = 0  # of a layer: whose gradients exist while attention runs backward, the MLP's, o_proj's

    @property
    def num_parameters(self) -> int:
        return sum(group.elements * group.count for group in self.groups)

    @property
    def largest(self) -> int:
        return max((group.elements for group in self.groups), default=0)

    @property
    def num_bytes(self) -> int:
        return self.element_bytes * self.num_parameters


def trained_model(model: ModelSpec, element_bytes: int) -> Trained:
    """Every parameter of the model, tied weights once."""
    embeddings, linears = model.vocab_size * model.hidden_size, model.linears
    sizes = {name: inputs * outputs for name, (inputs, outputs) in linears.items()}
    layer, down = sum(sizes.values()), sizes.get("down_proj", 0)
    late, upper = layer - down, sum(size for name, size in sizes.items() if name not in INPUTS_OF_ATTENTION)
    largest_expert = 0
    if (experts := model.experts) is not None:  # three matrices each, that of down the first to get its gradient
        matrices = experts.num_experts * experts.width * model.hidden_size
        largest_expert = 2 * matrices  # gate and up of all experts are one tensor
        layer, late = layer + 3 * matrices, late + 2 * matrices
        down, upper = down + matrices, upper + 3 * matrices
    return Trained(
        groups=model_groups(model),
        element_bytes=element_bytes,
        early_parameters=embeddings,
        late_parameters=late + (0 if model.tie_word_embeddings else embeddings),
        layer_parameters=layer,
        layer_largest=max(*sizes.values(), largest_expert),
        down_parameters=down,
        upper_parameters=upper,
    )


def model_groups(model: ModelSpec) -> tuple[Group, ...]:
    """Embeddings, head, decoder linears, and the vectors: norms and biases."""
    d, n = model.hidden_size, model.num_layers
    groups = [Group(elements=model.vocab_size * d, count=1 if model.tie_word_embeddings else 2)]
    groups += [Group(elements=inputs * outputs, count=n) for inputs, outputs in model.linears.values()]
    biases = {"q_proj": model.qkv_bias, "k_proj": model.qkv_bias, "v_proj": model.qkv_bias, "o_proj": model.o_bias}
    groups += [
        Group(elements=outputs, count=n)
        for name, (_, outputs) in model.linears.items()
        if biases.get(name, model.mlp_bias)
    ]
    if model.qk_norm:
        groups.append(Group(elements=model.head_dim, count=2 * n))
    groups.append(Group(elements=d, count=(4 if model.norms_outputs else 2) * n + 1))
    rest = model.num_parameters - sum(group.elements * group.count for group in groups)
    if rest > 0:  # of a family with more than these
        groups.append(Group(elements=-(-rest // n), count=n))
    return tuple(groups)


def adapter_groups(linears: Iterable[tuple[int, int]], rank: int, num_layers: int) -> tuple[Group, ...]:
    """A (rank x inputs) and B (outputs x rank) of each adapted linear, in every layer."""
    return tuple(Group(elements=rank * width, count=num_layers) for shape in linears for width in shape)
