"""The rules of the tree, kept by tests: what imports what, what the wheel holds, what a plan may load."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("app", "core", "planner", "presets")


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_planning_every_preset_loads_neither_torch_nor_any_other_heavy_package() -> None:
    loaded = python(
        "import sys\n"
        "from app.services.presets import list_presets\n"
        "from app.services.planning import plan_preset\n"
        "plans = [plan_preset(p, alternatives=True).plan for p in list_presets()]\n"
        "assert len(plans) >= 6 and all(p.gpus for p in plans)\n"
        "print(*sorted({m.split('.')[0] for m in sys.modules}))"
    ).split()
    assert not {"torch", "transformers", "peft", "numpy", "pydantic", "textual", "gradio", "rich"} & set(loaded)


def test_the_planner_alone_needs_only_the_standard_library() -> None:
    loaded = python(
        "import sys, pkgutil, importlib, planner\n"
        "before = set(sys.stdlib_module_names)\n"
        "for m in pkgutil.walk_packages(planner.__path__, 'planner.'): importlib.import_module(m.name)\n"
        "print(*sorted({m.split('.')[0] for m in sys.modules} - before))"
    ).split()
    assert [name for name in loaded if name not in ("planner", "__main__") and not name.startswith("_")] == []


def test_the_registry_and_the_run_layer_import_no_torch() -> None:
    loaded = python(
        "import sys, pkgutil, importlib, core.optimizations, core.run\n"
        "for package in (core.optimizations, core.run):\n"
        "    for m in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        importlib.import_module(m.name)\n"
        "print(*sys.modules)"
    ).split()
    assert "torch" not in loaded
    assert "core.run.supervisor" in loaded


@pytest.mark.slow
def test_the_wheel_holds_exactly_the_tree(tmp_path: Path) -> None:
    source = tmp_path / "source"
    listing = ["git", "ls-files", *PACKAGES, "pyproject.toml", "README.md"]
    tracked = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in tracked:
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([*build, str(source)], check=True, capture_output=True, timeout=170)
    (wheel,) = tmp_path.glob("longfit-*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == {name for name in tracked if name.split("/")[0] in PACKAGES}


def test_no_file_has_grown_past_one_noun() -> None:
    long = {}
    for package in ("app", "core", "planner"):
        for path in (ROOT / package).rglob("*.py"):
            lines = len(path.read_text("utf-8").splitlines())
            if lines > 400 and "catalog" not in path.parts:
                long[str(path.relative_to(ROOT))] = lines
    assert long == {}
