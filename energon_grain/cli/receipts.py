# SPDX-License-Identifier: Apache-2.0
"""The commands for receipts: `receipt` makes one of a saved state, `verify` checks one; and `measure --digest`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from energon_grain.atomic_files import atomic_write_text
from energon_grain.cli.checkpoint import amendments_of, read_saved
from energon_grain.cli.run import Run, of_a_run
from energon_grain.cli.terminal import Answer, ProgressBar, note
from energon_grain.errors import ConfigError
from energon_grain.history.digests import datasets_of
from energon_grain.history.receipts import Receipt, read_receipt, receipt_of, receipt_of_state
from energon_grain.history.verify import Verified, verify_files, verify_receipt
from energon_grain.metadataset.digests import digest_dataset, files_at
from energon_grain.stream.stream import Stream
from energon_grain.words import counted, format_bytes

if TYPE_CHECKING:
    from energon_grain.stream.cursor import Cursor


@of_a_run
def receipt(
    state: Annotated[Path, typer.Argument(help="Saved state of all hosts, in any form that `checkpoint info` reads.")],
    run: Run,
    config: Annotated[
        str | None,
        typer.Argument(help="Dataset or metadataset of the run, opened with its options. Without it: settings only."),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File for the receipt.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Samples in the batch of one host. Default: that of the state.")
    ] = None,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Enter null for datasets without digests.")
    ] = False,
) -> Answer:
    """Write what a run read until a saved state: digests of its data and settings, in less than 1 KB.

    Datasets need digests: `prepare --digest` or `measure --digest` stores them.

    Examples:
        energon-grain receipt state.json captions -o receipt.json
        energon-grain receipt state.json
    """
    saved = read_saved(state)
    if config is None:
        if run != Run():
            raise ConfigError("options of the run describe a configuration: give it after the state")
        made = receipt_of_state(saved, len(amendments_of(saved).steps) if "amendments" in saved else 0)
    else:
        with _restored(run, config, saved, batch_size) as stream:
            made = receipt_of(stream, allow_missing=allow_missing)
    if output is not None:
        atomic_write_text(output, f"{made}\n")
    lines = [str(made)] if output is None else [f"Wrote {output}."]
    return Answer(document=made, lines=lines)


def _restored(run: Run, config: str, saved: Cursor, batch_size: int | None) -> Stream:
    """The stream of a configuration at a saved state."""
    size = batch_size or saved["history"][-1][4] // run.world_size or 1
    stream = Stream.of(run.dataset(config, batch_size=size))
    try:
        stream.restore(saved)
    except BaseException:
        stream.close()
        raise
    return stream


@of_a_run
def verify(
    receipt: Annotated[Path, typer.Argument(help="The receipt.")],
    run: Run,
    paths: Annotated[
        list[str],
        typer.Argument(
            help="The dataset or metadataset of the run, opened with its options; or all of its datasets, in the order "
            "of the run, to check only data."
        ),
    ],
    state: Annotated[
        Path | None,
        typer.Option(help="Saved state of the receipt. Needed if the mixture of the run was changed."),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Samples in the batch of one host. Default: that of the receipt.")
    ] = None,
    data_only: Annotated[bool, typer.Option("--data-only", help="Check data without the configuration.")] = False,
    progress: Annotated[bool, typer.Option(help="Show progress.")] = True,
) -> Answer:
    """Check data and configuration against a receipt, and name the files that differ.

    All files of the datasets are read. Exit code 1: something differs.

    Examples:
        energon-grain verify receipt.json captions --batch-size 16
        energon-grain verify receipt.json captions --data-only
    """
    known = read_receipt(receipt)
    with ProgressBar("Verifying", shown=progress) as bar:
        if data_only or len(paths) > 1:
            if run != Run() or state is not None:
                raise ConfigError("a check of data alone takes no state and no options of the run: remove them")
            datasets = [each for path in paths for each in files_at(path)]
            found = verify_files(known, datasets, _ByteCount(bar, sum(each.size_bytes for each in datasets)))
        else:
            found = _verified(known, paths[0], run, state, batch_size, bar)
    return Answer(document=found, lines=_lines(known, found), failed=bool(found.differences))


def _verified(
    known: Receipt, path: str, run: Run, state: Path | None, batch_size: int | None, bar: ProgressBar
) -> Verified:
    saved = None if state is None else read_saved(state)
    size = batch_size or known["batch"] // run.world_size or 1
    with Stream.of(run.dataset(path, batch_size=size)) as stream:
        if saved is not None:
            stream.restore(saved)
        return verify_receipt(known, stream, restored=saved is not None, progress=_ByteCount(bar, _bytes_of(stream)))


def _bytes_of(stream: Stream) -> int:
    return sum(each.size_bytes for each in datasets_of(leaf.leaf.source for leaf in stream.spec.leaves))


class _ByteCount:
    """Adds up bytes, and shows them in a progress bar."""

    def __init__(self, bar: ProgressBar, total: int) -> None:
        self._bar, self._total, self._done = bar, total, 0

    def __call__(self, size_bytes: int) -> None:
        self._done += size_bytes
        total = max(self._total, self._done)
        self._bar.advance_to(self._done, total, format_bytes(self._done))


def _lines(known: Receipt, found: Verified) -> list[str]:
    what = f"{counted(found.datasets, 'dataset')}, {counted(found.files, 'file')}, {format_bytes(found.size_bytes)}"
    checked = [*(["data"] if found.data else []), *(["configuration"] if found.configuration else [])]
    notes = [f"  {note(each)}" for each in found.notes]
    if found.differences:
        return ["Differs from the receipt:", *(f"  {each}" for each in found.differences), *notes]
    return [f"Equal to the receipt of step {known['step']:,}: {' and '.join(checked) or 'nothing'} ({what}).", *notes]


def store_digests(path: str, *, progress: bool) -> Answer:
    """`measure --digest`."""
    with ProgressBar("Reading", shown=progress) as bar:
        report = digest_dataset(
            path, progress=lambda done, total: bar.advance_to(done, max(done, total), format_bytes(done))
        )
    what = f"{counted(report.files, 'file')} of {counted(len(report.datasets), 'dataset')}"
    line = f"Stored digests of {what} ({format_bytes(report.size_bytes)})."
    return Answer(document=report, lines=[line], is_report=True)
