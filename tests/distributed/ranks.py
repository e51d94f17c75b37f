"""A pool of long-lived gloo processes, so that a distributed test costs milliseconds and not four imports of torch.

``RankPool.run(program, world, *args)`` calls ``program(rank, world, *args)`` on ranks 0..world-1, each inside a fresh
default process group, and returns what each rank returned. A rank that raises, dies or hangs (60 s) fails the call
with the tracebacks of all ranks, and the pool starts anew for the next test. Programs live in importable modules
(tests/distributed/rank_programs.py), since pickle sends them by name.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS = 60.0


class RankPool:
    def __init__(self, size: int) -> None:
        self.size = size
        self._context = multiprocessing.get_context("spawn")
        self._workers: list[tuple[Any, Connection]] = []

    def run(self, program: Callable[..., Any], world: int, *args: Any, timeout: float = TIMEOUT_SECONDS) -> list[Any]:
        assert world <= self.size, f"the pool has {self.size} processes, {world} were asked for"
        self._start()
        with tempfile.TemporaryDirectory() as directory:
            job = pickle.dumps((program, world, args, str(Path(directory) / "store")))
            for _, connection in self._workers[:world]:
                connection.send_bytes(job)
            deadline = time.monotonic() + timeout
            answers = [self._answer(rank, deadline) for rank in range(world)]
        failures = [f"rank {rank}:\n{text}" for rank, (ok, text) in enumerate(answers) if not ok]
        if failures:
            self.close()
            raise AssertionError(f"{len(failures)} of {world} ranks failed\n\n" + "\n".join(failures))
        return [value for _, value in answers]

    def close(self) -> None:
        for process, connection in self._workers:
            connection.close()
            process.terminate()
        for process, _ in self._workers:
            process.join(5)
            if process.is_alive():
                process.kill()
        self._workers = []

    def _start(self) -> None:
        for _ in range(self.size - len(self._workers)):
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(theirs, len(self._workers)), daemon=True)
            process.start()
            theirs.close()
            self._workers.append((process, ours))

    def _answer(self, rank: int, deadline: float) -> tuple[bool, Any]:
        process, connection = self._workers[rank]
        try:
            if not connection.poll(max(deadline - time.monotonic(), 0)):
                return False, "no answer in time: it waits for a peer, or for itself"
            return pickle.loads(connection.recv_bytes())
        except EOFError:
            process.join(5)
            return False, f"the process died with exit code {process.exitcode}"


def _serve(connection: Connection, rank: int) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # host names do not always resolve where tests run
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    while True:
        try:
            job = connection.recv_bytes()
        except EOFError:
            return
        try:
            program, world, args, store_path = pickle.loads(job)
            store = dist.FileStore(store_path, world)
            dist.init_process_group(
                "gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=TIMEOUT_SECONDS)
            )
            answer = (True, program(rank, world, *args))
        except BaseException:
            answer = (False, traceback.format_exc())
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
        connection.send_bytes(pickle.dumps(answer))
