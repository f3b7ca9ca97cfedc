# SPDX-License-Identifier: Apache-2.0
"""The commands for runs that change: `checkpoint amend` changes a saved state, `checkpoint history` lists changes."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from energon_grain.amendments.exclusions import holes_of
from energon_grain.amendments.history import Amendment, Amendments
from energon_grain.amendments.mixture import names_by_number, units
from energon_grain.atomic_files import atomic_write_bytes
from energon_grain.cli.checkpoint import amendments_of, read_saved
from energon_grain.cli.run import Run, of_a_run
from energon_grain.cli.terminal import Answer, significant
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.stream import Stream
from energon_grain.words import counted, table

_CONDITION = re.compile(r"[<>=!()]| (not|in) ")
_State = Annotated[Path, typer.Argument(help="Saved state of all hosts, in any form that `checkpoint info` reads.")]


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetChange:
    """One dataset of an amended run.

    Attributes:
        name: Its key in the run.
        samples: Number of its samples; None: unknown.
        drawn: About how many samples of it were drawn until the change; None: items consist of several samples.
        passes: The same in passes over the dataset.
        share_before: Its share of the mixture before the change; None: there is no blend by weights.
        share_after: Its share from the change on.
        never_seen: About how many samples are never drawn if it stays removed; None: unknown, or it is not removed.
        excluded: Number of samples that the change excludes.
        excluded_used: How many of these were used in the pass that was in progress; None: unknown, or none is excluded.
    """

    name: str
    samples: int | None
    drawn: float | None
    passes: float | None
    share_before: float | None
    share_after: float | None
    never_seen: float | None
    excluded: int
    excluded_used: int | None


@of_a_run
def amend(
    state: _State,
    run: Run,
    to: Annotated[
        str,
        typer.Option(
            help="The metadataset, opened with the options of the run below: the changed one, or that of the run with "
            "--weights or --exclude."
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="JSON file for the new state. Default: only print the change.")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="New weights of all datasets of a blend, by name: `books=0.2,code=0.8`; 0 pauses one."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            help="Samples to exclude: a file with a key, or dataset, tab and key per line; `dataset=key,key` "
            "(keys, `shard/key` or shards); or `dataset=condition` over columns, such as `books=quality < 0.2`. "
            "May be repeated."
        ),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Samples in the batch of one host. Default: a size that fits the state.")
    ] = None,
    held: Annotated[
        Literal["deliver", "drop"], typer.Option(help="Samples of removed datasets that packs or groups hold.")
    ] = "deliver",
    note: Annotated[str, typer.Option(help="Reason for the change, shown by `checkpoint history`.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the change without writing the new state.")] = False,
) -> Answer:
    """Change a saved run: weights, datasets that were added or removed, samples to exclude.

    Every remaining dataset continues exactly where it is. The changed run restores the new state without further
    options. A change that cannot be made is an error that names the reason.

    Examples:
        energon-grain checkpoint amend state.json --to mix.yaml --dry-run
        energon-grain checkpoint amend state.json --to mix.yaml --exclude bad.txt
    """
    cursor = read_saved(state)
    known = 0 if "amendments" not in cursor else len(amendments_of(cursor).steps)
    size = batch_size or cursor["history"][-1][4] // run.world_size or 1
    with Stream.of(run.dataset(to, batch_size=size)) as stream:
        stream.restore(cursor, on_change="amend", note=note, held=held)
        _amend(stream, weights, exclude or [], note, held)
        amended, amendments = stream.cursor(with_manifest=True), stream.amendments
        if amendments is None or len(amendments.steps) == known:
            return Answer(document=[], lines=["Nothing changes: the state has the mixture of the configuration."])
        changes = _changes(amendments, stream.spec, known)
    lines = [f"From {_begin(amendments.log[-1])} on:", "", *_lines(changes)]
    if output is not None and not dry_run:
        atomic_write_bytes(output, json.dumps(amended).encode())
        lines.append(f"Wrote {output}.")
    return Answer(document=changes, lines=lines)


def history(state: _State) -> Answer:
    """List the changes of the mixture in a run: step, shares before and after, and the reason.

    Examples:
        energon-grain checkpoint history state.json
        energon-grain checkpoint history state.json --json
    """
    cursor = read_saved(state)
    log = amendments_of(cursor).log if "amendments" in cursor else []
    lines = [f"{counted(len(log), 'change')} of the mixture until step {cursor['step']:,}."]
    for each in log:
        note = f": {each.note}" if each.note else ""
        rows = [("", "before", "after")]
        rows += [
            (_short(name), f"{each.before.get(name, 0):.2%}", f"{share:.2%}") for name, share in each.after.items()
        ]
        later = "" if each.from_step == each.step else f", in effect from {_begin(each)} on"
        lines += ["", f"Step {each.step:,} (item {each.item:,}){later}{note}"]
        lines += table(rows, "<>>") if len(rows) > 1 else []
        lines += [f"Excluded: {counted(count, 'sample')} of {_short(name)}." for name, count in each.excluded.items()]
    return Answer(document=[asdict(each) for each in log], lines=lines)


def _amend(
    stream: Stream, weights: str | None, exclude: list[str], note: str, held: Literal["deliver", "drop"]
) -> None:
    """Make the changes that options name."""
    if weights or exclude:
        stream.amend(weights=_weights(weights), exclude=_exclude(exclude), note=note, held=held)


def _begin(change: Amendment) -> str:
    """Where a change takes effect."""
    if change.from_step == change.step:
        return f"step {change.step:,} (item {change.item:,})"
    epoch = "the next window" if change.from_epoch is None else f"epoch {change.from_epoch:,}"
    return epoch if change.from_step is None else f"{epoch} (step {change.from_step:,})"


def _weights(text: str | None) -> dict[str, str] | None:
    """`books=0.2,code=0.8` as a mapping. Raises BadParameter."""
    if text is None:
        return None
    pairs = [each.rpartition("=") for each in text.split(",")]
    if not all(name and weight for name, _, weight in pairs):
        raise typer.BadParameter(f"--weights {text}: expected name=weight,name=weight")
    return {name.strip(): weight.strip() for name, _, weight in pairs}


def _exclude(texts: list[str]) -> Any:
    """Options as the argument of `amend`: a file, or keys or conditions by dataset. Raises BadParameter."""
    found: dict[str, Any] = {}
    files: list[str] = []
    for text in texts:
        dataset, equals, what = text.partition("=")
        if not equals or Path(text).exists():
            files.append(text)
            continue
        if dataset in found:
            raise typer.BadParameter(f"--exclude {text}: {dataset} is given twice; put its keys into one option")
        found[dataset] = what if _CONDITION.search(what) else [key.strip() for key in what.split(",")]
    if files and (found or len(files) > 1):
        raise typer.BadParameter("--exclude takes one file, or samples of datasets; make one file of them")
    return files[0] if files else found or None


def _changes(amendments: Amendments, spec: StreamSpec, known: int) -> list[DatasetChange]:
    """The effect of amendments, from number `known` on, on each dataset."""
    first, change = amendments.log[known], amendments.log[-1]
    excluded, used = _excluded(amendments, spec, known)
    countable = spec.program is None and not spec.makers and amendments.counts_samples
    drawn = amendments.drawn(amendments.positions[-1]) if countable else {}
    sizes = {"/".join(leaf.key): len(leaf.leaf.source) for leaf in spec.leaves}
    for unit in units(amendments.mixture):  # removed ones too
        sizes |= {name: row["samples"] for name, row in zip(unit.leaves, unit.rows or (), strict=False) if row}
    names = {**change.after, **dict.fromkeys(excluded, None)}
    return [
        _change_of(
            name,
            sizes.get(name),
            drawn.get(name),
            first.before.get(name, 0.0 if change.after else None),
            change.after.get(name),
            excluded.get(name, 0),
            used.get(name),
        )
        for name in names
    ]


def _excluded(amendments: Amendments, spec: StreamSpec, known: int) -> tuple[dict[str, int], dict[str, int]]:
    """Samples of each dataset that amendments from number `known` on exclude, and how many the pass had used."""
    counts: dict[str, int] = {}
    used: dict[str, int] = {}
    holes = holes_of(spec)
    numbers = {name: number for number, name in names_by_number(units(amendments.mixture)).items()}
    places: dict[str, int] = {}
    for entry in amendments.exclusions.entries:
        place = places[entry.leaf] = places.get(entry.leaf, -1) + 1
        if entry.amendment < known:
            continue
        counts[entry.leaf] = counts.get(entry.leaf, 0) + entry.count
        if numbers[entry.leaf] in holes:
            used[entry.leaf] = used.get(entry.leaf, 0) + holes[numbers[entry.leaf]].used(place)
    return counts, used


def _change_of(
    name: str,
    samples: int | None,
    drawn: float | None,
    before: float | None,
    after: float | None,
    excluded: int,
    used: int | None,
) -> DatasetChange:
    passes = never_seen = None
    if samples is not None and drawn is not None:
        passes = drawn / max(1, samples)
        never_seen = max(0.0, samples - drawn) if before and after == 0 else None
    return DatasetChange(
        name=name,
        samples=samples,
        drawn=drawn,
        passes=passes,
        share_before=before,
        share_after=after,
        never_seen=never_seen,
        excluded=excluded,
        excluded_used=used,
    )


def _lines(changes: list[DatasetChange]) -> list[str]:
    head = ("dataset", "samples", "drawn", "passes", "before", "after", "left undrawn", "excluded", "used in this pass")
    rows = [head, *map(_row, changes)]
    used = [place for place in range(len(rows[0])) if place < 7 or any(row[place] for row in rows[1:])]
    return table([tuple(row[place] for place in used) for row in rows], "<" + ">" * (len(used) - 1))


def _row(each: DatasetChange) -> tuple[str, ...]:
    used = "?" if each.excluded_used is None else f"{each.excluded_used:,}"
    return (
        _short(each.name),
        _or("?", each.samples, "{:,}"),
        _or("?", each.drawn, "{:,.0f}"),
        "?" if each.passes is None else significant(each.passes),
        _or("", each.share_before, "{:.2%}"),
        _or("", each.share_after, "{:.2%}"),
        _or("", each.never_seen, "{:,.0f}"),
        f"{each.excluded:,}" if each.excluded else "",
        used if each.excluded else "",
    )


def _or(unknown: str, number: float | None, form: str) -> str:
    return unknown if number is None else form.format(number)


def _short(name: str) -> str:
    """A key without kind and number."""
    return name.partition("/")[2].rpartition("/")[0].rstrip("/") or name
