"""A program that fails on one rank. It imports nothing, so that a fresh pool serves it quickly."""


def fail_on_rank(rank: int, world: int, failing: int) -> int:
    if rank == failing:
        raise ValueError(f"rank {rank} was told to fail")
    return rank
