"""Draws the two pictures of the command line: a terminal, and the page of `preview` in Chromium.

    python tests/draw_screens.py terminal             writes docs/images/terminal.svg
    python tests/draw_screens.py preview PHOTOGRAPHS  writes docs/images/preview.jpg

The terminal shows the real output of commands; `tests/docs` runs them again and compares the texts. PHOTOGRAPHS is the
folder `skimage/data` of scikit-image, which the environment of `make demo` has; the five pictures used are in the
public domain. The page needs PyAV, Playwright and Chromium.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import wave
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console
from rich.text import Text

from energon_grain.testing import make_captioning_dataset, write_tars

REPOSITORY = Path(__file__).parents[1]
TERMINAL, PAGE = (REPOSITORY / "docs/images" / name for name in ("terminal.svg", "preview.jpg"))
COLUMNS = 84
COMMANDS = (
    "energon-grain prepare photos --non-interactive --split-ratio 8,1,1 \\\n"
    '    --sample-type CaptioningSample --field-map \'{"image": "jpg", "caption": "txt"}\'',
    "energon-grain info mixture.yaml",
    "energon-grain which mixture.yaml --step 81234 --batch-size 4",
)
MIXTURE = """\
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    blend:
      - {path: photos, weight: 3}
      - {path: drawings, weight: 1, subflavors: {style: ink}}
"""
# As rich's own, without the fonts that it loads from the network.
_SVG = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: system-ui, sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g></g></svg>
"""


def terminal_lines() -> list[tuple[str, str]]:
    """The commands, each with what it prints."""
    with tempfile.TemporaryDirectory() as folder:
        make_captioning_dataset(Path(folder, "photos"), n=1000, shards=10, prepared=False)
        make_captioning_dataset(Path(folder, "drawings"), n=200, shards=4, seed=1)
        Path(folder, "mixture.yaml").write_text(MIXTURE)
        command = Path(folder, "bin", "energon-grain")
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m energon_grain.cli "$@"\n')
        command.chmod(0o755)
        environment = os.environ | {
            "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "COLUMNS": str(COLUMNS),
        }
        return [(each, _output(each, Path(folder), environment)) for each in COMMANDS]


def _output(command: str, folder: Path, environment: dict[str, str]) -> str:
    run = subprocess.run(
        ["bash", "-euc", command], cwd=folder, env=environment, check=True, capture_output=True, text=True
    )
    text = "\n".join(line.rstrip() for line in (run.stderr + run.stdout).strip("\n").splitlines())
    return re.sub(r", in [\d.]+ s\.", ", in 0.2 s.", text)


def draw_terminal() -> str:
    """The picture of the terminal, as SVG."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for command, output in terminal_lines():
        console.print(Text("$ ", "bold green") + Text(command, "bold"), soft_wrap=True)
        console.print(Text(output + "\n"), soft_wrap=True)
    return console.export_svg(title="energon-grain", code_format=_SVG, unique_id="terminal")


def draw_page(photographs: Path) -> None:
    """Write the screenshot of the page."""
    import energon_grain

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_tars(root / "photos", _photos(photographs))
        write_tars(root / "speech", ({"__key__": f"clip_{i:04d}", "wav": _sound(i)} for i in range(2)))
        write_tars(root / "clips", [{"__key__": "take_00", "mp4": _film(photographs / "rocket.jpg")}])
        blend = [{"path": name, "weight": weight} for name, weight in (("photos", 6), ("speech", 3), ("clips", 1))]
        mixture = {
            "__module__": "megatron.energon",
            "__class__": "MetadatasetV2",
            "splits": {"train": {"blend": blend}},
        }
        (root / "train.yaml").write_text(json.dumps(mixture))
        energon_grain.preview(root / "train.yaml", samples=8).save(root / "page.html")
        _photograph(root / "page.html")


def _photos(folder: Path) -> list[dict[str, Any]]:
    captions = {
        "astronaut.png": "An astronaut in an orange suit, a model of the shuttle behind her.",
        "chelsea.png": "A cat that looks past the camera.",
        "coffee.png": "A cup of espresso on a wooden table.",
        "rocket.jpg": "A rocket on its pad before dawn.",
        "hubble_deep_field.jpg": "Thousands of galaxies in a small patch of sky.",
    }
    samples = list[dict[str, Any]]()
    for number, (name, caption) in enumerate(captions.items()):
        stream = io.BytesIO()
        picture = Image.open(folder / name).convert("RGB")
        picture.thumbnail((640, 512))
        picture.save(stream, "JPEG", quality=88)
        score = {"score": round(0.71 + 0.05 * number, 2), "nsfw": False}
        samples.append({"__key__": f"{number:06d}", "jpg": stream.getvalue(), "txt": caption, "json": score})
    return samples


def _sound(seed: int, rate: int = 16_000, seconds: float = 3.0) -> bytes:
    rng = np.random.default_rng(seed)
    at = np.arange(int(rate * seconds)) / rate
    loudness = np.interp(at, np.linspace(0, seconds, 25), rng.uniform(0.1, 1, 25))
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes((20_000 * loudness * np.sin(2 * np.pi * 220 * at)).astype("<i2"))
    return stream.getvalue()


def _film(photograph: Path, frames: int = 48) -> bytes:
    import av

    picture, stream = Image.open(photograph).convert("RGB"), io.BytesIO()
    with av.open(stream, "w", format="mp4") as file:
        track: Any = file.add_stream("libx264", rate=24)
        track.width, track.height, track.pix_fmt = 320, 208, "yuv420p"
        for number in range(frames):
            left = 3 * number
            frame = picture.crop((left, 40, left + 440, 40 + 286)).resize((320, 208))
            file.mux(track.encode(av.VideoFrame.from_image(frame)))
        file.mux(track.encode())
    return stream.getvalue()


def _photograph(page: Path, width: int = 1240, height: int = 1010) -> None:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        opened = browser.new_page(viewport={"width": width, "height": height}, device_scale_factor=0.75)
        opened.goto(page.as_uri())
        opened.evaluate("Promise.all([...document.images].map(each => (each.loading = 'eager', each.decode())))")
        opened.screenshot(path=PAGE, type="jpeg", quality=85)
        browser.close()


if __name__ == "__main__":
    if sys.argv[1] == "terminal":
        TERMINAL.write_text(draw_terminal(), encoding="utf-8")
    else:
        draw_page(Path(sys.argv[2]))
