"""Arrays on disk, as their writers leave them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorstore

DRIVERS = ("zarr", "zarr3", "n5")


def write_array(
    path: Path,
    values: npt.NDArray[Any],
    driver: str = "zarr3",
    *,
    chunk: tuple[int, ...] | None = None,
    shard: tuple[int, ...] | None = None,
    **metadata: Any,
) -> Path:
    """Write an array in chunks of the given shape, and those in shards of another."""
    layout: dict[str, Any] = {} if chunk is None else {"read_chunk": {"shape": chunk}}
    if chunk is not None:
        layout["write_chunk"] = {"shape": shard or chunk}
    store = tensorstore.open(
        {
            "driver": driver,
            "kvstore": {"driver": "file", "path": str(path)},
            "schema": {"chunk_layout": layout},
            **({"metadata": metadata} if metadata else {}),
        },
        create=True,
        delete_existing=True,
        dtype=values.dtype.name,
        shape=values.shape,
    ).result()
    store.write(values).result()
    return path


def write_group(path: Path, driver: str = "zarr3", **arrays: npt.NDArray[Any]) -> Path:
    """Write a group with these arrays, in chunks of seven rows."""
    path.mkdir(parents=True)
    name, content = {
        "zarr3": ("zarr.json", '{"zarr_format": 3, "node_type": "group", "attributes": {}}'),
        "zarr": (".zgroup", '{"zarr_format": 2}'),
        "n5": ("attributes.json", '{"n5": "2.0.0"}'),
    }[driver]
    (path / name).write_text(content)
    for array, values in arrays.items():
        write_array(path / array, values, driver, chunk=(7, *values.shape[1:])[: values.ndim])
    return path


def numbered(rows: int, *shape: int, dtype: Any = np.float32) -> npt.NDArray[Any]:
    """An array whose rows say which they are: row i begins with i times the elements of a row."""
    return np.arange(rows * int(np.prod(shape)), dtype=dtype).reshape(rows, *shape)
