"""Read datasets with Megatron-Energon and write down what came out. Runs in Energon's environment.

Arguments: the file to write, then `FOLDER SPLIT_PART` as often as wanted. Crude samples come as raw bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from megatron.energon import Cooker, DefaultTaskEncoder, WorkerConfig, get_loader, get_val_dataset, stateless


@stateless
def keep(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


class RawBytes(DefaultTaskEncoder):
    decoder = None
    cookers = [Cooker(keep)]  # noqa: RUF012 (Energon's way)


def fail(error: Exception, *_: Any) -> None:
    raise error


def describe(value: Any) -> Any:
    """Return something that is JSON; arrays as type, shape and mean, and bytes as their digest."""
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return {"dtype": str(value.dtype), "shape": list(value.shape), "mean": float(value.mean(dtype=np.float64))}
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if isinstance(value, dict):
        return {str(name): describe(item) for name, item in value.items()}
    return value if value is None or isinstance(value, str | int | float) else type(value).__name__


def describe_sample(sample: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(sample):
        content = {field.name: getattr(sample, field.name) for field in dataclasses.fields(sample)}
    else:
        content = dict(sample)
    found = {name: describe(value) for name, value in content.items() if not name.startswith("__")}
    return {"type": type(sample).__name__, "key": content["__key__"], "content": found}


def read(root: str, split_part: str) -> list[dict[str, Any]]:
    crude = "CrudeWebdataset" in (Path(root) / ".nv-meta" / "dataset.yaml").read_text()
    dataset = get_val_dataset(
        root if not root.endswith(".yaml") else Path(root),
        split_part=split_part,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0, global_error_handler=fail),
        batch_size=None,
        task_encoder=RawBytes() if crude else DefaultTaskEncoder(),
    )
    return [describe_sample(sample) for sample in get_loader(dataset)]


if __name__ == "__main__":
    target, *requests = sys.argv[1:]
    answers = [read(root, part) for root, part in zip(requests[::2], requests[1::2], strict=True)]
    Path(target).write_text(json.dumps(answers), encoding="utf-8")
