"""Liger's kernels in place of RMSNorm, SwiGLU and RoPE of known classes, op by op. Called by `liger`.

Only exact classes are touched: a subclass, or a class of another family, may compute something else. Each patch is an
attribute that is taken back; each call is counted, so that the run can prove what really computed.
Contract: liger-kernel 0.8 ``liger_kernel.ops``: LigerRMSNormFunction, LigerSiLUMulFunction, LigerRopeFunction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from torch import Tensor, nn
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.mixtral import modeling_mixtral
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen2_moe import modeling_qwen2_moe
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.qwen3_moe import modeling_qwen3_moe

OPS = ("rms_norm", "swiglu", "rope")
NORMS = (
    modeling_llama.LlamaRMSNorm, modeling_mistral.MistralRMSNorm, modeling_qwen2.Qwen2RMSNorm,
    modeling_qwen3.Qwen3RMSNorm, modeling_mixtral.MixtralRMSNorm, modeling_qwen2_moe.Qwen2MoeRMSNorm,
    modeling_qwen3_moe.Qwen3MoeRMSNorm,
)  # fmt: skip
# none of a mixture of experts, whose experts are parameters of one module
MLPS = (modeling_llama.LlamaMLP, modeling_mistral.MistralMLP, modeling_qwen2.Qwen2MLP, modeling_qwen3.Qwen3MLP)
ROPES: dict[type, ModuleType] = {  # attention class -> the modeling file whose function it calls
    modeling_llama.LlamaAttention: modeling_llama,
    modeling_mistral.MistralAttention: modeling_mistral,
    modeling_qwen2.Qwen2Attention: modeling_qwen2,
    modeling_qwen3.Qwen3Attention: modeling_qwen3,
    modeling_mixtral.MixtralAttention: modeling_mixtral,
    modeling_qwen2_moe.Qwen2MoeAttention: modeling_qwen2_moe,
    modeling_qwen3_moe.Qwen3MoeAttention: modeling_qwen3_moe,
}


@dataclass(slots=True, kw_only=True)
class LigerOps:
    """What was replaced, and how often it was called."""

    replaced: Counter[str] = field(default_factory=Counter)  # op -> modules
    calls: Counter[str] = field(default_factory=Counter)
    undo: list[Callable[[], None]] = field(default_factory=list)


def replace_ops(model: nn.Module, ops: tuple[str, ...], functions: Any) -> LigerOps:
    """``ops`` of OPS; ``functions``: the module ``liger_kernel.ops``, or what has its three autograd Functions."""
    done = LigerOps()
    for module in model.modules():
        kind = type(module)
        if "rms_norm" in ops and kind in NORMS:
            _replace_forward(done, "rms_norm", module, _norm(module, functions.LigerRMSNormFunction))
        elif "swiglu" in ops and kind in MLPS and module.config.hidden_act in ("silu", "swish"):
            _replace_forward(done, "swiglu", module, _mlp(module, functions.LigerSiLUMulFunction))
        elif "rope" in ops and kind in ROPES:
            done.replaced["rope"] += 1
            if done.replaced["rope"] == 1:  # one function serves all layers of a model
                _replace_rope(done, ROPES[kind], functions.LigerRopeFunction)
    return done


def _norm(module: nn.Module, function: Any) -> Callable[[Tensor], Tensor]:
    """x / rms(x) in float32, cast, times the weight; its input gradient is written over the output's."""
    return lambda x: function.apply(x, module.weight, module.variance_epsilon, 0.0, "llama", True, None)


def _mlp(module: nn.Module, function: Any) -> Callable[[Tensor], Tensor]:
    """silu(gate) * up without either saved a second time."""
    return lambda x: module.down_proj(function.apply(module.gate_proj(x), module.up_proj(x), 1.0, 1.0))


def _replace_forward(done: LigerOps, op: str, module: nn.Module, compute: Callable[[Tensor], Tensor]) -> None:
    def forward(x: Tensor) -> Tensor:
        done.calls[op] += 1
        return compute(x)

    module.forward = forward
    done.replaced[op] += 1
    done.undo.append(lambda: module.__dict__.pop("forward"))


def _replace_rope(done: LigerOps, modeling: ModuleType, function: Any) -> None:
    """The function is a global of the modeling file: of this process, until it is taken back."""

    def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
        done.calls["rope"] += 1
        return function.apply(q, k, cos, sin, None, unsqueeze_dim)

    stock = modeling.apply_rotary_pos_emb
    modeling.apply_rotary_pos_emb = rotate
    done.undo.append(lambda: setattr(modeling, "apply_rotary_pos_emb", stock))
