# SPDX-License-Identifier: Apache-2.0
"""Which samples are shown, read and taken apart; and what is known of the datasets that they are of."""

from __future__ import annotations

import itertools
import math
import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError, EnergonGrainError, StateError
from energon_grain.formats.columns import SIZES
from energon_grain.gallery.fields import Shown, show_part
from energon_grain.prepare.summary import count_in_bins, edges_of_bins
from energon_grain.samples.sample import Fields
from energon_grain.sources.source import Source
from energon_grain.stream.cursor import Cursor
from energon_grain.stream.run import SampleRecord
from energon_grain.stream.spec import LeafSpec, StreamSpec, leaf_draws
from energon_grain.stream.stream import Stream

_SAMPLE_BYTES = 1 << 30
_READ_BYTES = 1 << 26
_COUNTED = 1 << 18
"""Samples of a dataset whose sizes are looked up for its histograms; of more, so many, evenly spread."""
_BINS = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A sample that is shown.

    Attributes:
        dataset: Number of its dataset.
        key: In the dataset.
        shard: Its file.
        place: Which sample of its dataset it is, or which item of a step.
        fields: Its parts.
    """

    dataset: int
    key: str
    shard: str
    place: str
    fields: tuple[Shown, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """A dataset of which samples are shown.

    Attributes:
        label: As short as tells it from the others.
        path: Its folder.
        samples: How many it has, after subset and excludes.
        share: Of the stream that it gets, at the step or at the beginning.
    """

    label: str
    path: str
    samples: int
    share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A number that is known of samples without reading them, counted.

    Attributes:
        name: As `bytes`.
        edges: (n + 1,) of the bins, evenly spread or each as many times the one before.
        counts: (datasets, n).
        of: How many samples were looked up, where these are not all.
    """

    name: str
    edges: npt.NDArray[np.float64]
    counts: npt.NDArray[np.int64]
    of: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """What is shown."""

    title: str
    subtitle: str
    cards: tuple[Card, ...]
    datasets: tuple[Dataset, ...]
    columns: tuple[Column, ...]


def gather(
    dataset: Any,
    *,
    title: str,
    samples: int,
    step: int | None,
    state: Cursor | None,
    most_bytes: int,
    columns: bool,
    encoded: bool = False,
) -> Contents:
    """Choose samples, read them, and say what is known besides.

    Args:
        dataset: A node of datasets.
        title: What to call it.
        samples: How many to show, dealt evenly to the datasets, at least one each; of a step, its first ones.
        step: Show the samples of this global batch; None: evenly spread ones of all.
        state: A place of the run to begin at, where a step takes making those before again.
        most_bytes: A file is kept for a page up to this size.
        columns: Whether to count columns.
        encoded: Whether to make the step too, and to show beside its samples what hooks made of them.

    Raises:
        EnergonGrainError: The dataset cannot be opened, or the step is not known or cannot be made.
    """
    with Stream.of(dataset, num_workers=0) as stream:
        spec = stream.spec
        shares = _shares(spec, 0)
        records: Sequence[SampleRecord] = ()
        if step is None:
            chosen = _evenly(spec, samples)
            total = sum(len(leaf.leaf.source) for leaf in spec.leaves)
            subtitle = f"{len(chosen):,} of {total:,} samples"
        else:
            records, chosen, how = _of_step(stream, step, state, samples)
            title = f"{title}, step {step:,}"
            subtitle = f"{len(chosen):,} of {len(records):,} samples of the step{how}"
            shares = _shares(spec, records[0].item if records else 0)
        cards = tuple(_cards(spec.leaves, chosen, most_bytes))
        if encoded and step is not None:
            batches = [_delivered(stream, host, step, state) for host in range(stream.share.hosts)]
            cards = tuple(_with_encoded(cards, records, batches))
        return Contents(
            title=title,
            subtitle=subtitle,
            cards=cards,
            datasets=tuple(
                Dataset(label=label, path=leaf.leaf.path, samples=len(leaf.leaf.source), share=share)
                for label, leaf, share in zip(_labels(spec.leaves), spec.leaves, shares, strict=True)
            ),
            columns=tuple(_columns([leaf.leaf.source for leaf in spec.leaves])) if columns else (),
        )


def _of_step(
    stream: Stream, step: int, state: Cursor | None, samples: int
) -> tuple[Sequence[SampleRecord], Sequence[_Chosen], str]:
    """The samples of a step, the first of them, and how they are known, where that took time."""
    if state is not None:
        stream.restore(state)
    found = stream.which(step)
    chosen = [_of_record(stream.spec, record, stream.share.hosts) for record in found[:samples]]
    return found, chosen, ", known by making the steps before again" if found.read else ""


