"""What sources of prepared datasets have in common: everything but reading."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack, cast

import numpy as np
import numpy.typing as npt

from energon_grain.errors import StaleIndexError
from energon_grain.formats.columnar import open_columnar
from energon_grain.formats.data_folder import DataFolder, open_folder
from energon_grain.formats.nv_meta import DatasetInfo
from energon_grain.sources.indexed_samples import IndexedSamples
from energon_grain.sources.part_filter import PartFilter
from energon_grain.sources.source import SampleLocation

Int64Array = npt.NDArray[np.int64]


class SourceOptions(TypedDict, total=False):
    """Arguments of sources. `WebDatasetSource` says what they mean."""

    shards: Sequence[str] | None
    parts: PartFilter
    start: int
    stop: int | None
    excluded: Sequence[tuple[str, str]]
    index_cache_dir: str | os.PathLike[str] | None
    info: DatasetInfo | None


class IndexedSource:
    """The samples of some shards of a prepared dataset, in the order of the shards. Thread-safe and picklable.

    Opening maps the columnar index and reads no shard, whatever their number.

    Arguments and what is raised: see `WebDatasetSource`.
    """

    def __init__(self, path: str | os.PathLike[str] | DataFolder, **options: Unpack[SourceOptions]) -> None:
        self._folder = open_folder(path)
        info = options.pop("info", None)
        self._options = options
        selected = dict(options)
        cache_dir: Any = selected.pop("index_cache_dir", None)
        self._index = open_columnar(self._folder, info=info, cache_dir=None if cache_dir is None else Path(cache_dir))
        self._samples = IndexedSamples(self._index, where=self._folder.location, **cast("Any", selected))

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (type(self), self._folder, self._options, self.content_id)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}, samples={len(self)}, content_id={self.content_id!r})"

    @property
    def path(self) -> str:
        """The dataset's folder, path or URL."""
        return self._folder.location

    @property
    def content_id(self) -> str:
        """Digest of the index and of which of its samples are served: the same for tars and ArrayRecord files."""
        return self._samples.content_id

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of the parts that a read may return."""
        return self._samples.part_names

    @property
    def all_part_names(self) -> tuple[str, ...]:
        """Names of the parts that samples of the dataset have, read or not."""
        return self._index.part_names

    @property
    def unmatched_excludes(self) -> tuple[str, ...]:
        """Samples that were to be left out and are not there, as `<shard>/<key>`."""
        return self._samples.unmatched_excludes

    def __len__(self) -> int:
        return len(self._samples)

    def sizes(self, indices: Int64Array) -> Int64Array:
        """(n,) bytes that reading each sample takes: its extent in the shard when all parts are read, else theirs."""
        return self._samples.sizes(indices)

    def locate(self, index: int) -> SampleLocation:
        """Where sample `index` lies. Raises IndexError when it is out of range.

        In ArrayRecord files offsets are as if the records lay one behind the other; those of parts are 0.
        """
        return self._samples.locate(index)

    def place_of(self, index: int) -> str:
        """The shard and the key of sample `index`."""
        return self._samples.place_of(index)


def _opened(kind: type[IndexedSource], folder: DataFolder, options: SourceOptions, content_id: str) -> IndexedSource:
    """The copy of a source, in another process: of the same samples, or an error."""
    source = kind(folder, **options)
    if source.content_id != content_id:
        raise StaleIndexError(
            f"{folder.location}: was prepared anew since this process's parent opened it, with other samples; begin "
            "anew, and prepare no dataset that is being read"
        )
    return source
