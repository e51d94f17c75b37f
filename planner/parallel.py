"""Degrees of sequence parallelism: which are legal, which are chosen, and how long a padded row is.

Called when a preset is resolved, by the checks of `ulysses` and `ring`, and by the search.
"""

from __future__ import annotations

from collections.abc import Iterable

from planner.errors import ConfigError
from planner.types import Issue, ModelSpec, ParallelDegrees


def is_legal_ulysses_degree(num_heads: int, num_kv_heads: int, degree: int) -> bool:
    """Whole query heads for each rank, and whole KV heads or whole copies of them."""
    return (
        degree >= 1
        and num_heads % degree == 0
        and (num_kv_heads % degree == 0 or degree % num_kv_heads == 0)
    )  # fmt: skip


def legal_ulysses_degrees(model: ModelSpec, up_to: int) -> tuple[int, ...]:
    heads, kv_heads = model.num_attention_heads, model.num_kv_heads
    return tuple(degree for degree in range(1, up_to + 1) if is_legal_ulysses_degree(heads, kv_heads, degree))


def row_multiple(degrees: ParallelDegrees) -> int:
    """A row is padded to a multiple of this: ranks of Ulysses take equal parts, a rank of a ring takes two chunks."""
    return degrees.ulysses if degrees.ring == 1 else 2 * degrees.ring * degrees.ulysses


