"""Read a joined metadataset with Megatron-Energon and write down what came out. Runs in Energon's environment.

Arguments: the file to write, the metadataset, the split.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from megatron.energon import WorkerConfig, get_loader, get_val_dataset


def fail(error: Exception, *_: Any) -> None:
    raise error


if __name__ == "__main__":
    target, metadataset, split_part = sys.argv[1:]
    dataset = get_val_dataset(
        metadataset,
        split_part=split_part,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0, global_error_handler=fail),
        batch_size=None,
    )
    rows = [[sample.__key__, sample.image, sample.caption] for sample in get_loader(dataset)]
    Path(target).write_text(json.dumps(rows), encoding="utf-8")
