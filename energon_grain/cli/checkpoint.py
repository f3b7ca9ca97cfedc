# SPDX-License-Identifier: Apache-2.0
"""The commands for saved states and steps: `checkpoint info` shows a state, `which` lists the samples of a step."""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from energon_grain.amendments.history import Amendments
from energon_grain.cli.plot import count_leaves
from energon_grain.cli.run import Run, of_a_run
from energon_grain.cli.terminal import Answer, DataPath, significant
from energon_grain.errors import ConfigError, StateError
from energon_grain.loader.checkpoint_file import FILE_NAME, GRAIN_FILE, read_state
from energon_grain.mixture_shares import leaf_draws, pass_length
from energon_grain.samplers.share_tree import RUN
from energon_grain.sources.kinds import holds_plain_bytes
from energon_grain.stream.cursor import check_cursor, differences, from_cursor, merge_cursors, saved_manifest
from energon_grain.stream.passes import Share
from energon_grain.stream.state import Rounds, unpack_integers, walk
from energon_grain.stream.stream import Stream
from energon_grain.words import counted, table

if TYPE_CHECKING:
    from energon_grain.stream.cursor import Cursor
    from energon_grain.stream.run import SampleRecord
    from energon_grain.stream.spec import StreamSpec

_DEPTH = 3
"""Depth of the folders of a checkpoint: steps, and items of a step."""
_MOST_DEPTH = 8
"""Largest depth of nested dictionaries in a checkpoint in which states are searched."""
_MOST_BYTES = 1 << 30
"""Largest JSON file: a file of samples or weights, given by mistake, is refused without reading all of it."""
_DISTRIBUTED = ".metadata"
"""Last file that `torch.distributed.checkpoint` writes: the file and offset of each value."""
_ORBAX_JSON = "metadata"
"""Name of an item that Orbax saved as JSON."""
_MOST_STATE_BYTES = 64 << 20
"""Largest value of a distributed checkpoint that can be a state of a loader."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeafState:
    """The progress of a run in one dataset.

    Attributes:
        name: Its key in the run.
        samples: Number of its samples when the state was saved.
        share: Its share of the samples drawn so far.
        draws: About how many of its samples were drawn; None: items consist of several samples, which can only be
            counted with the data.
        epochs: The same in passes over the dataset.
    """

    name: str
    samples: int
    share: float | None
    draws: float | None
    epochs: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class StateInfo:
    """The contents of a saved state.

    Attributes:
        place: The file, and the place in it.
        version: Version of the state format.
        step: Steps delivered since the beginning of the run.
        pass_number: Pass of the next step.
        pass_step: Steps delivered in this pass.
        item: Items of all hosts delivered in this pass.
        ended: Whether the pass is over.
        batches: (first step, items of all hosts in a step) for each change of the batch size.
        host: The host that saved it; None: it holds the states of all hosts.
        hosts: Number of hosts; 1 if it holds the states of all hosts.
        lanes: Number of lanes.
        dropped: Samples dropped in this pass; None if lanes have their own states, which do not count drops.
        held: Number of lanes with their own states.
        skipped: (first step, steps) of skipped ranges.
        fits_hosts: Numbers of hosts that it restores on; None: any.
        seed: Seed of the run; None: the state has no manifest, so all following fields are unknown.
        seed_offset: Seed offset of the run.
        endless: Whether the run has no passes.
        leaves: The datasets in the order of the run.
        differences: Differences from the dataset that was compared; None: nothing was compared.
    """

    place: str
    version: int
    step: int
    pass_number: int
    pass_step: int
    item: int
    ended: bool
    batches: list[tuple[int, int]]
    host: int | None
    hosts: int
    lanes: int
    dropped: int | None
    held: int
    skipped: list[tuple[int, int]]
    fits_hosts: list[int] | None
    seed: int | None
    seed_offset: int | None
    endless: bool | None
    leaves: list[LeafState]
    differences: list[str] | None


@of_a_run
def checkpoint_info(
    file: Annotated[
        Path,
        typer.Argument(
            help="A state as JSON, a list of those of all hosts, a folder that Orbax, Grain or "
            "torch.distributed.checkpoint wrote, or a file of torch.save with a state in it."
        ),
    ],
    run: Run,
    dataset: Annotated[
        str | None,
        typer.Option(help="Dataset or metadataset to compare with, opened with the options of the run below."),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Samples in the batch of one host. Default: a size that fits the state.")
    ] = None,
) -> Answer:
    """Show the contents of a saved state: progress, samples drawn from each dataset, and what it restores on.

    With --dataset, also list the differences between the dataset now and when the state was saved. Exit code 1: there
    are differences.

    Examples:
        energon-grain checkpoint info state.json
        energon-grain checkpoint info state.json --dataset captions
    """
    states = saved_states(file)
    if dataset is None and run != Run():
        raise ConfigError("options of the run are for a comparison: add --dataset")
    spec = None if dataset is None else _compiled(run, dataset, states, batch_size)
    found = [_info(place, cursor, spec) for place, cursor in states.items()]
    lines = [line for info in found for line in ("", *_lines(info))][1:]
    differs = any(info.differences for info in found)
    return Answer(document=found[0] if len(found) == 1 else found, lines=lines, failed=differs)


def _compiled(run: Run, dataset: str, states: Mapping[str, Cursor], batch_size: int | None) -> StreamSpec:
    sizes = {cursor["history"][-1][4] for cursor in states.values()}
    return run.dataset(dataset, batch_size=batch_size or (min(sizes) // run.world_size or 1)).compiled()


def read_saved(file: Path) -> Cursor:
    """Read the state in a file or folder. Raises StateError if there is none or several, or if it is damaged."""
    states = saved_states(file)
    if len(states) > 1:
        raise StateError(f"{file} contains several states: {', '.join(states)}; pass one of these files")
    [cursor] = states.values()
    return cursor


def saved_states(file: Path) -> dict[str, Cursor]:
    """Read the states in a file or folder, by place. States of several hosts are merged.

    Raises StateError if there is none, or if one is damaged.
    """
    if not file.exists():
        raise StateError(f"{file}: there is no such file or folder")
    found = dict(_in_folder(file, _DEPTH) if file.is_dir() else _checked(_in_value(_loaded(file), str(file), 0)))
    if not found:
        raise StateError(
            f"{file} holds no state of a loader: expected a state of save_state_rank, save_state_global, state_dict or "
            f"a checkpoint handler of this library"
        )
    return found


def _checked(states: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Cursor]]:
    for place, value in states:
        try:
            yield place, merge_cursors(value) if isinstance(value, list) else check_cursor(value)
        except StateError as error:
            raise StateError(f"{place}: {error}") from error


def _in_folder(folder: Path, depth: int) -> Iterator[tuple[str, Cursor]]:
    entries = sorted(folder.iterdir())
    names = {entry.name for entry in entries}
    if FILE_NAME in names or any(map(GRAIN_FILE.fullmatch, names)):
        yield str(folder), read_state(folder)
        return
    if _DISTRIBUTED in names:
        yield from _checked(_in_value(_distributed(folder), str(folder), 1))
    elif (item := folder / _ORBAX_JSON).is_file():
        yield from _checked(_in_value(_loaded(item), str(item), 1))
    for entry in entries if depth else ():
        if entry.is_dir():
            yield from _in_folder(entry, depth - 1)


def _loaded(file: Path) -> Any:
    with file.open("rb") as opened:
        head = opened.read(2)
        opened.seek(0)
        if head in (b"PK", b"\x80\x02"):  # of torch.save: its zip format, and the one before
            return _of_torch(opened, str(file))
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES >> 30} GiB")
        return json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise StateError(f"{file}: expected a saved state as JSON, or a list of those of all hosts: {error}") from error


class _Anything(dict[Any, Any]):
    """Replaces any object of a pickle: does nothing, and holds the entries of a dictionary."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    def __call__(self, *_: Any, **__: Any) -> Any:
        return _Anything()

    def __setstate__(self, state: Any) -> None:
        vars(self).update(state if isinstance(state, dict) else {})

    def extend(self, _: Any) -> None:
        """Ignore the elements of a list."""


