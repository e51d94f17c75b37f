"""Pictures of the terminal interface for docs/images, from a live run: `python benchmarks/screenshots_tui.py`.

Without --run the demo is launched (SmolLM2-135M on real documents). PNG where rsvg-convert is installed, else SVG.
The Plan picture is of the preset given by --preset. tests/snapshots/test_tui_pictures.py calls the same functions.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import subprocess
import time
from pathlib import Path

from PIL import Image

from app.services.presets import load_preset
from app.tui.app import LongfitApp
from planner.types import FINAL_STATUSES, Preset

SIZES = {"80x24": (80, 24), "120x40": (120, 40)}
IMAGES = Path(__file__).parents[1] / "docs" / "images"


def save_picture(app: LongfitApp, path: Path) -> Path:
    """The screen as it stands. ``path`` has no suffix; returns what was written."""
    # viewers drop leading spaces of a text element, which shifts everything that follows
    svg = app.export_screenshot().replace("<text ", '<text xml:space="preserve" ')
    svg_path = path.with_suffix(".svg")
    svg_path.write_text(svg, encoding="utf-8")
    if shutil.which("rsvg-convert") is None:
        return svg_path
    png_path = path.with_suffix(".png")
    subprocess.run(["rsvg-convert", str(svg_path), "-o", str(png_path)], check=True)
    svg_path.unlink()
    # a screen has few colours: a palette makes the file five times smaller
    Image.open(png_path).convert("P", palette=Image.Palette.ADAPTIVE, colors=64).save(png_path, optimize=True)
    return png_path


async def picture_plan(preset: Preset, path: Path, *, size: tuple[int, int]) -> Path:
    """The Plan screen with a what-if: the preset pinned, its length doubled."""
    app = LongfitApp(preset=preset)
    async with app.run_test(size=size) as pilot:
        await pilot.press("w", "]")
        await pilot.pause(0.5)
        await app.workers.wait_for_complete()
        await pilot.pause(0.2)
        return save_picture(app, path)


async def picture_run(run_dir: Path, path: Path, *, size: tuple[int, int], from_step: int = 0) -> Path:
    """The Run screen once the run has reached ``from_step``, or has ended."""
    app = LongfitApp(run_dir=run_dir)
    async with app.run_test(size=size) as pilot:
        while True:
            await pilot.pause(0.6)
            state = app.screen.feed.state  # type: ignore[attr-defined]
            if state.step >= from_step or state.status in FINAL_STATUSES:
                break
        await app.workers.wait_for_complete()
        await pilot.pause(0.6)
        return save_picture(app, path)


async def picture_runs(run_dir: Path, path: Path, *, size: tuple[int, int]) -> Path:
    """The Runs screen with that run on the list."""
    app = LongfitApp(run_dir=run_dir)
    async with app.run_test(size=size) as pilot:
        await pilot.press("3")
        await pilot.pause(0.5)
        await app.workers.wait_for_complete()
        await pilot.pause(0.3)
        return save_picture(app, path)


async def picture_presets(preset: Preset, path: Path, *, size: tuple[int, int]) -> Path:
    """The Presets screen, every verdict there."""
    app = LongfitApp(preset=preset)
    async with app.run_test(size=size) as pilot:
        await pilot.press("4")
        await pilot.pause(0.5)
        await app.workers.wait_for_complete()
        await pilot.pause(0.3)
        return save_picture(app, path)


async def picture_data(preset: Preset, path: Path, *, size: tuple[int, int]) -> Path:
    """The Data screen with the report of the preset's data."""
    app = LongfitApp(preset=preset)
    async with app.run_test(size=size) as pilot:
        await pilot.press("5")
        await pilot.pause(0.5)
        await pilot.press("r")
        while app.screen.is_reading:  # type: ignore[attr-defined]
            await pilot.pause(0.2)
        await pilot.pause(0.3)
        return save_picture(app, path)


async def take_all(run_dir: Path, preset: Preset, folder: Path, *, from_step: int) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, size in SIZES.items():
        written.append(await picture_plan(preset, folder / f"tui-plan-{name}", size=size))
        written.append(await picture_presets(preset, folder / f"tui-presets-{name}", size=size))
        written.append(await picture_data(load_preset("demo-smollm2"), folder / f"tui-data-{name}", size=size))
        written.append(await picture_run(run_dir, folder / f"tui-run-{name}", size=size, from_step=from_step))
        written.append(await picture_runs(run_dir, folder / f"tui-runs-{name}", size=size))
    return written


def _demo_run() -> Path:
    from app.services.demo import launch_demo, plan_demo

    return launch_demo(plan_demo(print)).path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="a run directory; the demo is launched when left out")
    parser.add_argument("--preset", default="qwen2.5-7b-8k-1x24g")
    parser.add_argument("--from-step", type=int, default=4, help="wait until the run has come this far")
    parser.add_argument("--folder", type=Path, default=IMAGES)
    args = parser.parse_args()
    run_dir = args.run or _demo_run()
    start = time.perf_counter()
    for path in asyncio.run(take_all(run_dir, load_preset(args.preset), args.folder, from_step=args.from_step)):
        print(path)
    print(f"{time.perf_counter() - start:.0f} s, run {run_dir}")


if __name__ == "__main__":
    main()
