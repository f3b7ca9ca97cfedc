"""`energon-grain bench`: where the time of loading goes, and what to change."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from energon_grain.cli.own_modules import own_modules
from energon_grain.cli.print_json import print_json
from energon_grain.errors import ConfigError
from energon_grain.storage.location import is_url

if TYPE_CHECKING:
    from energon_grain.datasets.task_encoder import TaskEncoder


class Shuffle(StrEnum):
    """How samples are shuffled."""

    FULL = "full"
    BLOCK = "block"


class WorkerType(StrEnum):
    """What workers are."""

    THREAD = "thread"
    PROCESS = "process"


def bench(
    path: Annotated[str, typer.Argument(help="Folder or URL of a prepared dataset, or a metadataset (.yaml).")],
    split_part: Annotated[str, typer.Option(help="Split part.")] = "train",
    batch_size: Annotated[int, typer.Option(min=1, help="Samples in a batch.")] = 32,
    workers: Annotated[str, typer.Option(help="Numbers of workers to run the pipeline with.")] = "0,1,2,4",
    worker_type: Annotated[WorkerType, typer.Option(help="What workers are.")] = WorkerType.THREAD,
    seconds: Annotated[float, typer.Option(help="For each measurement; there are about a dozen.")] = 2.0,
    shuffle: Annotated[
        Shuffle | None,
        typer.Option(
            help="Each sample by itself, or blocks of neighbours. Default: full; in an object store, blocks of about "
            "4 MiB. Where blocks are fewer than lanes (48), the shuffle is full."
        ),
    ] = None,
    max_samples_per_sequence: Annotated[
        int | None, typer.Option(min=1, help="With --shuffle block: samples of a block. Default: 100.")
    ] = None,
    image_decode: Annotated[
        str | None, typer.Option(help="What images are decoded to, as rgb8. Default: as the task encoder says.")
    ] = None,
    task_encoder: Annotated[
        str | None, typer.Option(help="Your task encoder, as module:Class. It is imported and made without arguments.")
    ] = None,
    trust_module: Annotated[
        list[str] | None, typer.Option(help="Module whose sample types may be imported. Repeatable.")
    ] = None,
    progress: Annotated[bool, typer.Option(help="Say on stderr what is measured, on terminals.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure loading on your own data: storage, decoding, hooks, batching, and the pipeline with workers.

    Says how close storage comes to plain reads, what each stage takes for a sample, how many workers pay, and what to
    change. To measure cold storage, the kernel is asked to drop the files that are read from memory. What lies in an
    object store is read past the cache on local disk, as in the first epoch, and then out of it. Nothing is written but
    that cache.
    """
    if max_samples_per_sequence is not None and shuffle is not Shuffle.BLOCK:
        raise ConfigError("--max-samples-per-sequence is the size of blocks; add --shuffle block")
    numbers = _numbers(workers)

    from energon_grain.cli.bench_text import figure_lines
    from energon_grain.cli.progress_bar import progress_bar
    from energon_grain.datasets.get_datasets import get_train_dataset
    from energon_grain.datasets.worker_config import WorkerConfig
    from energon_grain.measurement.advice import advise
    from energon_grain.measurement.measure import measure_dataset

    full = 1 if is_url(path) else None  # which is blocks in a store
    block = {None: None, Shuffle.FULL: full, Shuffle.BLOCK: max_samples_per_sequence or 100}[shuffle]
    dataset = get_train_dataset(
        path,
        split_part=split_part,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0, worker_type=worker_type.value),
        batch_size=batch_size,
        shuffle_buffer_size=block,
        max_samples_per_sequence=block,
        task_encoder=_encoder(task_encoder, image_decode),
        trusted_modules=own_modules(trust_module),
    )
    with progress_bar("planning", shown=progress) as bar:
        done = 0

        def show(label: str) -> None:
            nonlocal done
            bar.advance_to(done, len(set(numbers)) + 4, "", label)
            done += 1

        figures = measure_dataset(dataset, path=path, workers=numbers, seconds=seconds, progress=show)
    advice = advise(figures)
    if as_json:
        import msgspec

        print_json({**msgspec.to_builtins(figures), "bound": figures.bound.name, "advice": advice})
        return
    for line in figure_lines(figures, advice):
        typer.echo(line)


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise ConfigError(f"--workers {text}: numbers with commas between them are meant, as 0,1,2,4") from None


def _encoder(named: str | None, image_decode: str | None) -> TaskEncoder:
    """The user's task encoder, or the default one, with its images decoded as asked.

    Raises:
        ConfigError: There is no such class, it is no task encoder, or it does not decode.
    """
    from energon_grain.datasets.task_encoder import DefaultTaskEncoder

    encoder = DefaultTaskEncoder() if named is None else _imported(named)
    if image_decode is not None:
        if encoder.decoder is None:
            raise ConfigError(f"--image-decode {image_decode}: {named} decodes nothing (its decoder is None)")
        arguments: dict[str, Any] = {**encoder.decoder.config(), "image_decode": image_decode}
        encoder.decoder = type(encoder.decoder)(**arguments)
    return encoder


def _imported(named: str) -> TaskEncoder:
    import importlib

    from energon_grain.datasets.task_encoder import TaskEncoder

    module, _, name = named.partition(":")
    if not module or not name:
        raise ConfigError(f"--task-encoder {named}: module:Class is meant, as my_training.data:Encoder")
    own_modules([module])
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"--task-encoder {named}: {error}") from error
    encoder = found() if isinstance(found, type) else found
    if not isinstance(encoder, TaskEncoder):
        raise ConfigError(f"--task-encoder {named}: is no TaskEncoder")
    return encoder