class _Inert(pickle.Unpickler):
    """Reads values of plain types. No class or function that a file names is imported or called."""

    def find_class(self, module: str, name: str, /) -> Any:
        return type(name, (_Anything,), {"__module__": module})

    def persistent_load(self, pid: Any, /) -> Any:
        return _Anything()


def _of_torch(file: Any, place: str) -> Any:
    """Read a file of `torch.save` without its tensors. Needs no torch, and runs no code of the file."""
    try:
        if not zipfile.is_zipfile(file):
            file.seek(0)
            plain = _Inert(file)
            return [plain.load() for _ in range(4)][3]  # after a magic number, a version and system info
        with zipfile.ZipFile(file) as archive:
            [name] = (name for name in archive.namelist() if name.rpartition("/")[2] == "data.pkl")
            if archive.getinfo(name).file_size > _MOST_BYTES:
                raise ValueError(f"it has more than {_MOST_BYTES >> 30} GiB besides its tensors")
            return _Inert(io.BytesIO(archive.read(name))).load()
    except Exception as error:  # a damaged pickle raises anything
        raise StateError(
            f"{place}: is damaged, or not a file of torch.save ({type(error).__name__}: {error}); save the loader's "
            f"state as JSON, or in its own file"
        ) from error


def _distributed(folder: Path) -> dict[Any, Any]:
    """Read the plain values of a `torch.distributed.checkpoint`. Needs no torch, and runs no code of the file."""
    try:
        with (folder / _DISTRIBUTED).open("rb") as opened:
            metadata = vars(_Inert(opened).load())
        found: dict[Any, Any] = {}
        for index, where in metadata["storage_data"].items():
            name, info = vars(index)["fqn"], vars(where)
            kind = type(metadata["state_dict_metadata"].get(name)).__name__
            if kind != "BytesStorageMetadata" or info["length"] > _MOST_STATE_BYTES:
                continue
            with (folder / Path(info["relative_path"]).name).open("rb") as opened:
                opened.seek(info["offset"])
                value = _of_torch(io.BytesIO(opened.read(info["length"])), f"{opened.name}: {name}")
            inner = found
            *path, last = (metadata.get("planner_data") or {}).get(name, (name,))
            for step in path:
                inner = inner.setdefault(step, {})
            inner[last] = value
    except StateError:
        raise
    except Exception as error:  # a damaged pickle raises anything
        raise StateError(
            f"{folder / _DISTRIBUTED}: is damaged, or not of torch.distributed.checkpoint ({type(error).__name__}: "
            f"{error}); give another checkpoint"
        ) from error
    return found


