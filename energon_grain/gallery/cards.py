# SPDX-License-Identifier: Apache-2.0
"""The samples of a preview: choosing and reading them, and facts about their datasets."""

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
from energon_grain.gallery.counts import ClassCounts, count_classes
from energon_grain.gallery.decoded import with_fields
from energon_grain.gallery.fields import Shown, show_part
from energon_grain.mixture_shares import leaf_draws
from energon_grain.prepare.summary import count_in_bins, edges_of_bins
from energon_grain.samples.sample import Fields
from energon_grain.sources.source import Source
from energon_grain.stream.cursor import Cursor
from energon_grain.stream.run import SampleRecord
from energon_grain.stream.spec import LeafSpec, StreamSpec
from energon_grain.stream.stream import Stream

_SAMPLE_BYTES = 1 << 30
_READ_BYTES = 1 << 26
_COUNTED = 1 << 18
"""Samples of a dataset to count in histograms; of a larger one, evenly spread samples."""
_BINS = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A sample to show.

    Attributes:
        dataset: Number of its dataset.
        key: Its key.
        shard: Its file.
        place: Its index in the dataset, or its item in the step.
        fields: Its parts.
    """

    dataset: int
    key: str
    shard: str
    place: str
    fields: tuple[Shown, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """A dataset of a preview.

    Attributes:
        label: A short label that distinguishes it from the others.
        path: Its folder.
        samples: Number of samples, after subset and excludes.
        share: Its share of the stream, at the step or at the beginning.
        count: Number of its samples in the step, or in the preview.
    """

    label: str
    path: str
    samples: int
    share: float
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A histogram of a column: a number per sample that is known without reading samples.

    Attributes:
        name: Name of the column, such as `bytes`.
        edges: (n + 1,) edges of the bins, linear or logarithmic.
        counts: (datasets, n) counts.
        of: Number of samples that were counted, if not all; else None.
    """

    name: str
    edges: npt.NDArray[np.float64]
    counts: npt.NDArray[np.int64]
    of: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """The contents of a preview.

    Attributes:
        title: Name of the dataset.
        subtitle: How many samples are shown, and of what.
        step: The step; None: samples are evenly spread over the datasets.
        cards: The samples.
        datasets: Their datasets.
        columns: Histograms.
        classes: Counts by class, of the samples of the step or of evenly spread samples; None: no class part.
        heading: Heading of the samples where others are beside them; "": the step.
    """

    title: str
    subtitle: str
    step: int | None
    cards: tuple[Card, ...]
    datasets: tuple[Dataset, ...]
    columns: tuple[Column, ...]
    classes: ClassCounts | None
    heading: str = ""


def gather_named(
    spec: StreamSpec, chosen: Sequence[tuple[int, int, str]], *, title: str, heading: str, most_bytes: int
) -> Contents:
    """Read given samples of a compiled dataset: number of the leaf, index in it, and a text about each.

    The other arguments and errors are those of `gather`; `heading` names these samples where others are beside them.
    """
    of_leaf = {number: [index for leaf, index, _ in chosen if leaf == number] for number in range(len(spec.leaves))}
    return Contents(
        title=title,
        subtitle=f"{len(chosen):,} {heading.lower()}",
        step=None,
        cards=tuple(_cards(spec.leaves, chosen, most_bytes)),
        datasets=tuple(_datasets(spec, _shares(spec, 0), of_leaf)),
        columns=(),
        classes=None,
        heading=heading,
    )


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
    """Choose samples, read them, and collect facts about their datasets.

    Args:
        dataset: A node of datasets.
        title: Its name.
        samples: Number of samples, divided evenly among the datasets, at least one each; of a step, the first ones.
        step: The global batch to show; None: samples evenly spread over the datasets.
        state: A place of the run to begin at, if a step is computed from the steps before.
        most_bytes: Largest file to keep for a page.
        columns: Whether to count columns.
        encoded: Whether to compute the batch of the step, and add the output of hooks to its samples.

    Raises:
        EnergonGrainError: The dataset cannot be opened, or the step is unknown or cannot be computed.
    """
    with Stream.of(dataset, num_workers=0) as stream:
        spec = stream.spec
        shares = _shares(spec, 0)
        records: Sequence[SampleRecord] = ()
        if step is None:
            every = chosen = _evenly(spec, samples)
            total = sum(len(leaf.leaf.source) for leaf in spec.leaves)
            subtitle = f"{len(chosen):,} of {total:,} samples"
        else:
            records, every, how = _of_step(stream, step, state)
            chosen = every[:samples]
            title = f"{title}, step {step:,}"
            subtitle = f"{len(chosen):,} of {len(records):,} samples of the step{how}"
            shares = _shares(spec, records[0].item if records else 0)
        of_leaf = {number: [index for leaf, index, _ in every if leaf == number] for number in range(len(spec.leaves))}
        cards = tuple(_cards(spec.leaves, chosen, most_bytes))
        if encoded and step is not None:
            batches = [_delivered(stream, host, step, state) for host in range(stream.share.hosts)]
            cards = tuple(_with_encoded(cards, records, batches))
        return Contents(
            title=title,
            subtitle=subtitle,
            step=step,
            cards=cards,
            datasets=tuple(_datasets(spec, shares, of_leaf)),
            columns=tuple(_columns([leaf.leaf.source for leaf in spec.leaves])) if columns else (),
            classes=count_classes([leaf.leaf for leaf in spec.leaves], None if step is None else of_leaf),
        )


