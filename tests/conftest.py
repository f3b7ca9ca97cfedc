"""Settings that all tests share."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import forkserver
from pathlib import Path

import pytest
import slices
from hypothesis import HealthCheck, Phase, settings
from object_server import Bucket, ObjectServer, running_object_server
from patience import PATIENCE_S

from energon_grain import use_storage
from energon_grain.testing import make_text_dataset

RunScript = Callable[..., subprocess.CompletedProcess[str]]
_ROOT = Path(__file__).parents[1]
PYTHONPATH = f"{_ROOT}{os.pathsep}{_ROOT / 'adapters'}"

os.environ.setdefault("ENERGON_GRAIN_TRACEBACK", "full")  # a test that fails shows where, in workers too
os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # a token of `ray.init` would be refused by `ray start`

# `HYPOTHESIS_PROFILE=night` searches longer; most tests that state a number of examples keep it in both.
_NO_DEADLINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("gate", _NO_DEADLINE, max_examples=50)
settings.register_profile("night", _NO_DEADLINE, max_examples=200)
settings.register_profile("unshrunk", _NO_DEADLINE, phases=[Phase.explicit, Phase.generate])  # for `mutations`
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slice",
        default="all",
        metavar="commit|all|0..3",
        help="the part of the slowest modules to run: the commit's quarter, all, or one quarter",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Choose the quarter once: processes of pytest-xdist are given the number."""
    try:
        chosen = slices.quarter(config.option.slice)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    config.option.slice = "all" if chosen is None else str(chosen)


def pytest_report_header(config: pytest.Config) -> str:
    if config.option.slice == "all":
        return "slice: all tests"
    return (
        f"slice: quarter {config.option.slice} (of 0 to {slices.QUARTERS - 1}) of the {len(slices.SLICED)} slowest "
        f"modules, and all others. Everything: make test-all, or --slice=all. This again: --slice={config.option.slice}"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the other quarters out, and begin with files that take long: no process waits for another one's last."""
    chosen = slices.quarter(config.option.slice)
    if chosen is not None:
        run, left = slices.split([item.nodeid for item in items], chosen)
        config.hook.pytest_deselected(items=[items[place] for place in left])
        items[:] = [items[place] for place in run]
    long = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in long)


def pytest_collection_finish() -> None:
    """Let the search for garbage leave out what imports have made: to look at it took a fifth of all tests' time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def text_dataset(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A prepared text dataset with one split part, made once for each set of arguments.

    `text_dataset(n, shards, broken)` returns its folder; sample i has the key `f"{i:06d}"`.
    """
    made: dict[tuple[int, int, frozenset[int]], Path] = {}

    def make(n: int, shards: int = 3, broken: Iterable[int] = ()) -> Path:
        arguments = (n, shards, frozenset(broken))
        if arguments not in made:
            root = tmp_path_factory.mktemp("text") / "dataset"
            make_text_dataset(root, n=n, shards=min(n, shards), broken=set(broken))
            every = sorted(path.name for path in root.glob("*.tar"))
            (root / ".nv-meta" / "split.yaml").write_text(f"split_parts:\n  train: {every}\nexclude: []\n")
            made[arguments] = root
        return made[arguments]

    return make


@pytest.fixture
def run_script(tmp_path: Path) -> RunScript:
    """Runs a script as a user would: `run_script(source, *arguments, env={…})`."""

    def run(
        source: str,
        *arguments: object,
        env: dict[str, str] | None = None,
        timeout_s: float = PATIENCE_S,
        new_group: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "script.py"
        script.write_text(source)
        return subprocess.run(
            [sys.executable, "-W", "error", script, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": PYTHONPATH, "JAX_PLATFORMS": "cpu", **(env or {})},
            check=False,
            process_group=0 if new_group else None,
        )

    return run


@pytest.fixture(autouse=True)
def _settings_of_the_environment() -> Iterator[None]:
    """Storage settings that a test uses end with it."""
    yield
    use_storage(None)


@pytest.fixture(scope="session")
def object_server() -> Iterator[ObjectServer]:
    """A real S3 server on loopback; `bucket` is how tests get at it."""
    with running_object_server() as server:
        yield server


@pytest.fixture
def bucket(object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bucket]:
    """A new bucket on a server without faults, reached by the environment, and an empty cache of blocks."""
    for name, value in object_server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    forkserver._forkserver._stop()  # else workers by `forkserver` have the environment of the test that started it
    object_server.reset()
    made = object_server.make_bucket(f"test-{uuid.uuid4().hex[:12]}")
    object_server.reset()
    yield made
    forkserver._forkserver._stop()
    object_server.reset()
