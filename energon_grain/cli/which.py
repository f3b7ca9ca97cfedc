"""`energon-grain which`: which samples made, or will make, the global batch of a step."""

from __future__ import annotations

from typing import Annotated

import typer

from energon_grain.cli.own_modules import own_modules
from energon_grain.cli.print_json import print_json

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
    trust_module: Annotated[
        list[str] | None, typer.Option(help="Module whose sample types may be imported. Repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List shard, key and byte range of the samples of a global batch, from arithmetic, without reading data.

    Bytes of ArrayRecord files and arrays are counted as if records or rows lay one behind the other, uncompressed.

    Give the settings of the run. Samples that the run dropped are not known here: ask the loader, restored from a
    saved state.
    """
    from energon_grain.stream.stream import Stream
    from energon_grain.stream.worker_config import WorkerConfig

    trusted_modules = own_modules(trust_module)
    config = WorkerConfig(rank=0, world_size=world_size, num_workers=0)
    if validation:
        from energon_grain.datasets.get_datasets import get_val_dataset

        dataset = get_val_dataset(
            path,
            split_part=split_part or "val",
            worker_config=config,
            batch_size=batch_size,
            dataset_config=dataset_config,
            split_config=split_config,
            lanes=lanes,
            trusted_modules=trusted_modules,
        )
    else:
        from energon_grain.datasets.get_datasets import get_train_dataset

        dataset = get_train_dataset(
            path,
            split_part=split_part or "train",
            worker_config=config,
            batch_size=batch_size,
            shuffle_buffer_size=shuffle_buffer_size,
            max_samples_per_sequence=max_samples_per_sequence,
            seed=seed,
            lanes=lanes,
            dataset_config=dataset_config,
            split_config=split_config,
            trusted_modules=trusted_modules,
        )
    with Stream.of(dataset) as stream:
        records = stream.which(step)
    if as_json:
        print_json(records)
        return
    in_files = all(record.shard.endswith(_PLAIN_ENDINGS) for record in records)
    typer.echo(f"{'item':>8} {'host':>4} {'epoch':>5}  {'bytes' if in_files else 'bytes, uncompressed':25} sample")
    for record in records:
        extent = f"{record.start}-{record.stop}"
        typer.echo(f"{record.item:8} {record.host:4} {record.epoch:5}  {extent:25} {record.shard}/{record.key}")