def _in_value(value: Any, place: str, depth: int) -> Iterator[tuple[str, Any]]:
    """States inside dictionaries, as in a checkpoint of a trainer, or as JSON text, as the torch adapter saves them."""
    if isinstance(value, list) and not depth:
        yield place, value
    elif isinstance(value, Mapping) and depth < _MOST_DEPTH:
        given = cast("Mapping[Any, Any]", value)
        if {"version", "fingerprint", "history"} <= given.keys() or (not depth and _is_flat(given)):  # may be damaged
            yield place, given
        else:
            for name, below in given.items():
                yield from _below(name, below, place, depth)


def _is_flat(value: Mapping[Any, Any]) -> bool:
    return "energon_grain" not in value and not any(isinstance(each, Mapping) for each in value.values())


def _below(name: Any, value: Any, place: str, depth: int) -> Iterator[tuple[str, Any]]:
    """States in an entry of a dictionary."""
    if name != "energon_grain" or not isinstance(value, str):
        yield from _in_value(value, f"{place}: {name}", depth + 1)
        return
    try:
        yield place, json.loads(value)
    except (ValueError, RecursionError) as error:
        raise StateError(f"{place}: the text under {name!r} is not JSON: {error}") from error


def _info(place: str, cursor: Cursor, spec: StreamSpec | None) -> StateInfo:
    host, hosts = cursor["host"]
    manifest = saved_manifest(cursor) or {}
    dropped = sum(unpack_integers(cursor["drops"])) if cursor["drops"] else 0
    compared = None if spec is None else differences(cursor, spec.fingerprint(), spec.manifest())
    return StateInfo(
        place=place,
        version=cursor["version"],
        step=cursor["step"],
        pass_number=cursor["pass"],
        pass_step=cursor["pass_step"],
        item=cursor["item"],
        ended=cursor["ended"],
        batches=[(segment[0], segment[4]) for segment in cursor["history"]],
        host=None if hosts == 1 else host,
        hosts=hosts,
        lanes=cursor["lanes"],
        dropped=None if cursor["held"] else dropped,
        held=cursor["lanes"] // hosts if cursor["held"] else 0,
        skipped=[(first, steps) for first, steps in cursor["skipped"]],
        fits_hosts=_fitting(cursor, dropped),
        seed=manifest.get("seed"),
        seed_offset=manifest.get("seed_offset"),
        endless=manifest.get("endless"),
        leaves=_leaves(cursor, manifest, dropped * hosts, spec if not compared else None),
        differences=compared,
    )


def _fitting(cursor: Cursor, dropped: int) -> list[int] | None:
    """Numbers of hosts that a state restores on; None: any number that divides its lanes."""
    _, hosts = cursor["host"]
    if not (dropped or cursor["held"]):
        return None
    return [hosts] if hosts > 1 else Share(0, 1, cursor["lanes"]).possible_hosts