def _delivered(stream: Stream, host: int, step: int, state: Cursor | None) -> Any:
    """What a host delivers in a step, made again."""
    config = replace(stream.config, rank=host, num_workers=0)
    with Stream(stream.spec, config) as own:
        if state is not None:
            own.restore(state)
        elif stream.spec.program is None:
            own.seek(step)
        while True:
            begun = own.place.step
            for batch in own:  # up to the end of a pass
                if own.place.step > step:
                    return batch
            if own.place.step == begun:
                raise StateError(f"step {step}: the run ends before it, at step {begun}")


def _with_encoded(cards: Sequence[Card], records: Sequence[SampleRecord], batches: Sequence[Any]) -> Iterator[Card]:
    """Cards with what the model saw: of a host's k-th item the k-th row of its batch, the rest with its first one."""
    items = [sorted({record.item for record in records if record.host == host}) for host in range(len(batches))]
    shown: set[tuple[int, int]] = set()
    for card, record in zip(cards, records, strict=False):
        own, batch = items[record.host], batches[record.host]
        row = own.index(record.item)
        fields: list[Shown] = []
        for name, value in _entries(batch) if (record.host, row) not in shown else ():
            if _rows(value) == len(own):
                fields.append(show_part(f"encoded {name}".rstrip(), value[row], most_bytes=0))
            elif row == 0:
                fields.append(show_part(f"batch {name}".rstrip(), value, most_bytes=0))
        shown.add((record.host, row))
        yield replace(card, fields=(*card.fields, *fields))


def _entries(batch: Any) -> Iterable[tuple[str, Any]]:
    """The fields of a batch, but for what they are known by."""
    if isinstance(batch, Fields):
        batch = batch.as_dict()
    if not isinstance(batch, Mapping):
        return [("", batch)]
    return [each for each in cast("Mapping[str, Any]", batch).items() if not each[0].startswith("__")]


def _rows(value: Any) -> int:
    """How many rows a value has; -1: it is none that has some."""
    shape = getattr(value, "shape", None)
    return (shape[0] if shape else -1) if shape is not None else len(value) if isinstance(value, list | tuple) else -1


def _shares(spec: StreamSpec, item: int) -> list[float]:
    """Of each leaf, from an item on: what a schedule says then."""
    sizes = [len(leaf.leaf.source) for leaf in spec.leaves]
    first, stop = (item, item + 1) if spec.endless else (0, sum(sizes))
    before, behind = (leaf_draws(spec.mixture, sizes, at) for at in (first, stop))
    counts = [late - early for early, late in zip(before, behind, strict=True)]
    return [count / (sum(counts) or 1) for count in counts]


_Chosen = tuple[int, int, str]
"""Leaf, index in it, and what to say of the place."""


def _evenly(spec: StreamSpec, samples: int) -> list[_Chosen]:
    """Evenly spread samples of each leaf."""
    chosen: list[_Chosen] = []
    sizes = [len(leaf.leaf.source) for leaf in spec.leaves]
    counts = _dealt(sizes, samples)
    for number, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        spread = np.unique(np.linspace(0, size - 1, count).astype(np.int64)).tolist()
        chosen += [(number, index, f"index {index:,} of {size:,}") for index in spread]
    return chosen


