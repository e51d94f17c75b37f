"""Doctor: names claimed by others and missing pieces are errors, optional pieces are notes, torch is never imported."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from app.cli import doctor as doctor_cli
from app.services import doctor, extras
from app.services.doctor import Check, TorchBuild, check_driver, check_own_packages, check_python, check_torch
from app.services.gpu_status import DriverStatus, GpuStatus
from planner.errors import EnvironmentProblem

HOME = Path(doctor.__file__).resolve().parents[2]
NO_DRIVER = DriverStatus(problem="no NVIDIA driver is installed", driver_version=None, gpus=())


def driver(*problems: str) -> DriverStatus:
    gpus = tuple(
        GpuStatus(index=index, name="NVIDIA A10", total_bytes=1, free_bytes=1, compute_capability=(8, 6), utilization=0,
                  num_processes=0, catalog_name="A10", problem=problem)
        for index, problem in enumerate(problems)
    )  # fmt: skip
    return DriverStatus(problem="", driver_version="590", gpus=gpus)


def test_this_installation_is_sound() -> None:
    errors = [check for check in doctor.run_checks() if check.level == "error"]
    assert errors == []


def test_an_old_python_is_an_error() -> None:
    assert check_python((3, 10, 4)).level == "error"
    assert check_python((3, 11, 0)).level == "ok"


def test_packages_from_elsewhere_fail_loudly() -> None:
    folders = {"app": str(HOME / "app"), "core": "/usr/lib/python3/dist-packages/core", "planner": ""}
    checks = check_own_packages(folders, {})
    assert [(check.name, check.level) for check in checks] == [("package core", "error"), ("package planner", "error")]
    assert "/usr/lib/python3/dist-packages/core" in checks[0].words
    assert "nowhere" in checks[1].words


def test_a_second_distribution_that_claims_a_name_fails_loudly() -> None:
    (check,) = check_own_packages({"app": str(HOME / "app")}, {"app": ["longfit", "some-web-app"]})
    assert check.level == "error"
    assert "some-web-app" in check.words
    assert "some-web-app" in check.fix


def test_a_foreign_package_on_the_path_is_found_by_the_real_command(tmp_path: Path) -> None:
    """`presets` shadowed by a folder that stands first: doctor runs, says so and ends with 5."""
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets" / "__init__.py").write_text("")
    code = (
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(HOME)!r}]\n"
        "from app.cli.main import main; sys.exit(main(['doctor']))"
    )
    result = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 5, result.stderr
    assert f"imported from {tmp_path}/presets" in result.stdout


def test_torch_is_judged_against_the_driver() -> None:
    cpu, cuda = TorchBuild(version="2.13.0+cpu", cuda=None), TorchBuild(version="2.13.0", cuda="13.0")
    assert check_torch(None, NO_DRIVER).level == "error"
    assert check_torch(cpu, NO_DRIVER).level == "ok"
    assert check_torch(cuda, driver("")).level == "ok"
    wrong = check_torch(cpu, driver(""))
    assert wrong.level == "error"
    assert "build for CPU" in wrong.words


def test_no_driver_is_a_note_and_a_broken_one_a_warning() -> None:
    assert check_driver(NO_DRIVER).level == "note"
    broken = DriverStatus(problem="NVIDIA driver and library differ: reboot", driver_version=None, gpus=())
    assert check_driver(broken).level == "warning"
    lost = check_driver(driver("", "lost"))
    assert lost.level == "warning"
    assert "GPU 1: lost" in lost.words


def test_torch_build_is_read_without_importing_torch() -> None:
    code = (
        "import sys; from app.services.doctor import run_checks, torch_build\n"
        "run_checks(); assert torch_build(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=HOME, check=False).returncode == 0


def test_json_and_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    checks = (Check(name="a", level="ok", words="fine"), Check(name="b", level="error", words="gone", fix="get it"))
    monkeypatch.setattr(doctor_cli, "run_checks", lambda: checks)
    assert doctor_cli.run(argparse.Namespace(json=True)) == EnvironmentProblem.exit_code == 5
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is False
    assert answer["checks"][1] == {"name": "b", "level": "error", "words": "gone", "fix": "get it"}
    assert doctor_cli.run(argparse.Namespace(json=False)) == 5
    captured = capsys.readouterr()
    assert "ERROR    b: gone" in captured.out
    assert "fix: get it" in captured.out
    assert "1 error(s)" in captured.err


def test_extras_are_read_from_our_own_metadata() -> None:
    (gradio,) = extras.requirements("web", find_version=lambda name: "6.26.0")
    assert (gradio.package, gradio.is_satisfied) == ("gradio", True)
    too_new = extras.requirements("web", find_version=lambda name: "6.31.0")
    assert not too_new[0].is_satisfied
    names = {status.package for status in extras.requirements("gpu")}
    assert {"liger-kernel", "bitsandbytes"} <= names  # an extra made of extras
    assert "gradio" not in {status.package for status in extras.requirements()}


def test_an_uninstalled_source_tree_is_judged_by_its_pyproject(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = (extras.requirements(), extras.requirements("gpu"), set(extras.extra_names()))

    def missing(name: str) -> None:
        raise extras.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(extras.metadata, "metadata", missing)
    assert {status.package for status in extras.requirements()} == {status.package for status in installed[0]}
    assert {status.package for status in extras.requirements("gpu")} == {status.package for status in installed[1]}
    assert set(extras.extra_names()) == installed[2]


def test_a_missing_requirement_is_an_error_with_its_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = extras.RequirementStatus(package="peft", wanted=">=0.21", installed=None, is_satisfied=False)
    monkeypatch.setattr(doctor, "requirements", lambda: (missing,))
    (check,) = doctor.check_requirements()
    assert check.level == "error"
    assert check.fix == 'pip install "peft>=0.21"'


def test_a_missing_extra_is_one_problem_with_the_pip_line() -> None:
    with pytest.raises(EnvironmentProblem, match=r"needs no_such_module, which is not installed.*longfit\[web\]"):
        extras.require_extra("web", "no_such_module", purpose="The page")
