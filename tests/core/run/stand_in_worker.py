"""A worker without torch for tests of the supervisor: same channel, same directory, steps that take milliseconds.

Run as `python -P stand_in_worker.py RUN_DIR`. data.json says how it behaves:
steps, step_seconds, save_steps, fail_at, fail_with (once this file is there), exit_code, vanish_at, ignore_sigterm,
spawn_child, nonfinite_at, slow_save.
A checkpoint is a file checkpoints/step-N; the loss is a function of the step, so that curves can be compared.
"""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from core.run.channel import Channel


def main() -> int:
    run_dir = Path(sys.argv[1])
    ways = json.loads((run_dir / "data.json").read_text())
    with Channel.connect() as channel:
        rank = int(os.environ.get("RANK", "0"))
        if ways.get("ignore_sigterm"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if ways.get("spawn_child"):
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        sys.stdout.write(f"rank {rank} of {os.environ['WORLD_SIZE']} is here, pid {os.getpid()}\n")
        return train(channel, rank, run_dir / "checkpoints", ways)


def train(channel, rank: int, checkpoints: Path, ways: dict) -> int:
    is_main = rank == 0
    total = ways.get("steps", 5)
    saved = [int(path.name.partition("-")[2]) for path in checkpoints.glob("step-*")]
    step = max(saved, default=0)
    if is_main:
        channel.event("phase", name="load")
        if saved:
            channel.event("resumed", step=step, exact=True, reason="")
        channel.event("running", total_steps=total, world=int(os.environ["WORLD_SIZE"]))
    while step < total and channel.stop_requested is None:
        time.sleep(ways.get("step_seconds", 0.0))
        step += 1
        if step == ways.get("vanish_at"):
            os.kill(os.getpid(), signal.SIGKILL)
        if step == ways.get("fail_at") or os.path.exists(ways.get("fail_with", "")):
            error = MemoryError(f"no memory left for step {step}")
            if "memory_ended" in ways:
                channel.failed(error, memory=ways["memory_ended"])
            raise error
        if step == ways.get("exit_at"):
            os._exit(ways["exit_code"])
        if is_main:
            loss = math.nan if step == ways.get("nonfinite_at") else 1.0 / step
            channel.metric({"step": step, "time": time.time(), "loss": loss})
            channel.memory({"step": step, "rank": rank, "instant": "backward", "allocated_bytes": 1000 * step})
            channel.event("progress", step=step)
        if is_main and ways.get("save_steps") and step % ways["save_steps"] == 0:
            save(channel, checkpoints, step)
    if is_main and channel.stop_requested == "save":
        time.sleep(ways.get("slow_save", 0.0))
        save(channel, checkpoints, step)
    return 0


def save(channel, checkpoints: Path, step: int) -> None:
    assert channel.sync()
    (checkpoints / f"step-{step}").touch()
    channel.event("checkpoint", step=step, path=f"checkpoints/step-{step}")


if __name__ == "__main__":
    sys.exit(main())
