"""GaLore in numbers: `core/optimizations/galore.py` returns it.

A matrix of a decoder layer (rows x columns) gets its AdamW states in a subspace of rank r: exp_avg and exp_avg_sq of
the projected gradient, and the projection itself, renewed from a singular value decomposition of the gradient every
``update_proj_gap`` steps. Embeddings, head, norms and biases keep plain AdamW. Source: GaLore (arXiv 2403.03507),
core/train/galore_adamw.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.effects import Drop, Effect, TermSpec, Work
from planner.optimization import PlanContext
from planner.parts.optimizer import (
    AFTER_LOAD,
    AT_STEP,
    embedding_temporaries,
    exchange_temporaries,
    layer_updates,
)
from planner.parts.sizes import Sizes
from planner.parts.tensors import trained_model

PROJ_TYPES = ("std", "reverse_std", "right", "left", "full")
# GaLore's authors report ten minutes for all matrices of a 7B model on one A100: 2.5e14 FLOP as counted below
SVD_FLOPS = 0.4e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Projected:
    """One matrix, as elements."""

    states: int  # of exp_avg, and as many of exp_avg_sq
    projections: int


def is_projected(rows: int, columns: int, rank: int) -> bool:
    """A rank that is not below both sides saves nothing."""
    return rank < min(rows, columns)


def projected(rows: int, columns: int, *, rank: int, proj_type: str) -> Projected:
    """``std`` projects the shorter side away from the states: the projection is small, the states have the longer one.

    left: r x columns, right: rows x r, full: r x r.
    """
    if proj_type == "full":
        return Projected(states=rank * rank, projections=rank * (rows + columns))
    is_right = {"right": True, "left": False, "std": rows >= columns, "reverse_std": rows < columns}[proj_type]
    kept, away = (rows, columns) if is_right else (columns, rows)
    return Projected(states=rank * kept, projections=rank * away)


def galore_effect(ctx: PlanContext, *, rank: int, update_proj_gap: int, proj_type: str) -> Effect:
    s = ctx.sizes
    matrices = [(outputs, inputs) for inputs, outputs in s.linears.values() if is_projected(outputs, inputs, rank)]
    small = [projected(*matrix, rank=rank, proj_type=proj_type) for matrix in matrices]
    count = s.N * len(matrices)
    num_states = s.N * sum(each.states for each in small)
    num_projections = s.N * sum(each.projections for each in small)
    num_rest = ctx.model.num_parameters - s.N * sum(rows * columns for rows, columns in matrices)
    of_matrices, of_rest = _matrix_temporaries(s, matrices, small), _rest_temporaries(ctx)
    in_backward = ctx.config.update == "layer"
    temporaries, text = of_rest if in_backward else max(of_matrices, of_rest)
    accumulation = ctx.config.gradient_accumulation_steps
    through = sum(rows * columns for rows, columns in matrices)
    return Effect(
        add=(
            TermSpec(
                key="optimizer.galore.states", part="optimizer", instants=AFTER_LOAD, bytes=2 * s.c * num_states,
                formula=f"2 * {s.c} * {num_states}: exp_avg and exp_avg_sq of {count} matrices in rank {rank}",
                basis="exact", source="core/train/galore_adamw.py",
            ),
            TermSpec(
                key="optimizer.galore.projections", part="optimizer", instants=AFTER_LOAD, bytes=s.c * num_projections,
                formula=f"{s.c} * {num_projections}: projections of {count} matrices", basis="exact",
                source="core/train/galore_adamw.py",
            ),
            TermSpec(
                key="optimizer.galore.rest", part="optimizer", instants=AFTER_LOAD, bytes=2 * s.c * num_rest,
                formula=f"2 * {s.c} * {num_rest}: exp_avg and exp_avg_sq of embeddings, head, norms, biases",
                basis="exact", source="torch.optim.AdamW",
            ),
            TermSpec(
                key="step.galore", part="optimizer", instants=AT_STEP, bytes=temporaries, formula=text, basis="assumed",
                source="torch.linalg.svd",
            ),
            *(layer_updates(ctx, "galore", trained_model(ctx.model, s.c), *of_matrices) if in_backward else ()),
        ),
        drop=(
            Drop(key="optimizer.base", formula="states are those of projected gradients"),
            Drop(key="step.base", formula="matrices are updated one after another"),
            Drop(key="step.base.layer", formula="matrices are updated one after another"),
            Drop(key="step.base.lowest", formula="matrices are updated one after another"),
        ),
        add_work=(
            Work(
                key="overhead.galore_svd", kind="overhead",
                amount=round(1e9 * s.N * sum(map(_svd_flops, matrices)) / SVD_FLOPS / update_proj_gap / accumulation),
                formula=f"N * (4 n k^2 + 22 k^3) FLOP of each matrix n x k at {SVD_FLOPS:.1g} FLOP/s, every "
                f"{update_proj_gap} steps of {accumulation} micro-batches",
            ),
            Work(
                key="gemm.galore", kind="gemm", amount=4 * s.N * rank * through // accumulation,
                formula=f"4 * N * {rank} * {through}: each gradient projected, its update projected back, once a step",
            ),
        ),
    )  # fmt: skip


def _rest_temporaries(ctx: PlanContext) -> tuple[int, str]:
    """The widest moment of the step but for the matrices of the layers: the embeddings' gradient or update, or the sum
    over ranks."""
    s = ctx.sizes
    trained = trained_model(ctx.model, s.c)
    plain = 0 if ctx.config.optim == "adamw_torch_fused" else 2 * s.c * s.V * s.d
    return max(
        (plain, f"2 * {s.c} * {s.V * s.d}: square root and quotient of the embeddings' states"),
        exchange_temporaries(ctx, trained),
        embedding_temporaries(ctx, trained),
    )


def _matrix_temporaries(s: Sizes, matrices: list[tuple[int, int]], small: list[Projected]) -> tuple[int, str]:
    """The widest moment of the update of a matrix: its decomposition, or its projected update made whole."""
    if not matrices:
        return 0, "no matrix is projected"
    rows, columns = max(matrices, key=lambda matrix: matrix[0] * matrix[1])
    k, elements = min(rows, columns), rows * columns
    copies = 2 if s.is_half else 1
    return max(
        (
            4 * (copies * elements + k * rows + k * columns),
            f"4 * ({copies} * {elements} + {k} * ({rows} + {columns})): the largest gradient in float32, "
            "overwritten by its decomposition, and both sides' vectors",
        ),
        (
            s.c * (elements + 4 * max(each.states for each in small)),
            f"{s.c} * ({elements} + 4 * {max(each.states for each in small)}): an update projected back",
        ),
    )


def _svd_flops(matrix: tuple[int, int]) -> int:
    """Golub and Van Loan, Matrix Computations, 8.6: reduction by QR first."""
    k, n = sorted(matrix)
    return 4 * n * k * k + 22 * k**3
