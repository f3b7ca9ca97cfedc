from __future__ import annotations

import sys
from pathlib import Path

import pytest

from energon_grain.samples.import_hook import after_import


def test_action_runs_once_after_the_whole_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "watched_package.py").write_text("import json\nvalue = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    finders = list(sys.meta_path)
    seen: list[int] = []
    after_import("watched_package", lambda: seen.append(sys.modules["watched_package"].value))
    assert seen == []
    import watched_package  # pyright: ignore[reportMissingImports]

    assert seen == [1]
    assert sys.meta_path == finders
    assert watched_package.__spec__.origin == str(tmp_path / "watched_package.py")
    after_import("watched_package", lambda: seen.append(2))
    assert seen == [1, 2]


def test_a_package_that_does_not_exist_stays_missing():
    finders = list(sys.meta_path)
    after_import("no_such_package_at_all", lambda: None)
    with pytest.raises(ModuleNotFoundError):
        import no_such_package_at_all  # noqa: F401  # pyright: ignore[reportMissingImports]
    sys.meta_path[:] = finders