def padded_length(length: int, degrees: ParallelDegrees) -> int:
    """Tokens of a row after padding by us. Padding gives no loss and is not attended to."""
    multiple = row_multiple(degrees)
    return -(-length // multiple) * multiple


def choose_degrees(
    model: ModelSpec,
    world: int,
    *,
    sequence_parallel: int | None = None,
    ulysses: int | None = None,
    ring: int | None = None,
    gpus_per_node: int,
) -> ParallelDegrees:
    """Data x ring x Ulysses for ``world`` ranks.

    ``ulysses`` and ``ring`` are taken as they are asked for. ``sequence_parallel`` alone lets us choose: Ulysses takes
    the largest legal divisor within one node (the fast links), ring takes the rest.

    Raises:
        ConfigError: a degree is below 1, is not legal for the heads, does not divide the world or exceeds it, or a
            ring is needed and the model has a sliding window.
    """
    for key, degree in (("sequence_parallel", sequence_parallel), ("ulysses", ulysses), ("ring", ring)):
        if degree is not None and degree < 1:
            raise ConfigError(f"{key} is {degree}.", why="A degree counts ranks.", fix=f"Use {key}: 1 or more.")
    _refuse_more_than_world(world, sequence_parallel, ulysses, ring)
    if ulysses is not None:
        _refuse_illegal_ulysses(model, world, ulysses)
    if sequence_parallel is None:
        chosen_ulysses, chosen_ring = ulysses or 1, ring or 1
    else:
        chosen_ulysses, chosen_ring = _split(model, world, sequence_parallel, ulysses, ring, gpus_per_node)
    sequence = chosen_ulysses * chosen_ring
    if world % sequence:
        degrees = [n for n in range(1, world + 1) if world % n == 0]
        nearest = min(degrees, key=lambda degree: (abs(degree - sequence), degree))
        numbers = sorted({sequence * max(1, world // sequence), sequence * (world // sequence + 1)})
        raise ConfigError(
            f"A sequence-parallel degree of {sequence} does not divide {world} GPUs.",
            why=f"{world} / {sequence} replicas of the data would not be a whole number.",
            fix=f"Use degree {nearest}, the nearest of {_join(degrees)}; or {' or '.join(map(str, numbers))} GPUs.",
        )
    if chosen_ring > 1:
        for issue in check_ring_model(model):
            raise ConfigError(issue.what, why=issue.why, fix=issue.fix)
    return ParallelDegrees(data=world // sequence, ring=chosen_ring, ulysses=chosen_ulysses)


def check_degree(name: str, degree: int, resolved: int, num_gpus: int) -> tuple[Issue, ...]:
    """The knob of `ulysses` or `ring` against the resolved degrees and the hardware."""
    if degree > num_gpus:
        return (
            Issue(
                code=f"{name}-degree-gpus", severity="error",
                what=f"{name} degree {degree} exceeds the {num_gpus} GPU(s) of this plan.",
                why="Each rank of the group is a GPU of its own.",
                fix=f"Use {name}: {num_gpus} or less, or fake_parallel: {degree} on one GPU.",
                suggestion=((name, None),),
            ),
        )  # fmt: skip
    if degree != resolved:
        return (
            Issue(
                code=f"{name}-degree-resolved", severity="error",
                what=f"{name} degree {degree} differs from the resolved degree {resolved}.",
                why="The mesh is built from the resolved degrees.", fix=f"Set {name}: {resolved}.",
                suggestion=((name, resolved),),
            ),
        )  # fmt: skip
    return ()


def check_ring_model(model: ModelSpec, max_length: int = 0) -> tuple[Issue, ...]:
    """A window that no row can outgrow is none."""
    if model.sliding_window is None or model.sliding_window >= max(max_length, model.max_position_embeddings):
        return ()
    return (
        Issue(
            code="ring-sliding-window", severity="error",
            what=f"Ring attention cannot run {model.name}.",
            why=f"Its layers attend to a sliding window of {model.sliding_window} tokens; a ring visits whole blocks "
            "and would attend beyond it.",
            fix="Use ulysses with a legal degree, or a model without sliding window.",
            suggestion=(("ring", None),),
        ),
    )  # fmt: skip


def _split(
    model: ModelSpec, world: int, sequence: int, ulysses: int | None, ring: int | None, gpus_per_node: int
) -> tuple[int, int]:
    """Ulysses and ring degrees whose product is ``sequence``."""
    if ulysses is not None or ring is not None:
        given = (ulysses or 1) * (ring or 1)
        both = ulysses is not None and ring is not None
        if sequence % given or (both and given != sequence):
            raise ConfigError(
                f"sequence_parallel {sequence} is not ulysses {ulysses or 'x'} x ring {ring or 'x'}.",
                why="The sequence-parallel degree is the product of both.",
                fix="Give sequence_parallel alone, or ulysses and ring alone.",
            )
        rest = sequence // given
        chosen_ulysses, chosen_ring = (ulysses, ring or rest) if ulysses is not None else (rest, ring or 1)
        if ulysses is None:
            _refuse_illegal_ulysses(model, world, chosen_ulysses)
        return chosen_ulysses, chosen_ring
    several_nodes = world > gpus_per_node
    chosen = max(
        degree
        for degree in legal_ulysses_degrees(model, min(sequence, gpus_per_node))
        # on several nodes a group of neighbours must not reach over the edge of one
        if sequence % degree == 0 and not (several_nodes and gpus_per_node % degree)
    )
    return chosen, sequence // chosen


def _refuse_more_than_world(world: int, sequence_parallel: int | None, ulysses: int | None, ring: int | None) -> None:
    asked = max(sequence_parallel or 1, (ulysses or 1) * (ring or 1))
    if asked <= world:
        return
    if world == 1:
        raise ConfigError(
            f"A sequence-parallel degree of {asked} needs {asked} GPUs, and there is 1.",
            why="With one GPU there is nothing to spread a row over.",
            fix=f"Use fake_parallel: {asked} (head groups on one GPU), or set the degree to 1.",
        )
    raise ConfigError(
        f"A sequence-parallel degree of {asked} is larger than the {world} GPUs.",
        why="Each rank of the group is a GPU of its own.",
        fix=f"Use one of {_join(n for n in range(1, world + 1) if world % n == 0)}.",
    )


def _refuse_illegal_ulysses(model: ModelSpec, world: int, degree: int) -> None:
    heads, kv_heads = model.num_attention_heads, model.num_kv_heads
    if is_legal_ulysses_degree(heads, kv_heads, degree):
        return
    legal = [n for n in legal_ulysses_degrees(model, world) if world % n == 0]
    if heads % degree:
        why = f"{degree} does not divide the {heads} query heads."
    else:
        why = f"{degree} ranks can neither share the {kv_heads} KV heads evenly nor hold whole copies of them."
    raise ConfigError(
        f"Ulysses degree {degree} is not possible for {model.name}.",
        why=why,
        fix=f"Legal on {world} GPUs: {_join(legal)}; sequence_parallel: {degree} adds ring where heads run out.",
    )


def _join(numbers: Iterable[int]) -> str:
    return ", ".join(str(number) for number in numbers)