def _datasets(spec: StreamSpec, shares: Sequence[float], chosen: Mapping[int, Sequence[int]]) -> Iterator[Dataset]:
    for number, (label, leaf) in enumerate(zip(_labels(spec.leaves), spec.leaves, strict=True)):
        samples, count = len(leaf.leaf.source), len(chosen[number])
        yield Dataset(label=label, path=leaf.leaf.path, samples=samples, share=shares[number], count=count)


def _of_step(stream: Stream, step: int, state: Cursor | None) -> tuple[Sequence[SampleRecord], Sequence[_Chosen], str]:
    """The samples of a step as records and as choices, and how they were found, if that took reading."""
    if state is not None:
        stream.restore(state)
    found = stream.which(step)
    chosen = [_of_record(stream.spec, record, stream.share.hosts) for record in found]
    return found, chosen, ", computed from the steps before" if found.read else ""


def _delivered(stream: Stream, host: int, step: int, state: Cursor | None) -> Any:
    """The batch that a host delivers in a step, computed again."""
    config = replace(stream.config, rank=host, num_workers=0)
    with Stream(stream.spec, config) as own:
        if state is not None:
            own.restore(state)
        elif stream.spec.program is None:
            own.seek(step)
        while True:
            begun = own.place.step
            for batch in own:  # until the end of a pass
                if own.place.step > step:
                    return batch
            if own.place.step == begun:
                raise StateError(f"step {step}: the run ends before it, at step {begun}")


def _with_encoded(cards: Sequence[Card], records: Sequence[SampleRecord], batches: Sequence[Any]) -> Iterator[Card]:
    """Cards with the output of hooks: the k-th item of a host gets the k-th row of its batch."""
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
    """The fields of a batch, except those whose names begin with `__`."""
    if isinstance(batch, Fields):
        batch = batch.as_dict()
    if not isinstance(batch, Mapping):
        return [("", batch)]
    return [each for each in cast("Mapping[str, Any]", batch).items() if not each[0].startswith("__")]


def _rows(value: Any) -> int:
    """The number of rows of a value; -1: it has no rows."""
    shape = getattr(value, "shape", None)
    return (shape[0] if shape else -1) if shape is not None else len(value) if isinstance(value, list | tuple) else -1


def _shares(spec: StreamSpec, item: int) -> list[float]:
    """The share of each leaf, at an item."""
    sizes = [len(leaf.leaf.source) for leaf in spec.leaves]
    first, stop = (item, item + 1) if spec.endless else (0, sum(sizes))
    before, behind = (leaf_draws(spec.mixture, sizes, at) for at in (first, stop))
    counts = [late - early for early, late in zip(before, behind, strict=True)]
    return [count / (sum(counts) or 1) for count in counts]