def _dealt(sizes: Sequence[int], samples: int) -> list[int]:
    """As equal parts as sizes allow, at least 1 each."""
    counts = [0] * len(sizes)
    left = samples
    for rank, number in enumerate(sorted(range(len(sizes)), key=sizes.__getitem__)):
        counts[number] = max(1, min(sizes[number], left // (len(sizes) - rank)))
        left -= counts[number]
    return counts


def _of_record(spec: StreamSpec, record: SampleRecord, hosts: int) -> _Chosen:
    """The leaf that a record is of: where one dataset is there several times, one that has the sample at this index."""
    for number, leaf in enumerate(spec.leaves):
        source = leaf.leaf.source
        if str(source.path) == str(record.dataset) and record.index < len(source):
            place = source.locate(record.index)
            if (place.shard, place.key) == (record.shard, record.key):
                host = f", host {record.host}" if hosts > 1 else ""
                return number, record.index, f"item {record.item:,}{host}, epoch {record.epoch:,}"
    raise AssertionError(record)


def _cards(leaves: Sequence[LeafSpec], chosen: Sequence[_Chosen], most_bytes: int) -> Iterator[Card]:
    """Each chosen sample in its order; they are read in runs of one leaf, of so many bytes at once."""
    for number, group in itertools.groupby(chosen, operator.itemgetter(0)):
        source, run = leaves[number].leaf.source, [*group]
        ends = np.cumsum([0, *source.sizes(np.array([index for _, index, _ in run], np.int64)).tolist()])
        begin = 0
        while begin < len(run):
            stop = max(begin + 1, int(np.searchsorted(ends, ends[begin] + _READ_BYTES, side="right")) - 1)
            if ends[stop] - ends[begin] > _SAMPLE_BYTES:
                error = ConfigError(f"the sample has more than {_SAMPLE_BYTES} bytes, and was not read")
                yield _unread(number, source, run[begin], error)
            else:
                yield from _read(number, leaves[number], run[begin:stop], most_bytes)
            begin = stop


def _read(number: int, leaf: LeafSpec, run: Sequence[_Chosen], most_bytes: int) -> Iterator[Card]:
    source = leaf.leaf.source
    try:
        batch = source.read(np.array([index for _, index, _ in run], np.int64))
    except (EnergonGrainError, OSError) as error:
        if len(run) == 1:
            yield _unread(number, source, run[0], error)
        else:
            for each in run:
                yield from _read(number, leaf, [each], most_bytes)
        return
    becomes = _fields_of(leaf)
    for place, (_, _, said) in enumerate(run):
        shown = (
            replace(show_part(name, value, most_bytes=most_bytes), field=becomes.get(name, ""))
            for name, value in _parts(source, batch, place)
        )
        key, shard = batch.keys[place], batch.shards[place]
        yield Card(dataset=number, key=key, shard=shard, place=said, fields=tuple(shown))


def _fields_of(leaf: LeafSpec) -> dict[str, str]:
    """What each part of a leaf's samples becomes: fields, and of what is inside of it which."""
    found: dict[str, list[str]] = {}
    for name, options in ({} if leaf.leaf.field_map is None else leaf.leaf.field_map.fields).items():
        for option in options:
            found.setdefault(option.part, []).append(f"{name} = {option}" if option.access else name)
    return {part: ", ".join(names) for part, names in found.items()}


def _parts(source: Any, batch: Any, place: int) -> Iterable[tuple[str, Any]]:
    """Parts of a sample; of a row of a join, those of all members that have one for it."""
    if not hasattr(batch, "members"):
        yield from batch[place].parts.items()
        return
    for number, (member, found) in enumerate(zip(source.members, batch.members, strict=True)):
        at = np.flatnonzero(found.places == place)
        if len(at) and found.batch is not None:
            prefix = os.path.basename(str(member.path).rstrip("/"))
            for name, value in found.batch[int(at[0])].parts.items():
                yield (f"{prefix}/{name}".rstrip("/") if number else name), value


def _unread(number: int, source: Source, chosen: _Chosen, error: Exception) -> Card:
    _, index, said = chosen
    try:
        place = source.locate(index)
        key, shard = place.key, place.shard
    except (EnergonGrainError, OSError):
        key, shard = f"sample {index}", ""
    failed = Shown(kind="failed", name="", note="not read", text=f"{type(error).__name__}: {error}")
    return Card(dataset=number, key=key, shard=shard, place=said, fields=(failed,))


def _labels(leaves: Sequence[LeafSpec]) -> list[str]:
    """Each leaf's name, or its path as written with split part and subset; numbered where that comes again."""
    labels = ["/".join(filter(None, leaf.key[1:-1])) for leaf in leaves]
    return [
        f"{label} #{labels[: number + 1].count(label)}" if labels.count(label) > 1 else label
        for number, label in enumerate(labels)
    ]


def _columns(sources: Sequence[Source]) -> Iterator[Column]:
    """What is known of samples without reading them: the columns of prepared datasets, of others their sizes."""
    known: list[dict[str, npt.NDArray[np.float64]]] = []
    looked_up = 0
    for source in sources:
        size = len(source)
        indices = np.unique(np.linspace(0, size - 1, min(size, _COUNTED)).astype(np.int64))
        looked_up += len(indices)
        known.append(_known(source, indices))
    of = looked_up if looked_up < sum(map(len, sources)) else None
    none = np.zeros(0)
    for name in dict.fromkeys(name for each in known for name in each):
        values = [each.get(name, none) for each in known]
        if any(map(len, values)):
            yield _counted(name, values, of)


def _known(source: Source, indices: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.float64]]:
    """Each column of a source, at these samples, as far as it has a value there."""
    found: dict[str, npt.NDArray[np.float64]] = {}
    for name in source.columns:
        values = source.column(name, indices).astype(np.float64)
        has_none = values == 0 if f".{SIZES}." in f".{name}" else ~np.isfinite(values)
        found[name] = values[~has_none]
    return found


def _counted(name: str, values: Sequence[npt.NDArray[np.float64]], of: int | None) -> Column:
    """A histogram of values of each dataset, in bins for all: by orders of magnitude where they span many."""
    together = np.concatenate(values)
    low, high = float(together.min()), float(together.max())
    bins = min(_BINS, max(8, 2 * round(math.sqrt(len(together)))))
    edges = edges_of_bins(low, high, bins)
    return Column(name=name, edges=edges, counts=np.array([count_in_bins(each, edges) for each in values]), of=of)
