"""The shape of a decoder, and what is counted from it alone. Imported from planner/types.py, built by model_spec.py.

Frozen, free of I/O and of torch.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The mixture of experts that takes the MLP's place in ``num_layers`` of a model's layers."""

    num_experts: int
    num_active: int  # routed experts that a token passes through
    width: int  # MLP width of one routed expert
    shared_width: int  # of the expert that every token passes through; 0: there is none
    num_layers: int  # that have experts; the others have a dense MLP


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Shape of a decoder, from a Hugging Face ``config.json`` (see planner/model_spec.py)."""

    name: str
    family: str  # config.json "model_type"
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    sliding_window: int | None  # tokens that a layer looks back, itself included; None: no layer slides
    num_parameters: int  # exact, tied weights counted once
    checkpoint_dtype: str = "bfloat16"  # of the weights on disk, as config.json says
    sliding_layers: int = 0  # that attend within ``sliding_window``; the others attend to the whole row
    last_layer_slides: bool = True  # where some do
    experts: Experts | None = None
    positions_before_scaling: int | None = None  # of a model that brings RoPE scaling along; None: it brings none
    tower_parameters: int = 0  # of num_parameters: the vision tower and its merger, which text does not pass through
    fuses_qkv: bool = False  # one linear makes q, k and v, which are slices of its output
    fuses_gate_up: bool = False  # one linear makes gate and up, which are the halves of its output
    norms_outputs: bool = False  # what attention and MLP make is normed too, before it joins the residual stream
    norms_in_float32: bool = False  # a norm's weight multiplies before the result is cast to the compute dtype
    rotates_pairs: bool = False  # RoPE turns neighbours, with a cosine and sine of its own in each layer
    rotary_width: int | None = None  # leading entries of a head that RoPE rotates; None: all of them
    rotations: int = 1  # pairs of cosine and sine that a row has: one for each type of layer that has its own RoPE
    lowest_rotations: int = 1  # of these, that the two lowest layers have
    rope_is_stretched: bool = False  # by its own config, which does not say from how many positions

    @property
    def q_width(self) -> int:
        return self.num_attention_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.num_kv_heads * self.head_dim

    def attention_span(self, length: int) -> int:
        """Length of a causal row with as many pairs of query and key as a row of ``length`` tokens has in this model,
        in the mean over its layers. A layer that slides has length * window - window^2 / 2, others length^2 / 2."""
        window = min(self.sliding_window or length, length)
        sliding = window * (2 - window / length)
        return round(length - (length - sliding) * self.sliding_layers / self.num_layers)

    @property
    def original_positions(self) -> int:
        """What a factor of RoPE scaling multiplies."""
        return self.positions_before_scaling or self.max_position_embeddings

    @property
    def mlp_width(self) -> int:
        """MLP columns that one token passes through, in the layer where these are most."""
        experts = self.experts
        if experts is None:
            return self.intermediate_size
        active = experts.num_active * experts.width + experts.shared_width
        return active if experts.num_layers == self.num_layers else max(active, self.intermediate_size)

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """The nn.Linear modules that every decoder layer has: name -> (inputs, outputs). Experts and their router are
        plain parameters (transformers 5), so neither adapters nor 4-bit storage reach them."""
        d, q, kv = self.hidden_size, self.q_width, self.kv_width
        if self.fuses_qkv:
            attention = {"qkv_proj": (d, q + 2 * kv), "o_proj": (q, d)}
        else:
            attention = {"q_proj": (d, q), "k_proj": (d, kv), "v_proj": (d, kv), "o_proj": (q, d)}
        if self.experts is None:
            width = self.intermediate_size
        elif self.experts.shared_width and self.experts.num_layers == self.num_layers:
            width = self.experts.shared_width
        else:
            return attention
        if self.fuses_gate_up:
            mlp = {"gate_up_proj": (d, 2 * width), "down_proj": (width, d)}
        else:
            mlp = {"gate_proj": (d, width), "up_proj": (d, width), "down_proj": (width, d)}
        return {**attention, **mlp, **({"shared_expert_gate": (d, 1)} if self.experts else {})}

    @property
    def num_linear_parameters(self) -> int:
        """Weights (without biases) of all of ``linears``, all layers."""
        return self.num_layers * sum(i * o for i, o in self.linears.values())

    @property
    def num_active_linear_parameters(self) -> int:
        """Weights of the decoder layers that one token is multiplied with: of the experts, the active ones."""
        experts = self.experts
        if experts is None:
            return self.num_linear_parameters
        d = self.hidden_size
        active = 3 * d * (experts.num_active * experts.width + experts.shared_width)
        sparse = active + d * experts.num_experts + (d if experts.shared_width else 0)
        dense = 3 * d * self.intermediate_size
        attention = 2 * d * (self.q_width + self.kv_width)
        num_dense = self.num_layers - experts.num_layers
        return self.num_layers * attention + experts.num_layers * sparse + num_dense * dense

    @property
    def num_active_parameters(self) -> int:
        """Of ``num_parameters``, those that one token can meet."""
        experts = self.experts
        if experts is None:
            return self.num_parameters
        idle = (experts.num_experts - experts.num_active) * 3 * self.hidden_size * experts.width
        return self.num_parameters - experts.num_layers * idle