_Chosen = tuple[int, int, str]
"""Number of the leaf, index in it, and a text that describes the place."""


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
    """Divide samples as equally as sizes allow, at least 1 each."""
    counts = [0] * len(sizes)
    left = samples
    for rank, number in enumerate(sorted(range(len(sizes)), key=sizes.__getitem__)):
        counts[number] = max(1, min(sizes[number], left // (len(sizes) - rank)))
        left -= counts[number]
    return counts


def _of_record(spec: StreamSpec, record: SampleRecord, hosts: int) -> _Chosen:
    """The leaf of a record. If a dataset is used several times, a leaf that has the sample at this index."""
    for number, leaf in enumerate(spec.leaves):
        source = leaf.leaf.source
        if str(source.path) == str(record.dataset) and record.index < len(source):
            place = source.locate(record.index)
            if (place.shard, place.key) == (record.shard, record.key):
                host = f", host {record.host}" if hosts > 1 else ""
                return number, record.index, f"item {record.item:,}{host}, epoch {record.epoch:,}"
    raise AssertionError(record)


def _cards(leaves: Sequence[LeafSpec], chosen: Sequence[_Chosen], most_bytes: int) -> Iterator[Card]:
    """Each chosen sample in order. Consecutive samples of a leaf are read together, up to `_READ_BYTES`."""
    for number, group in itertools.groupby(chosen, operator.itemgetter(0)):
        source, run = leaves[number].leaf.source, [*group]
        ends = np.cumsum([0, *source.sizes(np.array([index for _, index, _ in run], np.int64)).tolist()])
        begin = 0
        while begin < len(run):
            stop = max(begin + 1, int(np.searchsorted(ends, ends[begin] + _READ_BYTES, side="right")) - 1)
            if ends[stop] - ends[begin] > _SAMPLE_BYTES:
                error = ConfigError(f"the sample has more than {_SAMPLE_BYTES} bytes and was not read")
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
    for place, (_, _, described) in enumerate(run):
        parts = list(_parts(source, batch, place))
        shown = [show_part(name, value, most_bytes=most_bytes) for name, value in parts]
        fields = tuple(with_fields(shown, dict(parts), leaf.leaf.field_map, leaf.leaf.decoder))
        yield Card(dataset=number, key=batch.keys[place], shard=batch.shards[place], place=described, fields=fields)


def _parts(source: Any, batch: Any, place: int) -> Iterable[tuple[str, Any]]:
    """The parts of a sample; for a row of a join, the parts of all members."""
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
    _, index, described = chosen
    try:
        place = source.locate(index)
        key, shard = place.key, place.shard
    except (EnergonGrainError, OSError):
        key, shard = f"sample {index}", ""
    failed = Shown(kind="failed", name="", note="not read", text=f"{type(error).__name__}: {error}")
    return Card(dataset=number, key=key, shard=shard, place=described, fields=(failed,))


def _labels(leaves: Sequence[LeafSpec]) -> list[str]:
    """The name of each leaf, or its path with split part and subset; equal labels are numbered."""
    labels = ["/".join(filter(None, leaf.key[1:-1])) for leaf in leaves]
    return [
        f"{label} #{labels[: number + 1].count(label)}" if labels.count(label) > 1 else label
        for number, label in enumerate(labels)
    ]


def _columns(sources: Sequence[Source]) -> Iterator[Column]:
    """Histograms of the columns of prepared datasets, and of the sizes of samples of others."""
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
    """The values of each column of a source at these samples, without missing ones."""
    found: dict[str, npt.NDArray[np.float64]] = {}
    for name in source.columns:
        values = source.column(name, indices).astype(np.float64)
        has_none = values == 0 if f".{SIZES}." in f".{name}" else ~np.isfinite(values)
        found[name] = values[~has_none]
    return found


def _counted(name: str, values: Sequence[npt.NDArray[np.float64]], of: int | None) -> Column:
    """A histogram of the values of each dataset, with common bins; logarithmic if values span orders of magnitude."""
    together = np.concatenate(values)
    low, high = float(together.min()), float(together.max())
    bins = min(_BINS, max(8, 2 * round(math.sqrt(len(together)))))
    edges = edges_of_bins(low, high, bins)
    return Column(name=name, edges=edges, counts=np.array([count_in_bins(each, edges) for each in values]), of=of)