def _leaves(cursor: Cursor, manifest: Mapping[str, Any], dropped: int, spec: StreamSpec | None) -> list[LeafState]:
    said: Mapping[str, Any] = manifest.get("leaves", {})
    leaves = sorted(said.items(), key=lambda entry: entry[1]["number"])
    if not leaves:
        return []
    sizes = [leaf["samples"] for _, leaf in leaves]
    before = _items_before(cursor)
    if not manifest["endless"]:
        before = min(before, cursor["pass"] * pass_length(manifest["mixture"], sizes))
    draws = _draws(cursor, manifest["mixture"], sizes, before + cursor["item"] + dropped, [name for name, _ in leaves])
    shares = _shares(draws)
    known: Sequence[float | None] = draws
    if cursor["held"]:  # items consist of several samples; the states of the lanes count those
        known = (None if spec is None else _drawn_by_lanes(cursor, spec)) or [None] * len(leaves)
    return [
        LeafState(name=name, samples=size, share=share, draws=drawn, epochs=None if drawn is None else drawn / size)
        for (name, _), size, share, drawn in zip(leaves, sizes, shares, known, strict=True)
    ]


def _draws(cursor: Cursor, mixture: Any, sizes: list[int], items: float, names: list[str]) -> Sequence[float]:
    """About how many samples of each leaf the first items of a run have."""
    amendments = amendments_of(cursor) if "amendments" in cursor else None
    if amendments is None or not amendments.counts_samples:
        return leaf_draws(mixture, sizes, items)
    drawn = amendments.drawn(int(items))
    return [drawn.get(name, 0.0) for name in names]


def amendments_of(cursor: Cursor) -> Amendments:
    """Read the changes of the mixture in a state that has some."""
    host, hosts = cursor["host"]
    return Amendments.of_texts(cursor["amendments"], Share(host, hosts, cursor["lanes"]), (host, hosts))


def _shares(draws: Sequence[float]) -> list[float | None]:
    total = sum(draws)
    return [count / total if total else None for count in draws]


def _items_before(cursor: Cursor) -> int:
    """Items in the passes before this one, as far as the history goes back."""
    first = cursor["step"] - cursor["pass_step"]
    edges = [*(segment[0] for segment in cursor["history"][1:]), first]
    found, step = 0, 0
    for (*_, size), stop in zip(cursor["history"], edges, strict=True):
        found += max(0, min(stop, first) - step) * size
        step = max(step, min(stop, first))
    return found


def _drawn_by_lanes(cursor: Cursor, spec: StreamSpec) -> list[float] | None:
    """Samples drawn from each leaf, as counted by the states of the lanes; None: it has those of one host only."""
    import numpy as np

    if cursor["host"][1] != 1 or spec.program is None:
        return None
    taken = [0.0] * len(spec.program.feeds)
    for state in from_cursor(cursor, Share(0, 1, spec.lanes), spec.program).lanes or ():
        for form, found in walk(spec.program.root.state_form, state, later=True):
            if isinstance(form, Rounds):
                pass_number, rounds = found
                taken[form.feed] += spec.program.feeds[form.feed].order.start(pass_number) / spec.lanes + rounds
    draws = [0.0] * len(spec.leaves)
    for feed, count in zip(spec.program.feeds, taken, strict=True):
        if count:
            edges = np.array([0, math.ceil(count)], np.int64)
            [counts] = count_leaves(feed.order, len(feed.leaf_sizes), edges, unit=RUN * spec.lanes)
            for number, own in zip(feed.leaves, (counts * (count / counts.sum())).tolist(), strict=True):
                draws[number] += own
    return draws


def _lines(info: StateInfo) -> list[str]:
    batches = ", ".join(
        f"{counted(size, 'item')}{f' from step {first:,} on' if len(info.batches) > 1 else ''}"
        for first, size in info.batches
    )
    where = "over" if info.ended else f"step {info.pass_step:,} of it"
    if info.endless:
        where = "endless"
    rows = [
        ("next step", f"{info.step:,}"),
        ("pass", f"{info.pass_number:,}, {where}; item {info.item:,}"),
        ("step size", f"{batches}, of all hosts together"),
        ("saved by", "all hosts" if info.host is None else f"host {info.host} of {info.hosts}, for its lanes only"),
        ("restores on", _hosts(info)),
        *_rows_of_some(info),
    ]
    lines = [f"{info.place}: a state, version {info.version}", *table(rows, "<<"), ""]
    if info.leaves:
        lines += _leaf_lines(info.leaves)
    else:
        lines.append(
            "It has no manifest, so datasets are unknown (get_state leaves out a long one; save_state_rank keeps it)."
        )
    if info.differences is not None:
        lines += ["", "It fits this dataset and these options." if not info.differences else "Differences:"]
        lines += [f"  {line}" for line in info.differences]
    return lines


