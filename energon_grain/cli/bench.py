# SPDX-License-Identifier: Apache-2.0
"""`energon-grain bench`: three rates on the user's own data, their limit, and one sentence of advice."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from energon_grain.bench import measure
from energon_grain.cli.run import Run, of_a_run, own_task_encoder
from energon_grain.cli.terminal import Answer, ProgressBar, note, significant
from energon_grain.errors import ConfigError
from energon_grain.task_encoder import DefaultTaskEncoder
from energon_grain.watch.loader_stats import handover_advice, store_advice, work_advice
from energon_grain.words import counted, format_bytes, table

if TYPE_CHECKING:
    from energon_grain.bench import Figures
    from energon_grain.task_encoder import TaskEncoder

_ENOUGH = 0.95
"""A number of workers is enough if it reaches this fraction of the best rate."""
_LOCAL_BLOCK_BYTES, _REMOTE_BLOCK_BYTES, _MAX_BLOCK = 1 << 20, 4 << 20, 1000


@of_a_run
def bench(
    path: Annotated[str, typer.Argument(help="Folder or URL of a prepared dataset, or a metadataset (.yaml).")],
    run: Run,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples in a batch.")] = 32,
    workers: Annotated[str, typer.Option(help="Numbers of workers to try.")] = "0,1,2,4",
    worker_type: Annotated[
        Literal["thread", "process"], typer.Option(help="Workers are threads or processes.")
    ] = "thread",
    seconds: Annotated[float, typer.Option(min=1e-3, help="Seconds per measurement; there are about ten.")] = 2.0,
    image_decode: Annotated[
        str | None, typer.Option(help="Format to decode images to, as rgb8. Default: the format of the task encoder.")
    ] = None,
    progress: Annotated[bool, typer.Option(help="Show a progress bar on terminals.")] = True,
) -> Answer:
    """Measure loading on your own data: storage, the work per sample, and the pipeline with workers.

    Reports the limit of the rate and the change that raises it. Give the settings of the run, as for get_train_dataset.
    To measure storage as in a first epoch, the files are dropped from the page cache of the kernel first. Objects in
    stores are read without the cache on local disk, and then from it. Nothing else is written.

    Examples:
        energon-grain bench captions --seconds 1
        energon-grain bench captions --batch-size 64 --workers 0,2
    """
    if not all(number.isdecimal() for number in workers.split(",")):
        raise ConfigError(f"--workers {workers}: expected numbers with commas between them, as 0,1,2,4")
    numbers = sorted({int(number) for number in workers.split(",")})

    import msgspec

    encoder = _encoder(run.task_encoder, image_decode)
    dataset = run.dataset(path, batch_size=batch_size, task_encoder=encoder, worker_type=worker_type)
    with ProgressBar("planning", shown=progress) as bar:
        done, steps = itertools.count(), len(numbers) + 3
        figures = measure(
            dataset,
            path=path,
            workers=numbers,
            seconds=seconds,
            show=lambda label: bar.advance_to(next(done), steps, "", label),
        )
    advice = advise(figures, None if encoder.decoder is None else encoder.decoder.config()["image_decode"])
    document = {**msgspec.to_builtins(figures), "bound": figures.bound, "advice": advice}
    return Answer(document=document, lines=figure_lines(figures, advice))


def figure_lines(figures: Figures, advice: str) -> list[str]:
    """Lay out figures as a table, with the advice below."""
    shuffle = "full shuffle" if (figures.block or 1) == 1 else f"blocks of {figures.block:,}"
    first, later = ("cache off", "cache on disk") if figures.in_store else ("not in memory", "in memory")
    rows = [("", "samples/s", "")]
    for what, rate in ((first, figures.first), (later, figures.later)):
        if rate is not None:
            rows.append((f"storage, {what}", f"{rate.samples_per_s:,.0f}", f"{format_bytes(rate.bytes_per_s)}/s"))
    stages = ", ".join(f"{stage.name} {stage.share:.0%}" for stage in figures.work)
    rows.append(("sample work, one thread", f"{figures.work_per_s:,.0f}", stages))
    enough = next(run for run in figures.pipeline if run.samples_per_s >= _ENOUGH * figures.best.samples_per_s)
    for run in figures.pipeline:
        batch_ms = significant(1e3 * figures.batch_size / run.samples_per_s, 2)
        said = f"a batch every {batch_ms} ms, the first after {1e3 * run.first_batch_s:,.0f} ms"
        name = f"pipeline, {counted(run.workers, 'worker')}"
        rows.append((name, f"{run.samples_per_s:,.0f}", said + " (enough)" * (run is enough)))
    return [
        f"{figures.path}: {figures.samples:,} samples of {format_bytes(figures.sample_bytes)}, "
        f"batches of {figures.batch_size:,}, {shuffle}",
        "",
        *table(rows, "<><"),
        "",
        advice,
        *map(note, figures.notes),
    ]


def advise(figures: Figures, image_decode: str | None) -> str:
    """One sentence: the limit of the rate, and what to change. `image_decode`: the format of decoded images."""
    stage = figures.slowest
    workers = f"use more workers (this machine has {figures.cores} cores)"
    worth = _REMOTE_BLOCK_BYTES if figures.in_store else _LOCAL_BLOCK_BYTES
    block = min(_MAX_BLOCK, figures.largest_block, -(-worth // max(1, round(figures.sample_bytes))))
    # Blocks have no effect if they are fewer than the lanes.
    neighbours = f"read blocks of consecutive samples (max_samples_per_sequence={block}), or "
    neighbours = neighbours if block > 2 * (figures.block or 1) else ""
    takes = f"{stage.name} takes {stage.share:.0%} of it, {significant(stage.microseconds)} µs per sample"
    if figures.bound == "pipeline":
        return handover_advice(figures.batch_size)
    if figures.bound == "storage":
        return _storage_advice(figures, neighbours, workers)
    return work_advice(
        stage.name,
        takes,
        one_at_a_time=stage.serial and figures.worker_type == "thread",
        more_workers=workers,
        images=figures.images,
        image_decode=image_decode,
    )


def _storage_advice(figures: Figures, neighbours: str, workers: str) -> str:
    first = figures.first
    if first and figures.in_store:
        return store_advice(
            f"The first epoch is limited by the store (it delivers {first.samples_per_s:,.0f} samples/s, and one "
            f"thread could process {figures.work_per_s:,.0f})",
            neighbours,
        )
    if first and first.samples_per_s < figures.best.samples_per_s:
        return (
            f"The rate is limited by storage while the files are not in memory (it delivers "
            f"{first.samples_per_s:,.0f} samples/s, and the pipeline could process "
            f"{figures.best.samples_per_s:,.0f}): {neighbours}use more workers, faster storage or more memory."
        )
    return (
        f"The rate is limited by reading, even from memory: read only the parts that you use (field map, part_filter), "
        f"and {workers}."
    )


def _encoder(named: str | None, image_decode: str | None) -> TaskEncoder:
    """The user's task encoder, or the default one, with the format to decode images to.

    Raises ConfigError if the class does not exist, is no task encoder, or decodes nothing.
    """
    encoder = DefaultTaskEncoder() if named is None else own_task_encoder(named)
    if image_decode is not None:
        if encoder.decoder is None:
            raise ConfigError(f"--image-decode {image_decode}: {named} decodes nothing (its decoder is None)")
        arguments: dict[str, Any] = {**encoder.decoder.config(), "image_decode": image_decode}
        encoder.decoder = type(encoder.decoder)(**arguments)
    return encoder
