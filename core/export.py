"""A folder for other tools, written whole or not at all: an adapter, or a checkpoint that is a whole model. Torch-free.

    OUT's parent/.tmp-OUT-1a2b/    filled and fsynced      a kill here leaves a hidden folder
    OUT/                           the same, renamed       never half-written, and nothing is ever overwritten

Called by app/services/export.py; base and adapter become one model in core/merge.py.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from core.run.atomic import fsync_directory
from core.trained import ADAPTER_CONFIG, ADAPTER_FILE, TOKENIZER_FILES, is_adapter
from planner.errors import ConfigError, EnvironmentProblem

_OF_AN_ADAPTER = (ADAPTER_CONFIG, ADAPTER_FILE, *TOKENIZER_FILES)
_OF_A_MODEL = ("config.json", "generation_config.json", "model.safetensors.index.json", *TOKENIZER_FILES)


def write_folder(out: Path, fill: Callable[[Path], None], *, needed_bytes: int) -> None:
    """Let ``fill`` write the files into a hidden folder beside ``out``, and give it that name once they are on disk.

    Raises:
        ConfigError: there is something at ``out``.
        EnvironmentProblem: fewer than ``needed_bytes`` are free there, or the disk refuses.
        Every other error of ``fill`` passes through; nothing half-written stays.
    """
    refuse_existing(out)
    temporary = out.with_name(f".tmp-{out.name}-{secrets.token_hex(2)}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        require_space(out.parent, needed_bytes)
        temporary.mkdir()
        fill(temporary)
        _fsync_files(temporary)
        refuse_existing(out)  # it took minutes; an empty folder would be replaced by the rename
        os.rename(temporary, out)
        fsync_directory(out.parent)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise EnvironmentProblem(
            f"{out} could not be written.", why=f"{error.strerror or error}.",
            fix="Give another folder: --out FOLDER, or free space there.",
        ) from error  # fmt: skip
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def refuse_existing(out: Path) -> None:
    """Raises: ConfigError when there is a file or folder of this name."""
    if os.path.lexists(out):
        raise ConfigError(
            f"{out} is there already.", why="An export never overwrites.", fix="Give another folder: --out FOLDER."
        )


def require_space(folder: Path, needed_bytes: int) -> None:
    """Raises: EnvironmentProblem when fewer are free on the disk of ``folder``."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise EnvironmentProblem(
            f"There is no room for the export on the disk of {folder}.",
            why=f"It takes {needed_bytes:,} bytes, and {free:,} are free there.",
            fix="Free space on that disk, or give a folder on another one: --out FOLDER.",
        )


def exported_files(checkpoint: Path) -> list[Path]:
    """The files of a checkpoint that other tools read: not the optimizer, the random states and the manifest."""
    if is_adapter(checkpoint):
        return _present(checkpoint, _OF_AN_ADAPTER)
    return [*_present(checkpoint, _OF_A_MODEL), *sorted(checkpoint.glob("model*.safetensors"))]


def copy_files(files: Iterable[Path], folder: Path) -> None:
    for file in files:
        shutil.copyfile(file, folder / file.name)


def size_of(files: Iterable[Path]) -> int:
    return sum(file.stat().st_size for file in files)


def _present(folder: Path, names: Iterable[str]) -> list[Path]:
    return [folder / name for name in names if (folder / name).is_file()]


def _fsync_files(folder: Path) -> None:
    for file in folder.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    fsync_directory(folder)
