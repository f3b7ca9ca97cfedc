"""A program with JAX that chose no decoder is told once what its images are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from patience import PATIENCE_S

PROGRAM = """
import logging, sys
from energon_grain import DefaultTaskEncoder, SampleDecoder, get_savable_loader, get_val_dataset
from energon_grain.testing import make_captioning_dataset

lines = []
handler = logging.Handler()
handler.emit = lambda record: lines.append(record.getMessage())
logging.getLogger("energon_grain").addHandler(handler)
make_captioning_dataset("captions", n=16)


def hints(decoder=None):
    encoder = DefaultTaskEncoder()
    if decoder is not None:
        encoder.decoder = decoder
    with get_savable_loader(get_val_dataset("captions", batch_size=1, task_encoder=encoder)) as loader:
        next(loader)
    found = [line for line in lines if "image_decode='rgb8'" in line]
    lines.clear()
    return len(found)


import jax

print(hints(SampleDecoder(image_decode="torchrgb")), hints(SampleDecoder(image_decode="rgb8")), hints(), hints())
"""


def test_the_default_layout_is_hinted_at_once(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, ["0", "0", "1", "0"]), done.stderr
