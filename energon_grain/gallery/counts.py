# SPDX-License-Identifier: Apache-2.0
"""Counts of samples by class: of a step, or of evenly spread samples of the datasets."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.errors import EnergonGrainError
from energon_grain.formats.data_folder import open_folder
from energon_grain.formats.nv_meta import META_FOLDER
from energon_grain.prepare.media_folder import CLASSES_JSON
from energon_grain.sources.source import Source
from energon_grain.transforms.decode import SampleDecoder
from energon_grain.transforms.field_map import FieldMap

_CLASS_ENDINGS = ("cls", "cls2", "label", "class")
_LABEL = "label"
_MOST_COUNTED = 1024
"""Samples to count in a dataset; of a larger one, evenly spread samples."""
_MOST_BYTES = 1 << 26
"""Bytes to read for counting, from a source that cannot read the class part alone."""
_DECODER = SampleDecoder(image_decode="rgb8")


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassCounts:
    """Counts of the samples of one or several datasets.

    Attributes:
        classes: Number of samples by class, the most frequent class first.
        of: Number of samples that were counted.
    """

    classes: Mapping[str, int]
    of: int


def count_classes(leaves: Sequence[Any], samples: Mapping[int, Iterable[int]] | None) -> ClassCounts | None:
    """Count samples by class, if they have a class part: `cls`, or the part that fills the field `label`.

    Args:
        leaves: The datasets: each has `source`, `field_map` and `path`.
        samples: Indices of samples, by number of the dataset; None: evenly spread samples of all.

    Returns:
        None if no sample has a class part, or reading it would read too many bytes.
    """
    found: Counter[str] = Counter()
    for number, leaf in enumerate(leaves):
        source: Source = leaf.source
        part = _class_part(source, leaf.field_map)
        if part is None:
            continue
        if samples is None:
            indices = np.unique(np.linspace(0, len(source) - 1, min(len(source), _MOST_COUNTED)).astype(np.int64))
        else:
            indices = np.array(list(samples.get(number, ())), np.int64)
        names = _names(leaf.path)
        found.update(_label(value, names) for value in _values(source, part, indices))
    return ClassCounts(classes=dict(found.most_common()), of=sum(found.values())) if found else None


def _class_part(source: Source, field_map: FieldMap | None) -> str | None:
    """The part with the class of a sample; None: there is none."""
    if field_map is not None and _LABEL in field_map.fields:
        option = field_map.fields[_LABEL][0]
        return None if option.access else option.part
    names: Sequence[str] = getattr(source, "part_names", None) or getattr(source, "all_part_names", ())
    return next((name for name in names if name.rpartition(".")[2] in _CLASS_ENDINGS), None)


def _values(source: Source, part: str, indices: npt.NDArray[np.int64]) -> list[Any]:
    """The decoded class parts of samples; those that cannot be read or decoded are left out."""
    if not len(indices):
        return []
    alone = getattr(source, "with_parts", None)
    if alone is not None:
        source = alone(frozenset({part}))
    elif int(source.sizes(indices).sum()) > _MOST_BYTES:
        return []
    try:
        batch = source.read(indices)
    except (EnergonGrainError, OSError):
        return []
    column = () if hasattr(batch, "members") else batch.columns.get(part, ())
    return [value for raw in column if raw is not None for value in _decoded(part, raw)]


def _decoded(part: str, raw: Any) -> list[Any]:
    """A class part, decoded; empty if it does not decode: the card of its sample shows why."""
    codec = _DECODER.decoder_for(part)
    try:
        return [codec(raw) if codec and isinstance(raw, bytes) else raw]
    except Exception:  # of a decoder, which can raise anything on bad data
        return []


def _label(value: Any, names: Sequence[str]) -> str:
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, int) and 0 <= value < len(names):
        return names[value]
    return str(value)


def _names(path: str) -> Sequence[str]:
    """The names of the classes of a dataset that `convert` made of class folders."""
    try:
        with open(os.path.join(open_folder(path).local, META_FOLDER, CLASSES_JSON), encoding="utf-8") as file:
            return json.load(file)
    except (EnergonGrainError, OSError, ValueError):
        return ()
