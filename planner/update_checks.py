"""What is refused of the way parameters are updated: 8-bit states, master weights, updates within the backward.

Called by planner/checks.py.
"""

from __future__ import annotations

from typing import Any

from planner.optimization import PlanContext
from planner.parts.optimizer import is_8bit, is_paged
from planner.parts.tensors import trained_model
from planner.types import DTYPE_BYTES, Issue

GIB = 1024**3


def update_issues(ctx: PlanContext) -> list[Issue]:
    return [*_8bit(ctx), *_master_weights(ctx), *_layer_by_layer(ctx)]


def trained_dtype(ctx: PlanContext) -> str:
    """Of what is trained: the base's, or the adapters'."""
    setting = ctx.config.adapters
    return ctx.config.dtype if setting is None else str(setting.as_dict()["adapter_dtype"])


def refusal(code: str, what: str, why: str, fix: str, **suggestion: Any) -> Issue:
    return Issue(code=code, severity="error", what=what, why=why, fix=fix, suggestion=tuple(suggestion.items()))


def _8bit(ctx: PlanContext) -> list[Issue]:
    optim, master, issues = ctx.config.optim, ctx.config.master_weights, []
    if not is_8bit(ctx.config):
        return []
    if ctx.environment.source == "detected" and "bitsandbytes" not in ctx.environment.packages:
        issues.append(
            refusal(
                "package-bitsandbytes", f"optim {optim} needs the package bitsandbytes.", "It is not installed.",
                "pip install 'longfit[bnb]', or set optim: adamw_torch_fused.", optim="adamw_torch_fused",
            )
        )  # fmt: skip
    if is_paged(ctx.config) and ctx.cluster.gpu.kind == "cpu":
        issues.append(
            refusal(
                "optim-paged-cpu", f"optim {optim} on a CPU.",
                "Pages leave a GPU for host memory, and the states are there already.", "Set optim: adamw_8bit.",
                optim="adamw_8bit",
            )
        )  # fmt: skip
    if master != "none":
        issues.append(
            refusal(
                "master-weights-8bit", f"master_weights {master} and optim {optim} exclude each other.",
                "bitsandbytes updates the 16-bit parameters themselves.",
                "Set master_weights: none, or optim: adamw_torch_fused.", master_weights="none",
            )
        )  # fmt: skip
    return issues


def _master_weights(ctx: PlanContext) -> list[Issue]:
    kind, dtype = ctx.config.master_weights, trained_dtype(ctx)
    if kind != "none" and dtype == "float32":
        return [
            refusal(
                "master-weights-float32", f"master_weights is {kind}, and what is trained is float32.",
                "It keeps updates that 16 bits would round away; float32 keeps them by itself.",
                "Set master_weights: none.", master_weights="none",
            )
        ]  # fmt: skip
    if kind == "stochastic" and dtype == "float16":
        return [
            refusal(
                "master-weights-float16", "master_weights is stochastic, and what is trained is float16.",
                "Rounding by chance is that of bfloat16, which is the upper half of a float32.",
                "Set master_weights: fp32.", master_weights="fp32",
            )
        ]  # fmt: skip
    return []


def _layer_by_layer(ctx: PlanContext) -> list[Issue]:
    config, issues = ctx.config, []
    if config.update != "layer":
        return []
    if config.method != "full":
        return [
            refusal(
                "update-layer-adapters", f"update: layer with {config.method}.",
                "It frees the gradients of a layer before those of the next exist, and those of adapters are small.",
                "Set update: step.", update="step",
            )
        ]  # fmt: skip
    trained = trained_model(ctx.model, DTYPE_BYTES[config.dtype])
    whole = f"{trained.num_bytes / GIB:.2f} GiB"
    layer = f"{trained.element_bytes * trained.layer_parameters / GIB:.2f} GiB"
    steps, rows = config.gradient_accumulation_steps, config.per_device_train_batch_size
    if steps > 1:
        issues.append(
            refusal(
                "update-layer-accumulation", f"update: layer with gradient_accumulation_steps {steps}.",
                f"The gradients of {steps} micro-batches would have to be summed before an update, {whole} of them; "
                f"update: layer holds those of one layer, {layer}.",
                f"Set gradient_accumulation_steps: 1 (per_device_train_batch_size: {steps * rows} takes as many rows "
                "in a step), or update: step.",
                gradient_accumulation_steps=1,
            )
        )  # fmt: skip
    if config.max_grad_norm > 0:
        issues.append(
            refusal(
                "update-layer-clipping", f"update: layer with max_grad_norm {config.max_grad_norm:g}.",
                f"The norm is that of all gradients, {whole}, and known before the first update; update: layer holds "
                f"those of one layer, {layer}.",
                "Set max_grad_norm: 0, or update: step.", max_grad_norm=0.0,
            )
        )  # fmt: skip
    if config.dtype == "float16":
        issues.append(
            refusal(
                "update-layer-float16", "update: layer with dtype float16.",
                "Loss scaling leaves out a step whose gradients overflow, and layers are updated before that is known.",
                "Set dtype: bfloat16, or update: step.", dtype="bfloat16",
            )
        )  # fmt: skip
    return issues
