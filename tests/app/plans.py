"""Plans built by hand, with round numbers, for the tests of views and faces (no planner arithmetic involved)."""

from __future__ import annotations

from dataclasses import replace

from planner.types import (
    INSTANTS,
    Alternative,
    ClusterSpec,
    DataConfig,
    Environment,
    GpuPlan,
    GpuSpec,
    Issue,
    MemoryBreakdown,
    ModelSpec,
    OptimizationSetting,
    ParallelDegrees,
    Plan,
    RunConfig,
    Term,
)

GIB = 1024**3
STEP = frozenset({"forward_loss", "loss_backward", "layer_backward", "attention_backward", "backward_end"})
LORA = OptimizationSetting(name="lora", knobs=(("rank", 64), ("alpha", 128)))
RING = OptimizationSetting(name="ring", knobs=(("degree", 2),))


def model_spec() -> ModelSpec:
    return ModelSpec(
        name="Qwen/Qwen2.5-7B-Instruct", family="qwen2", hidden_size=3584, intermediate_size=18944, num_layers=28,
        num_attention_heads=28, num_kv_heads=4, head_dim=128, vocab_size=152064, max_position_embeddings=32768,
        tie_word_embeddings=False, qkv_bias=True, o_bias=False, mlp_bias=False, qk_norm=False, sliding_window=None,
        num_parameters=7_615_616_512,
    )  # fmt: skip


def gpu_spec(usable_gib: float = 22) -> GpuSpec:
    return GpuSpec(
        name="A10", kind="cuda", memory_bytes=24 * GIB, usable_bytes=round(usable_gib * GIB),
        compute_capability=(8, 6), gemm_flops=70e12, attention_flops=50e12, memory_bytes_per_s=600e9,
        pcie_bytes_per_s=25e9, link_bytes_per_s=20e9,
    )  # fmt: skip


def terms(tokens: int = 8192) -> tuple[Term, ...]:
    """1 GiB of logits per 2048 tokens, 1 GiB of layer inputs per 8192; the peak is the loss's backward."""
    everywhere = frozenset(INSTANTS)
    return (
        Term(key="weights.base", part="weights", instants=everywhere, bytes=14 * GIB,
             formula="2*P = 2 * 7.5e9", basis="exact", source="config.json"),
        Term(key="adapters.lora", part="adapters", instants=everywhere, bytes=GIB // 2,
             formula="4*r*(i+o)", basis="exact"),
        Term(key="gradients.lora", part="gradients", instants=frozenset({"backward_end", "optimizer_step"}),
             bytes=GIB // 2, formula="4*r*(i+o)", basis="exact"),
        Term(key="optimizer.moments", part="optimizer", instants=everywhere - {"load"}, bytes=GIB,
             formula="8*r*(i+o)", basis="exact"),
        Term(key="checkpoints.layer_inputs", part="checkpoints", instants=STEP, bytes=GIB * tokens // 8192,
             formula=f"2*N*T*d with T = {tokens}", basis="modelled"),
        Term(key="logits.loss_gradient", part="logits", instants=frozenset({"loss_backward"}),
             bytes=GIB * tokens // 2048, formula=f"4*V*T with T = {tokens}", basis="modelled", source="notes"),
        Term(key="layer.recomputed", part="activations", instants=frozenset({"layer_backward"}),
             bytes=GIB * tokens // 4096, formula="34*T*d", basis="modelled"),
    )  # fmt: skip


def gpu_plan(index: int = 0, *, tokens: int = 8192, usable_gib: float = 22) -> GpuPlan:
    breakdown = MemoryBreakdown(terms=terms(tokens))
    context = (
        Term(key="runtime.context", part="runtime", instants=frozenset(), bytes=GIB // 2,
             formula="CUDA context", basis="assumed"),
        Term(key="runtime.allocator", part="runtime", instants=frozenset(), bytes=GIB // 2,
             formula="rounding of blocks", basis="modelled"),
    )  # fmt: skip
    used = breakdown.peak_bytes + GIB
    return GpuPlan(
        index=index, usable_bytes=round(usable_gib * GIB), allocated=breakdown,
        reserved_bytes=breakdown.peak_bytes + GIB // 2, used_bytes=used, band_bytes=(used - GIB // 2, used + GIB // 2),
        context_terms=context,
    )  # fmt: skip


def run_config(*, tokens: int = 8192, world: int = 1, name: str = "qwen2.5-7b-8k-1x24g") -> RunConfig:
    settings = (LORA, OptimizationSetting(name="gradient_checkpointing"))
    return RunConfig(
        name=name, model="Qwen/Qwen2.5-7B-Instruct", dtype="bfloat16", autocast=True, max_length=tokens,
        data=DataConfig(train=("a.jsonl",)), parallel=ParallelDegrees(ring=world),
        optimizations=settings if world == 1 else (*settings, RING), gradient_accumulation_steps=8,
    )  # fmt: skip


def plan(*, tokens: int = 8192, world: int = 1, usable_gib: float = 22) -> Plan:
    gpu = gpu_plan(tokens=tokens // world, usable_gib=usable_gib)
    is_tight = gpu.band_bytes[1] >= gpu.usable_bytes
    verdict = "over" if gpu.used_bytes > gpu.usable_bytes else "tight" if is_tight else "fits"
    return Plan(
        config=run_config(tokens=tokens, world=world),
        model=model_spec(),
        cluster=ClusterSpec(
            gpu=gpu_spec(usable_gib), num_gpus_per_node=world, host_bytes_per_node=128 * GIB, source="assumed"
        ),
        environment=Environment(source="assumed", packages={}, compute_capability=(8, 6)),
        gpus=tuple(replace(gpu, index=index) for index in range(world)),
        host_bytes=6 * GIB, host_verdict="fits", disk_bytes=2 * GIB, disk_verdict="fits",
        verdict=verdict, seconds_per_step=32.0, tokens_per_second=2048.0,
        batch={"world": world, "data": 1, "sequence": world, "accumulation": 8, "tokens_per_step": tokens * 8,
               "tokens_per_rank": tokens // world},
        issues=(
            Issue(code="length-unused", severity="warning", what="Your longest row is 412 tokens;",
                  why="max_length 8192 is never reached.", fix="Use max_length: 512."),
        ),
        alternatives=alternatives(),
    )  # fmt: skip


def alternatives() -> tuple[Alternative, ...]:
    fused = OptimizationSetting(name="fused_loss", knobs=(("chunk_tokens", 1024),))
    checkpointing = OptimizationSetting(name="gradient_checkpointing")
    return (
        Alternative(optimizations=(LORA, checkpointing, fused), changes=(("fused_loss", True),), verdict="fits",
                    used_bytes=18 * GIB, tokens_per_second=2560.0, why="logits never exist for a whole row"),
        Alternative(optimizations=(LORA, checkpointing, RING), changes=(("ring", 2), ("fused_loss", None)),
                    verdict="tight", used_bytes=21 * GIB, tokens_per_second=1024.0, why="half a row on each GPU"),
    )  # fmt: skip
