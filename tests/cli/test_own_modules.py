from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from patience import PATIENCE_S

from energon_grain.testing import make_captioning_dataset


def command(folder: Path, *arguments: str, answers: str = "") -> subprocess.CompletedProcess[str]:
    """The command as it is installed: Python itself does not look in the current folder then (-P)."""
    program = [sys.executable, "-P", "-c", "from energon_grain.cli import main; main()", *arguments]
    return subprocess.run(
        program, cwd=folder, input=answers, text=True, capture_output=True, timeout=PATIENCE_S, check=False
    )


def test_modules_of_the_current_folder_are_found_where_an_option_names_them(tmp_path: Path) -> None:
    make_captioning_dataset(tmp_path / "data", n=24, shards=4, prepared=False)
    (tmp_path / "my_types.py").write_text(
        "from dataclasses import dataclass\nfrom energon_grain import Sample\n\n\n"
        "@dataclass\nclass Photo(Sample):\n    image: object\n    caption: str\n"
    )
    fields = '{"image": "jpg", "caption": "txt"}'
    split = ("prepare", "data", "--non-interactive", "--split-ratio", "1")
    done = command(tmp_path, *split, "--sample-type", "my_types:Photo", "--field-map", fields)
    assert done.returncode == 0, done.stderr
    (tmp_path / "mixture.yaml").write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits: {train: {path: data}}\n"
    )
    for arguments in (
        ("lint", "data"),
        ("which", "data", "--step", "0", "--batch-size", "4"),
        ("info", "mixture.yaml"),
        ("bench", "data", "--seconds", "0.01", "--workers", "0"),
        ("lint", "mixture.yaml"),
    ):
        done = command(tmp_path, *arguments, "--trust-module", "my_types")
        assert done.returncode == 0, (arguments, done.stderr)

    refused = command(tmp_path, "which", "data", "--step", "0", "--batch-size", "4")
    assert (refused.returncode, "--trust-module my_types" in refused.stderr) == (1, True)
    missing = command(tmp_path, *split, "--force-overwrite", "--sample-type", "not_here:Photo", "--field-map", fields)
    assert (missing.returncode, "in the folder of not_here" in missing.stderr) == (2, True)

    missing = command(
        tmp_path, "which", "data", "--step", "0", "--batch-size", "4", "--task-encoder", "not_here:Encoder"
    )
    assert missing.returncode == 2
    assert "not_here cannot be imported" in missing.stderr
    assert "in the folder of not_here" in missing.stderr

    answers = "y\n1\ny\nnot_here:Photo\nmy_types:Photo\njpg\ntxt\n"
    asked = command(tmp_path, "prepare", "data", answers=answers)
    assert asked.returncode == 0, (asked.stdout, asked.stderr)
    assert "my_types" in (tmp_path / "data" / ".nv-meta" / "dataset.yaml").read_text()
