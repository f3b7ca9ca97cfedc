"""`orbax.checkpoint.v1`: loaders as checkpointables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

from energon_grain import FingerprintError, get_loader
from energon_grain.loader import to_device

BROKEN = frozenset({3, 11, 40})
Train = Callable[..., Any]
State = dict[str, Any]


def keys(loader: Any, steps: int) -> list[list[str]]:
    return [list(next(loader).__key__) for _ in range(steps)]


def weights() -> State:
    return {"w": np.arange(3.0)}


@pytest.mark.parametrize("place", [lambda loader: loader, to_device], ids=["loader", "device"])
def test_save_and_load_checkpointables(train: Train, tmp_path: Path, place: Callable[[Any], Any]) -> None:
    loader = place(get_loader(train(broken=BROKEN)))
    keys(loader, 9)
    ocp.save_checkpointables(tmp_path / "saved", {"pytree": weights(), "data": loader})
    expected = keys(loader, 5)
    other = place(get_loader(train(broken=BROKEN, num_workers=1)))
    loaded = ocp.load_checkpointables(tmp_path / "saved", {"pytree": weights(), "data": other})
    assert loaded["data"] is other
    assert keys(other, 5) == expected
    assert loaded["pytree"]["w"].tolist() == [0, 1, 2]
    other.close()


@pytest.mark.parametrize("place", [lambda loader: loader, to_device], ids=["loader", "device"])
def test_the_async_checkpointer_writes_the_state_at_the_call(
    train: Train, tmp_path: Path, place: Callable[[Any], Any]
) -> None:
    loader = place(get_loader(train(broken=BROKEN, num_workers=2)))
    with ocp.training.Checkpointer(tmp_path) as checkpointer:
        keys(loader, 6)
        response = checkpointer.save_checkpointables_async(6, {"pytree": weights(), "data": loader})
        expected = keys(loader, 6)  # goes on while the files are written
        assert response is not None
        response.result()
        other = place(get_loader(train(broken=BROKEN)))
        assert checkpointer.latest is not None
        checkpointer.load_checkpointables(checkpointer.latest.step, {"pytree": weights(), "data": other})
    assert keys(other, 6) == expected
    loader.close()


@pytest.mark.parametrize("background", [False, True])
def test_a_loader_below_a_device_loader_is_saved_at_its_last_delivered_batch(
    train: Train, tmp_path: Path, background: bool
) -> None:
    loader = get_loader(train(broken=BROKEN, num_workers=1))
    device = to_device(loader, buffer_size=3)
    with ocp.training.Checkpointer(tmp_path) as checkpointer:
        keys(device, 6)
        if background:
            response = checkpointer.save_checkpointables_async(6, {"pytree": weights(), "data": loader})
            expected = keys(device, 6)
            assert response is not None
            response.result()
        else:
            checkpointer.save_checkpointables(6, {"pytree": weights(), "data": loader})
            expected = keys(device, 6)
        other = get_loader(train(broken=BROKEN))
        checkpointer.load_checkpointables(6, {"pytree": weights(), "data": other})
    assert keys(to_device(other), 6) == expected
    loader.close()


def test_a_changed_stream_is_refused(train: Train, tmp_path: Path) -> None:
    ocp.save_checkpointables(tmp_path / "saved", {"data": get_loader(train())})
    with pytest.raises(FingerprintError, match=r"passes: saved 1, now 2"):
        ocp.load_checkpointables(tmp_path / "saved", {"data": get_loader(train(shuffle_over_epochs_multiplier=2))})
