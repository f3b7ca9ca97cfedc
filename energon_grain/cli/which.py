"""`energon-grain which`: which samples made, or will make, the global batch of a step."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from energon_grain.cli.terminal import Answer, own_modules, own_task_encoder, table
from energon_grain.errors import StateError

if TYPE_CHECKING:
    from energon_grain.stream.which import SampleRecord

_PLAIN_ENDINGS = (".tar", ".jsonl")
"""Of files whose bytes are those of their samples."""


def which(
    path: Annotated[
        str, typer.Argument(help="Folder or URL of a dataset or array, a JSONL file, or a metadataset (.yaml).")
    ],
    step: Annotated[int, typer.Option(min=0, help="The step: 0 is the first batch.")],
    batch_size: Annotated[int, typer.Option(min=1, help="Samples in the batch of one host.")],
    split_part: Annotated[
        str | None, typer.Option(help="Split part. Default: train, or val with --validation.")
    ] = None,
    validation: Annotated[
        bool, typer.Option("--validation", help="As get_val_dataset: in order, not endless.")
    ] = False,
    shuffle_buffer_size: Annotated[int | None, typer.Option(help="As in get_train_dataset.")] = None,
    max_samples_per_sequence: Annotated[int | None, typer.Option(help="As in get_train_dataset.")] = None,
    world_size: Annotated[int, typer.Option(min=1, help="Number of hosts.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the run.")] = 0,
    lanes: Annotated[int | None, typer.Option(min=1, help="Lanes of the run, if they were given.")] = None,
    dataset_config: Annotated[str, typer.Option(help="Name of the dataset's YAML file in .nv-meta.")] = "dataset.yaml",
    split_config: Annotated[str | None, typer.Option(help="Name of the split file in .nv-meta.")] = None,
    task_encoder: Annotated[
        str | None, typer.Option(help="Task encoder of the run, as module:Class. It is imported and made anew.")
    ] = None,
    packing_buffer_size: Annotated[int | None, typer.Option(min=1, help="As in get_train_dataset.")] = None,
    state: Annotated[
        Path | None, typer.Option(help="JSON file of a saved state of the run, of all hosts: a place to begin at.")
    ] = None,
    trust_module: Annotated[
        list[str] | None, typer.Option(help="Module whose sample types may be imported. Repeatable.")
    ] = None,
) -> Answer:
    """List shard, key and byte range of the samples of a global batch.

    Bytes of ArrayRecord files and arrays are counted as if records or rows lay one behind the other, uncompressed.

    Give the settings of the run. Mostly this is arithmetic. Where a task encoder packs, groups, filters or generates,
    the steps before this one are made again, from the beginning or from a saved state. Samples that a run dropped
    without such a task encoder are known from a state only.
    """
    from energon_grain.datasets.get_datasets import get_train_dataset, get_val_dataset
    from energon_grain.stream.cursor import merge_cursors
    from energon_grain.stream.stream import Stream
    from energon_grain.stream.worker_config import WorkerConfig

    saved = None if state is None else _saved(state)
    settings: dict[str, Any] = {
        # Nobody is asked: all hosts are gone through here.
        "worker_config": WorkerConfig(rank=0, world_size=world_size, num_workers=0, any_host=bool),
        "batch_size": batch_size,
        "packing_buffer_size": packing_buffer_size,
        "task_encoder": None if task_encoder is None else own_task_encoder(task_encoder),
        "seed": seed,
        "lanes": lanes,
        "dataset_config": dataset_config,
        "split_config": split_config,
        "trusted_modules": own_modules(trust_module),
    }
    if validation:
        dataset = get_val_dataset(path, split_part=split_part or "val", **settings)
    else:
        dataset = get_train_dataset(
            path,
            split_part=split_part or "train",
            shuffle_buffer_size=shuffle_buffer_size,
            max_samples_per_sequence=max_samples_per_sequence,
            **settings,
        )
    with Stream.of(dataset) as stream:
        if saved is not None:
            stream.restore(merge_cursors(saved) if isinstance(saved, list) else saved)
        records = stream.which(step)
    document = [{**asdict(record), "read": True} for record in records] if records.read else records
    lines = _lines(records)
    if records.read:
        lines.append("Known by reading the samples before, and making the steps again.")
    return Answer(document=document, lines=lines)


def _saved(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except ValueError as error:
        raise StateError(f"{file}: expected a saved state as JSON, or a list of those of all hosts: {error}") from error


def _lines(records: list[SampleRecord]) -> list[str]:
    """A table; it names the datasets where they are several, shortened by what they have in common."""
    in_files = all(record.shard.endswith(_PLAIN_ENDINGS) for record in records)
    datasets = sorted({record.dataset for record in records})
    several = len(datasets) > 1
    common = os.path.commonprefix(datasets).rpartition("/")[0] if several else "".join(datasets)  # noqa: RUF071
    rows = [("item", "host", "epoch", "bytes" if in_files else "bytes, uncompressed", "sample")]
    for record in records:
        place = f"{record.dataset[len(common) :].lstrip('/')}/{record.shard}/{record.key}".lstrip("/")
        extent = f"{record.start}-{record.stop}"
        rows.append((f"{record.item}", f"{record.host}", f"{record.epoch}", extent, place))
    return [*([f"Below {common}/"] if several else []), *table(rows, ">>><<")]
