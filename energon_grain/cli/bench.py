"""`energon-grain bench`: where the time of loading goes, and what to change."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from energon_grain.cli.terminal import Answer, format_bytes, own_modules, own_task_encoder
from energon_grain.errors import ConfigError
from energon_grain.measurement.figures import Figures, ReadRate
from energon_grain.measurement.significant import significant
from energon_grain.storage.location import is_url

if TYPE_CHECKING:
    from energon_grain.datasets.task_encoder import TaskEncoder


_BAR_WIDTH = 30


def figure_lines(figures: Figures, advice: Sequence[str]) -> list[str]:
    """Lay out figures as tables, and advice as a list."""
    return [
        f"{figures.path}: {figures.dataset_samples:,} samples of {format_bytes(figures.sample_bytes)}, "
        f"batches of {figures.batch_size:,}, {_shuffle(figures)}",
        "",
        *_storage(figures),
        "",
        *_stages(figures),
        "",
        *_pipeline(figures),
        "",
        "What to change",
        *(f"  * {sentence}" for sentence in advice),
        *(f"  note: {note}" for note in figures.notes),
    ]


def _shuffle(figures: Figures) -> str:
    if figures.block is None:
        return "full shuffle" + (", for there are too few samples for blocks" if figures.refused_block else "")
    return "full shuffle (blocks of 1)" if figures.block == 1 else f"blocks of {figures.block:,}"


def _storage(figures: Figures) -> list[str]:
    storage = figures.storage
    rates: list[tuple[str, ReadRate | None]] = [
        ("reading, warm", storage.warm),
        ("pread alone, warm", storage.pread_warm),
        ("reading, cold", storage.cold),
        ("pread alone, cold", storage.pread_cold),
    ]
    of = f", in reads of {format_bytes(storage.request_bytes)}" if storage.request_bytes else ""
    if storage.store is not None:
        rates = [
            ("reading, cache warm", storage.warm),
            ("reading, cache off", storage.cold),
            ("range requests alone", storage.pread_cold),
        ]
        of += (
            f"; a request takes {significant(1e3 * storage.store.latency_s)} ms, and up to "
            f"{storage.store.requests_in_flight} are made at a time"
        )
    rows: list[tuple[str, ...]] = [("", "samples/s", "bytes/s", "requests/s" if storage.store else "reads/s")]
    for name, rate in rates:
        if rate is not None:
            requests = f"{rate.requests_per_s:,.0f}" if rate.requests_per_s else "-"
            rows.append((name, f"{rate.samples_per_s:,.0f}", format_bytes(rate.bytes_per_s), requests))
    rows.append(("copying memory", "", format_bytes(figures.memcpy_bytes_per_s), ""))
    return [f"Storage, one thread{of}", *_table(rows)]


def _stages(figures: Figures) -> list[str]:
    rows: list[tuple[str, ...]] = [("", "µs a sample", "share", "")]
    in_store = figures.storage.store is not None
    for stage in figures.stages:
        bar = "█" * round(stage.share * _BAR_WIDTH)
        if stage is figures.bound:
            bar += "  bounds later epochs" if in_store else "  bounds"
        rows.append((stage.name, significant(stage.microseconds), f"{stage.share:.0%}", bar))
    return [f"Stages, one thread, {'cache warm, as in later epochs' if in_store else 'warm'}", *_table(rows)]


def _pipeline(figures: Figures) -> list[str]:
    kind = {"thread": "threads", "process": "processes"}[figures.worker_type]
    store = figures.storage.store is not None
    rows: list[tuple[str, ...]] = [("workers", "samples/s", "batches/s", "first batch")]
    if store:
        rows[0] += ("fetched/s", "requests/s")
    for run in figures.pipeline:
        batches = run.samples_per_s / figures.batch_size
        row = (
            f"{run.workers}",
            f"{run.samples_per_s:,.0f}",
            significant(batches, 4),
            f"{1e3 * run.first_batch_s:,.0f} ms",
        )
        if store:
            came = run.fetched
            row += ("-", "-") if came is None else (format_bytes(came.bytes_per_s), f"{came.requests_per_s:,.1f}")
        rows.append(row)
    off = ", cache off, as in the first epoch" if store else ""
    return [f"Pipeline, {kind} of {figures.cores} cores{off}", *_table(rows)]


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The first column to the left, bars too, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines: list[str] = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [
            text if text.startswith(("█", " ")) else text.rjust(width)
            for text, width in zip(row[1:], widths[1:], strict=True)
        ]
        lines.append(("  " + "  ".join(cells)).rstrip())
    return lines


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
) -> Answer:
    """Measure loading on your own data: storage, decoding, hooks, batching, and the pipeline with workers.

    Says how close storage comes to plain reads, what each stage takes for a sample, how many workers pay, and what to
    change. To measure cold storage, the kernel is asked to drop the files that are read from memory. What lies in an
    object store is read past the cache on local disk, as in the first epoch, and then out of it. Nothing is written but
    that cache.
    """
    if max_samples_per_sequence is not None and shuffle is not Shuffle.BLOCK:
        raise ConfigError("--max-samples-per-sequence is the size of blocks; add --shuffle block")
    numbers = _numbers(workers)

    from energon_grain.cli.terminal import progress_bar
    from energon_grain.datasets.get_datasets import get_train_dataset
    from energon_grain.measurement.advice import advise
    from energon_grain.measurement.measure import measure_dataset
    from energon_grain.stream.worker_config import WorkerConfig

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
    import msgspec

    document = {**msgspec.to_builtins(figures), "bound": figures.bound.name, "advice": advice}
    return Answer(document=document, lines=figure_lines(figures, advice))


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

    encoder = DefaultTaskEncoder() if named is None else own_task_encoder(named)
    if image_decode is not None:
        if encoder.decoder is None:
            raise ConfigError(f"--image-decode {image_decode}: {named} decodes nothing (its decoder is None)")
        arguments: dict[str, Any] = {**encoder.decoder.config(), "image_decode": image_decode}
        encoder.decoder = type(encoder.decoder)(**arguments)
    return encoder
