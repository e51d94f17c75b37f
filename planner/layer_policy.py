"""`engine: layer`: what each decoder layer keeps, and in which pieces it works.

Both the planner (planner/parts/layer_engine.py) and the trainer (core/layer) read it from here, so that the trainer
does exactly what the plan says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.types import ModelSpec, RunConfig

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")  # whose decoder layers the engine knows, by model_type
# dense families that train by their own modules only: fake_parallel and liger know exact classes, and none of theirs
MODULES_ONLY = ("gemma", "gemma3_text", "glm", "glm4", "phi3", "smollm3")
# optimizations that the engine carries out itself
CARRIED_OUT = ("gradient_checkpointing", "checkpoint_offload", "fake_parallel", "tiled_mlp", "liger")
SAME_WITHOUT = ("liger",)  # of these, what changes nothing: norms, RoPE and SwiGLU are the engine's own with it, too
TILE_TOKENS = 8192  # rows of the MLP at a time, unless tiled_mlp says otherwise: products of more are no faster
TILE_MULTIPLE = 64  # tiles end on such rows where there are enough: whole tiles of a matrix product


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPolicy:
    """Of one layer."""

    head_groups: int = 1  # attention runs by groups of KV heads
    mlp_tiles: int = 1  # what is behind attention runs in tiles of rows
    keeps_attention: bool = False  # output and log-sum-exp, from forward to backward
    keeps_products: bool = False  # all that a matrix product made: nothing but norms, RoPE and SwiGLU is recomputed
    offloads: bool = False  # what is kept waits in host memory


def layer_policies(config: RunConfig, model: ModelSpec) -> tuple[LayerPolicy, ...]:
    """Of every layer, the first one first."""
    checkpointing = config.optimization("gradient_checkpointing")
    knobs = checkpointing.as_dict() if checkpointing else {}
    num_layers = model.num_layers
    first_whole = max(0, num_layers - knobs.get("kept_layers", 0)) if checkpointing else 0
    offload, groups = config.optimization("checkpoint_offload"), config.optimization("fake_parallel")
    num_offloaded = max(0, first_whole - offload.as_dict()["kept_layers"]) if offload else 0
    recomputed = LayerPolicy(
        head_groups=groups.as_dict()["groups"] if groups else 1, mlp_tiles=mlp_tiles(config),
        keeps_attention=bool(knobs.get("save_attention")),
    )  # fmt: skip
    return (
        *(replace(recomputed, offloads=True),) * num_offloaded,
        *(recomputed,) * (first_whole - num_offloaded),
        *(replace(recomputed, keeps_attention=True, keeps_products=True),) * (num_layers - first_whole),
    )


def outputs_wait_on_host(policies: tuple[LayerPolicy, ...]) -> bool:
    """Whether attention outputs leave together with the inputs: only where every layer that sends one keeps both."""
    return any(p.offloads for p in policies) and all(p.keeps_attention for p in policies if p.offloads)


def mlp_tiles(config: RunConfig) -> int:
    """As many as tiled_mlp says; else so many that a tile fills a large GPU, and at least one a virtual rank of
    fake_parallel: a real rank's MLP would hold its share of the row, too."""
    tiled, groups = config.optimization("tiled_mlp"), config.optimization("fake_parallel")
    if tiled is not None:
        return int(tiled.as_dict()["tiles"])
    by_tokens = -(-config.per_device_train_batch_size * config.max_length // TILE_TOKENS)
    return max(by_tokens, groups.as_dict()["groups"] if groups else 1)


def tile_rows(num_rows: int, tiles: int) -> int:
    """Rows of the largest tile."""
    size = -(-num_rows // tiles)
    if size >= TILE_MULTIPLE:
        size = -(-size // TILE_MULTIPLE) * TILE_MULTIPLE
    return min(size, num_rows)


def tile_bounds(num_rows: int, tiles: int) -> list[tuple[int, int]]:
    """(start, end) of each tile of rows; fewer than ``tiles`` where that fills them."""
    size = tile_rows(num_rows, tiles)
    return [(start, min(start + size, num_rows)) for start in range(0, num_rows, size)]


def layer_engine_obstacle(config: RunConfig, model: ModelSpec) -> str | None:
    """Why `engine: layer` cannot run this; None when it can."""
    adapters = config.adapters
    if model.family not in FAMILIES:
        return f"its layers are those of {', '.join(FAMILIES)}, and this model is {model.family}"
    if adapters is None:
        return "it trains adapters over frozen weights (lora or qlora), and this run trains every weight"
    if config.optimization("fsdp") is not None:
        return "it reads the weights of whole layers, and with fsdp a rank has a share of each"
    dropout = adapters.as_dict().get("dropout", 0.0)
    if dropout > 0:
        return f"it recomputes without random numbers, and {adapters.name}.dropout is {dropout}"
    return None
