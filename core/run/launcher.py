"""torchrun on a lifeline: `python -P -m core.run.launcher <torchrun arguments>`, started by the supervisor.

torchrun itself, when its parent is killed, goes on and even starts the ranks it had not started yet. Here it ends with
the supervisor's socket, like every rank. What it knows of dead ranks (exit codes, signals) is told to the supervisor,
which is not the parent of the ranks and could not learn it otherwise.
"""

from __future__ import annotations

import signal
import sys

from core.run.channel import Channel


def main(arguments: list[str]) -> int:
    with Channel.connect() as channel:  # before torch, which takes seconds to import
        from torch.distributed.elastic.multiprocessing.api import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.run import main as torchrun

        try:
            torchrun(arguments)
        except ChildFailedError as error:
            for rank, failure in sorted(error.failures.items(), key=lambda item: item[1].timestamp):
                code = failure.exitcode
                channel.event(
                    "worker_exit", rank=rank, pid=failure.pid, code=code if code >= 0 else None,
                    signal=signal.Signals(-code).name if code < 0 else None,
                )  # fmt: skip
            return 1
        except SignalException as error:
            return 128 + error.sigval
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