def _rows_of_some(info: StateInfo) -> Iterator[tuple[str, str]]:
    """Rows that only some states have."""
    if info.dropped is not None:
        yield "dropped", counted(info.dropped, "sample") + (" in this pass" if not info.endless else "")
    if info.held:
        yield "lanes hold", "their own states (filters, groups, packs, generators); dropped samples are not counted"
    if info.skipped:
        jumps = ", ".join(f"{counted(steps, 'step')} from {first:,} on" for first, steps in info.skipped)
        yield "skipped", jumps
    if info.seed is not None:
        yield "seed", f"{info.seed}" + (f", offset {info.seed_offset}" if info.seed_offset else "")


def _hosts(info: StateInfo) -> str:
    if info.fits_hosts is None:
        return f"any number of hosts, with lanes={info.lanes}"
    if info.host is not None:
        return (
            f"host {info.host} of {info.hosts} only, with lanes={info.lanes}; the states of all hosts restore on others"
        )
    return f"{', '.join(map(str, info.fits_hosts))} hosts, with lanes={info.lanes}"


def _leaf_lines(leaves: Sequence[LeafState]) -> list[str]:
    rows = [("Datasets", "samples", "share so far", "drawn", "epochs")]
    for leaf in leaves:
        share = "" if leaf.share is None else f"{leaf.share:.2%}"
        drawn = "?" if leaf.draws is None else f"{leaf.draws:,.0f}"
        epochs = "?" if leaf.epochs is None else significant(leaf.epochs)
        name = leaf.name.partition("/")[2].rpartition("/")[0].rstrip("/")  # without kind and number
        rows.append((name, f"{leaf.samples:,}", share, drawn, epochs))
    lines = table(rows, "<>>>>")
    if any(leaf.draws is None for leaf in leaves):
        lines.append("Items consist of several samples: --dataset and the options of the run count those.")
    return lines


@of_a_run
def which(
    path: DataPath,
    run: Run,
    step: Annotated[int, typer.Option(min=0, help="The step: 0 is the first batch.")],
    batch_size: Annotated[int, typer.Option(min=1, help="Samples in the batch of one host.")],
    state: Annotated[
        Path | None,
        typer.Option(help="Saved state of all hosts to begin at, in any form that `checkpoint info` reads."),
    ] = None,
) -> Answer:
    """List shard, key and byte range of the samples of a global batch.

    Give the settings of the run. Usually this is arithmetic. If a task encoder packs, groups, filters or generates, the
    steps before this one are computed again, from the beginning or from a saved state. Without such a task encoder,
    dropped samples are known only from a state.

    In ArrayRecord files and arrays, byte ranges are positions in the uncompressed sequence of records or rows. In
    --json, `index` is the index after split part, subset and `where`.

    Examples:
        energon-grain which captions --step 3 --batch-size 16
        energon-grain which mix.yaml --step 3 --batch-size 16 --world-size 4 --json
    """
    saved = None if state is None else read_saved(state)
    with Stream.of(run.dataset(path, batch_size=batch_size)) as stream:
        if saved is not None:
            stream.restore(saved)
        records = stream.which(step)
    document = [{**asdict(record), "read": True} for record in records] if records.read else records
    lines = _lines_of_records(records)
    if records.read:
        lines.append("Computed by reading the samples of the steps before.")
    return Answer(document=document, lines=lines)


def _lines_of_records(records: list[SampleRecord]) -> list[str]:
    """A table. It names the datasets if there are several, without their common folder."""
    in_files = all(holds_plain_bytes(record.shard) for record in records)
    datasets = sorted({record.dataset for record in records})
    several = len(datasets) > 1
    common = os.path.commonprefix(datasets).rpartition("/")[0] if several else "".join(datasets)  # noqa: RUF071
    rows = [("item", "host", "epoch", "bytes" if in_files else "bytes, uncompressed", "sample")]
    for record in records:
        place = f"{record.dataset[len(common) :].lstrip('/')}/{record.shard}/{record.key}".lstrip("/")
        extent = f"{record.start}-{record.stop}"
        rows.append((f"{record.item}", f"{record.host}", f"{record.epoch}", extent, place))
    return [*([f"Below {common}/"] if several else []), *table(rows, ">>><<")]
