"""What a type checker makes of a user's program: batches have a type from the task encoder to the loop."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from patience import PATIENCE_S

import energon_grain

PROGRAM = Path(__file__).with_name("train.py")
FOLDERS = [str(Path(energon_grain.__file__).parents[1] / folder) for folder in ("", "adapters")]


def test_batches_are_typed_from_the_task_encoder_to_the_loop(tmp_path: Path) -> None:
    expected: dict[tuple[str, int], str] = {}
    for package in ("energon_grain", "energon_grain_torch"):
        source = PROGRAM.read_text().replace("PACKAGE", package)
        if package == "energon_grain_torch":  # what its entry points return is one of PyTorch's datasets, too
            source = source.replace("SavableDataset", "StreamDataset")
        (tmp_path / f"{package}_program.py").write_text(source)
        for number, line in enumerate(source.splitlines()):
            if match := re.search(r'# error: "(\w+)"', line):
                expected[f"{package}_program", number] = match[1]
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": FOLDERS, "typeCheckingMode": "standard"}))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    complaints = {(Path(each["file"]).stem, each["range"]["start"]["line"]): each["message"] for each in found}
    assert complaints.keys() == expected.keys(), found
    for place, name in expected.items():
        assert name in complaints[place]
