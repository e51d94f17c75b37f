from __future__ import annotations

import sys
from pathlib import Path

from core.run.command import DEFAULT_TARGET, worker_command
from tests.core.run.run_cases import make_config

RUN = Path("/runs/a")


def command(world=1, *, device="cpu", base=None, cores=8, model="org/tiny"):
    config = make_config(world=world, model=model)
    return worker_command(config, RUN, device=device, base=base or {}, num_cores=cores)


def test_one_rank_needs_no_torchrun():
    found = command()
    assert found.argv == (sys.executable, "-P", "-u", *DEFAULT_TARGET, "/runs/a")
    assert not found.has_launcher
    assert found.environment["RANK"] == "0"
    assert found.environment["WORLD_SIZE"] == "1"
    assert found.directory == RUN


def test_several_ranks_are_started_by_torchrun_on_a_free_port():
    found = command(2)
    assert found.argv[:4] == (sys.executable, "-P", "-m", "core.run.launcher")
    assert "--standalone" in found.argv
    assert found.argv[found.argv.index("--nproc-per-node") + 1] == "2"
    assert found.argv[-3:] == (*DEFAULT_TARGET, "/runs/a")
    assert found.has_launcher
    assert "RANK" not in found.environment


def test_cores_are_shared_out_and_a_wish_of_the_user_is_kept():
    assert command(2, cores=8).environment["OMP_NUM_THREADS"] == "4"
    assert command(4, cores=2).environment["OMP_NUM_THREADS"] == "1"
    assert command(2, base={"OMP_NUM_THREADS": "3"}).environment["OMP_NUM_THREADS"] == "3"


def test_a_cpu_run_sees_no_gpu_and_a_gpu_run_grows_segments():
    cpu = command(base={"CUDA_VISIBLE_DEVICES": "0"}).environment
    assert cpu["CUDA_VISIBLE_DEVICES"] == ""
    assert "MALLOC_MMAP_THRESHOLD_" in cpu
    gpu = command(device="cuda", base={"CUDA_VISIBLE_DEVICES": "1"}).environment
    assert gpu["CUDA_VISIBLE_DEVICES"] == "1"
    assert gpu["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert "MALLOC_MMAP_THRESHOLD_" not in gpu


def test_a_model_folder_keeps_the_hub_out(tmp_path):
    assert command(model=str(tmp_path)).environment["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in command().environment


def test_children_are_isolated_from_the_working_folder_and_load_this_code():
    environment = command(base={"PYTHONPATH": "/other"}).environment
    assert environment["PYTHONSAFEPATH"] == "1"
    root = str(Path(__file__).resolve().parents[3])
    assert environment["PYTHONPATH"].split(":") in ([root, "/other"], ["/other"])


def test_ranks_of_another_job_do_not_leak_in():
    environment = command(2, base={"RANK": "5", "WORLD_SIZE": "9", "MASTER_ADDR": "elsewhere"}).environment
    assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} & environment.keys()
