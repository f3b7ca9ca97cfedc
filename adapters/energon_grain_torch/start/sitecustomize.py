# SPDX-License-Identifier: Apache-2.0
"""Run at the start of every Python with this folder in PYTHONPATH: `ENERGON_IMPL=grain` selects energon-grain.

Nothing is imported until a program imports `megatron.energon`. A `sitecustomize` of the system or the user, which this
one hides, also runs.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

HERE = os.path.dirname(os.path.realpath(__file__))


class _LazyFinder:
    """The first finder until a name of `megatron` is imported; then it installs energon-grain's finders."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] != "megatron":
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        __import__("energon_grain_torch.as_megatron_energon")

        for finder in list(sys.meta_path):
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                return spec
        return None


def _run_hidden() -> None:
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if os.path.realpath(entry) != HERE])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


if os.environ.get("ENERGON_IMPL") == "grain":
    sys.meta_path.insert(0, _LazyFinder())  # type: ignore[arg-type]
_run_hidden()
