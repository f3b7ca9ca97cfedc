# SPDX-License-Identifier: Apache-2.0
"""The commands for the uses of samples: `when` lists those of some samples, `seen` counts those of all."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from energon_grain.cli.checkpoint import read_saved
from energon_grain.cli.run import Run, of_a_run
from energon_grain.cli.terminal import Answer, DataPath, significant
from energon_grain.history.seen_files import write_seen
from energon_grain.history.uses import Seen, SeenDataset, Use, Uses
from energon_grain.stream.extensions import SEEN, WHEN
from energon_grain.stream.stream import Stream
from energon_grain.words import counted, table

_State = Annotated[Path, typer.Argument(help="Saved state of all hosts, in any form that `checkpoint info` reads.")]
_BatchSize = Annotated[
    int | None, typer.Option(min=1, help="Samples in the batch of one host. Default: a size that fits the state.")
]


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenSummary:
    """The uses of one dataset by a run.

    Attributes:
        name: Full key of the leaf.
        samples: Number of samples.
        uses: Uses of all samples together.
        unused: Samples that were never used.
        least: Fewest uses of a sample.
        most: Most uses of a sample.
    """

    name: str
    samples: int
    uses: int
    unused: int
    least: int
    most: int

    @classmethod
    def of(cls, each: SeenDataset) -> SeenSummary:
        """The summary of the counts of a dataset."""
        return cls(
            name=each.name,
            samples=len(each.times),
            uses=each.uses,
            unused=each.unused,
            least=int(each.times.min()),
            most=int(each.times.max()),
        )


@of_a_run
def when(
    state: _State,
    path: DataPath,
    run: Run,
    keys: Annotated[list[str], typer.Argument(help="Keys of samples, or shard/key as `which` prints them.")],
    dataset: Annotated[
        str | None, typer.Option(help="Search only in this dataset: its path, the last part of that, or its name.")
    ] = None,
    batch_size: _BatchSize = None,
    replay: Annotated[
        bool, typer.Option("--replay", help="Find steps that depend on data by making the steps again.")
    ] = False,
) -> Answer:
    """List every use of samples by a run until a saved state, and the next one: step, host, place, pass.

    Give the settings of the run. Nothing is read except the index of keys. If samples were dropped, or are filtered,
    grouped or packed, the answer gives a range of steps, and the cost of --replay, which finds the step.

    Examples:
        energon-grain when state.json captions 000123
        energon-grain when state.json mix.yaml 000123 000456 --dataset captions --json
    """
    with _restored(state, path, run, batch_size) as stream:
        found: Uses = stream.ask(WHEN, keys, dataset=dataset, replay=replay)
    document = {"uses": [*found], "replay": found.replay, "replayed": found.replayed, "since": found.since}
    return Answer(document=document, lines=_lines_of_uses(found))


@of_a_run
def seen(
    state: _State,
    path: DataPath,
    run: Run,
    until: Annotated[
        int | None, typer.Option(min=0, help="Count the steps before this one, past or future. Default: the state's.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="File with a row per sample: .parquet, .csv or .npz. Default: only a table."
        ),
    ] = None,
    batch_size: _BatchSize = None,
) -> Answer:
    """Count how often a run used each sample of each dataset until a saved state, without reading data.

    Give the settings of the run. The table has a row per dataset, the file of --output a row per sample.

    Examples:
        energon-grain seen state.json captions -o seen.parquet
        energon-grain seen state.json mix.yaml --until 5000
    """
    with _restored(state, path, run, batch_size) as stream:
        found: Seen = stream.ask(SEEN, until)
        summary = [SeenSummary.of(each) for each in found]
        lines = [f"Uses by the steps before step {found.until:,}.", "", *_lines_of_seen(summary)]
        if not found.exact:
            lines.append("Samples that were read and dropped are counted, too.")
        if output is not None:
            write_seen(found, output)
            lines.append(f"Wrote {output}.")
    return Answer(document=[asdict(each) for each in summary], lines=lines)


def _restored(state: Path, path: str, run: Run, batch_size: int | None) -> Stream:
    """The stream of a run at a saved state."""
    cursor = read_saved(state)
    size = batch_size or cursor["history"][-1][4] // run.world_size or 1
    stream = Stream.of(run.dataset(path, batch_size=size))
    try:
        stream.restore(cursor)
    except BaseException:
        stream.close()
        raise
    return stream


def _lines_of_uses(uses: Uses) -> list[str]:
    several = len({(use.leaf, use.key) for use in uses}) > 1
    rows = [("step", "host", "place", "pass", "position", *(("sample",) if several else ()))]
    rows += [
        (_step(use), _number(use.host), _place(use), f"{use.epoch}", f"{use.position:,}", *_sample(use, several))
        for use in uses
    ]
    past = sum(use.past for use in uses)
    lines = [
        f"{counted(past, 'use')} until now; the next one is marked with >.",
        "",
        *table(rows, ">>>>><"[: len(rows[0])]),
    ]
    if uses.since:
        lines.append(f"The run had another configuration before step {uses.since:,}; these steps are not covered.")
    if uses.replay is not None and not uses.replayed:
        cost = uses.replay
        reads = f"reads about {cost.samples:,} samples" if cost.samples else "reads no samples"
        lines += [
            "Positions are exact; steps depend on data (drops, filters, groups or packs).",
            f"--replay finds the steps: it makes {cost.steps:,} steps again from step {cost.first:,}, and {reads}.",
        ]
    return lines


def _step(use: Use) -> str:
    mark = "" if use.past else "> "
    if use.between is None:
        return f"{mark}{use.step:,}"
    first, last = use.between
    return f"{mark}{first:,} to {last:,}" if last is not None else f"{mark}from {first:,}"


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value}"


def _place(use: Use) -> str:
    """The place in the batch, and in the pack."""
    return _number(use.place) if use.pack is None else f"{_number(use.place)}.{use.pack}"


def _sample(use: Use, several: bool) -> tuple[str, ...]:
    return (f"{use.dataset.rpartition('/')[2]}/{use.key}",) if several else ()


def _lines_of_seen(summary: list[SeenSummary]) -> list[str]:
    rows = [("dataset", "samples", "uses", "unused", "mean", "least", "most")]
    rows += [
        (
            each.name.partition("/")[2].rpartition("/")[0].rstrip("/") or each.name,
            f"{each.samples:,}",
            f"{each.uses:,}",
            f"{each.unused:,}",
            significant(each.uses / max(1, each.samples)),
            f"{each.least:,}",
            f"{each.most:,}",
        )
        for each in summary
    ]
    return table(rows, "<>>>>>>")
