"""Megatron-Energon's own tests, run on this package through `as_megatron_energon`, from a checkout of it.

Needs the folder of a checkout in ENERGON_SUITE (revision bef8be2, whose package is 7.4.1 but for one line), and in
PYTHONPATH what its tests import besides: webdataset, torchvision, soundfile, av. Nothing of the tests is changed;
`energon_suite.json` says which fail, and why.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
SUITE = os.environ.get("ENERGON_SUITE")
EXPECTED: dict[str, dict[str, str]] = json.loads((HERE / "energon_suite.json").read_text())
TIME_LIMIT_S = 3600
pytestmark = [
    pytest.mark.energon,
    pytest.mark.skipif(SUITE is None, reason="ENERGON_SUITE is not set: no checkout of Megatron-Energon"),
]


def outcomes(file: str, report: Path) -> dict[str, str]:
    """Test to what it failed with, or nothing."""
    paths = [str(REPOSITORY), str(REPOSITORY / "adapters"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        # What a program of ours would say itself; and what the tests' own store takes its clients to know.
        "ENERGON_GRAIN_TRUSTED_MODULES": "tests,__main__,sample_loader.py",
        "ENERGON_GRAIN_ALLOW_PICKLE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "energon_grain_torch.as_megatron_energon",
        "-p",
        "no:cacheprovider",
        "-q",
    ]
    subprocess.run(
        [*command, f"--junitxml={report}", f"tests/{file}.py"],
        cwd=SUITE,
        env=environment,
        stdout=subprocess.DEVNULL,
        timeout=TIME_LIMIT_S,
        check=False,
    )
    found: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        if ".Test" in case.get("classname", ""):  # functions that only look like tests have no class
            failures = [child for child in case if child.tag in ("failure", "error")]
            found[str(case.get("name"))] = (failures[0].get("message") or "")[:500] if failures else ""
    return found


@pytest.mark.parametrize("file", EXPECTED)
def test_only_what_is_listed_fails(file: str, tmp_path: Path) -> None:
    found = outcomes(file, tmp_path / "report.xml")
    assert found, "no test ran"
    new = {name: why for name, why in found.items() if why and name not in EXPECTED[file]}
    mended = [name for name in EXPECTED[file] if not found.get(name)]
    assert not new, json.dumps(new, indent=1)
    assert not mended, f"these pass by now: {mended}"
