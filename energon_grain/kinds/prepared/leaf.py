# SPDX-License-Identifier: Apache-2.0
"""Opens leaves of prepared shards: their configuration files determine the samples and how they are made."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from energon_grain.datasets.leaf import Content, LeafDataset, SampleDefinition, refuse_configuration
from energon_grain.errors import ConfigError, SplitError
from energon_grain.formats.columns import ColumnFolder
from energon_grain.formats.data_folder import DataFolder, naming, open_folder
from energon_grain.formats.dataset_config import DatasetConfig, read_dataset_config
from energon_grain.formats.nv_meta import INFO_JSON, INFO_YAML, META_FOLDER, DatasetInfo, read_info
from energon_grain.formats.splits import SplitConfig, read_split_config, select_shards
from energon_grain.kinds.prepared.definition import define_samples
from energon_grain.prepare.containers import open_prepared
from energon_grain.samplers.subset import Subset
from energon_grain.sources.source import Source

_logger = logging.getLogger("energon_grain")
WHOLE_PART = "train"
"""The split part of unprepared shards without a ratio."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Chosen:
    """The selection from a folder of shards, as its three small files specify.

    Attributes:
        info: `.info.json`.
        config: `dataset.yaml`.
        options: Shards, range and excludes, as options of sources; empty: all samples.
        unmatched_excludes: Excludes that name no shard.
        where: The split part, for messages.
    """

    info: DatasetInfo
    config: DatasetConfig
    options: Mapping[str, Any]
    unmatched_excludes: tuple[str, ...]
    where: str


def _stamps(files: list[str]) -> list[Any]:
    """Values that change when one of these files does."""
    found: list[Any] = []
    for file in files:
        try:
            status = os.stat(file)
        except OSError:
            found.append(None)
        else:
            found.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return found


def _checked_choice(leaf: LeafDataset) -> _Chosen | None:
    """The selection from `check`; None without one, or if the files have changed."""
    held = leaf.checked.take()
    return held[0] if held is not None and _stamps(held[1]) == held[2] else None


class PreparedLeaves:
    """The `Opener` of prepared shards."""

    def subflavors(self, leaf: LeafDataset) -> Mapping[str, Any]:
        return read_dataset_config(open_folder(leaf.path).local, leaf.dataset_config).subflavors

    def open(self, leaf: LeafDataset, whole: bool) -> Content:
        folder = self._folder(leaf)
        with naming(folder):
            chosen = (None if whole else _checked_choice(leaf)) or self._choose(folder, leaf, whole)
            definition = _define(leaf, chosen.config)
            field_map = definition.field_map
            decoder = None if definition.load is not None else definition.decoder
            source = open_prepared(
                folder,
                info=chosen.info,
                lazy=getattr(decoder, "lazy_from", None),
                parts=definition.part_filter if field_map is None else frozenset(field_map.parts),
                **chosen.options,
            )
            unmatched = (*chosen.unmatched_excludes, *source.unmatched_excludes)
            if unmatched:
                message = "%s: %d excludes match no sample or shard, for example %r"
                _logger.warning(message, chosen.where, len(unmatched), unmatched[0])
            if field_map is not None:
                field_map.check_parts(source.all_part_names, where=f"{folder.location}: field_map")
        config = chosen.config
        overrides = {name: getattr(config, name) for name in config.overrides}
        return Content(source=source, definition=definition, subflavors=config.subflavors, overrides=overrides)

    def check(self, leaf: LeafDataset, whole: bool) -> None:
        folder = open_folder(leaf.path)
        meta = os.path.join(folder.local, META_FOLDER, "")
        names = (INFO_JSON, INFO_YAML, leaf.dataset_config, leaf.split_config or "split.yaml", "split.json")
        files = [meta + name for name in names]
        stamps = _stamps(files)
        chosen = self._choose(folder, leaf, whole)
        _define(leaf, chosen.config)
        if leaf.where is not None:
            ColumnFolder.of(folder).refuse_unknown(leaf.where.names)
        if not whole and not chosen.config.split_config:
            leaf.checked.put((chosen, files, stamps))

    def _folder(self, leaf: LeafDataset) -> DataFolder:
        return open_folder(leaf.path)

    def _choose(self, folder: DataFolder, leaf: LeafDataset, whole: bool) -> _Chosen:
        info = read_info(folder.local)
        if leaf.definition is None:
            config = read_dataset_config(folder.local, leaf.dataset_config)
        else:
            config = DatasetConfig(kind="crude")
        if whole:
            return _Chosen(info=info, config=config, options={}, unmatched_excludes=(), where=folder.location)
        part = config.split_part or leaf.split_part
        where = f"split part {part!r} of {folder.location if folder.bare is None else folder.bare}"
        total, options, unmatched = self._part(folder, leaf, info, config, part)
        subset = Subset.parse(config.subset) if "subset" in config.overrides and config.subset else leaf.subset
        start, stop = (0, total) if subset is None else subset.resolve(total, of=where)
        options = {**options, "start": start, "stop": stop, "where": leaf.where}
        return _Chosen(info=info, config=config, options=options, unmatched_excludes=unmatched, where=where)

    def _part(
        self, folder: DataFolder, leaf: LeafDataset, info: DatasetInfo, config: DatasetConfig, part: str
    ) -> tuple[int, Mapping[str, Any], tuple[str, ...]]:
        """Samples of a split part, the source options that select them, and excludes that name no shard."""
        if leaf.split_ratio is not None:
            raise ConfigError(f"{leaf.path}: is prepared, so its split file defines the parts; remove split_ratio")
        name = leaf.split_config or config.split_config or "split.yaml"
        selected = select_shards(self._split(folder, name, info), part, info)
        options = {"shards": selected.shards, "excluded": selected.excluded_samples}
        return sum(info.shard_counts[shard] for shard in selected.shards), options, selected.unmatched_excludes

    def _split(self, folder: DataFolder, name: str, info: DatasetInfo) -> SplitConfig:
        return read_split_config(folder.local, name, shards=info.shard_counts)

    def with_fewer_excludes(self, leaf: LeafDataset, samples: int) -> Source | None:
        """The source of a leaf as it was before the last entries of `exclude` were added to its split file.

        Args:
            leaf: The leaf.
            samples: Number of its samples.

        Returns:
            None if no number of entries gives that number of samples.
        """
        low, high = 0, 1 << 62
        while low < high:
            earlier = _EarlierLeaves((low + high) // 2 if high < 1 << 62 else 0)
            source = earlier.open(leaf, False).source
            if len(source) == samples:
                return source
            high = min(high, earlier.most)
            if len(source) > samples:
                low = earlier.excludes + 1
            else:
                high = earlier.excludes
        return None


@dataclass(slots=True)
class _EarlierLeaves(PreparedLeaves):
    """Opens leaves with the first excludes of their split file alone.

    Attributes:
        excludes: How many of them.
        most: How many the file has.
    """

    excludes: int
    most: int = 0

    def _split(self, folder: DataFolder, name: str, info: DatasetInfo) -> SplitConfig:
        config = PreparedLeaves._split(self, folder, name, info)
        self.most = len(config.exclude)
        return replace(config, exclude=config.exclude[: self.excludes])


@dataclass(frozen=True, slots=True)
class BareLeaves(PreparedLeaves):
    """The `Opener` of unprepared shards: they have no configuration, and are split by a ratio only.

    Attributes:
        shards: Their name in messages.
        find: Raises if the shards that a path names do not exist.
        open_folder: Indexes them if necessary, and returns the location of the index.
    """

    shards: str
    find: Callable[[str], object]
    open_folder: Callable[[str], DataFolder]

    def subflavors(self, leaf: LeafDataset) -> Mapping[str, Any]:
        return {}

    def check(self, leaf: LeafDataset, whole: bool) -> None:
        self._runs(leaf, {})
        self.find(leaf.path)

    def _folder(self, leaf: LeafDataset) -> DataFolder:
        return self.open_folder(leaf.path)

    def _part(
        self, folder: DataFolder, leaf: LeafDataset, info: DatasetInfo, config: DatasetConfig, part: str
    ) -> tuple[int, Mapping[str, Any], tuple[str, ...]]:
        counts = info.shard_counts
        runs = self._runs(leaf, counts)
        total = sum(counts.values()) if runs is None else sum(end - begin for begin, end in runs)
        return total, {"shards": tuple(counts), "runs": runs}, ()

    def _runs(self, leaf: LeafDataset, counts: Mapping[str, int]) -> list[tuple[int, int]] | None:
        """Runs of each shard in the split part; None: whole shards."""
        refuse_configuration(leaf, leaf.kind_there.described)
        if leaf.split_ratio is not None:
            return leaf.split_ratio.runs(leaf.split_part, counts)
        if leaf.split_part == WHOLE_PART:
            return None
        raise SplitError(
            f"{leaf.path}: unprepared {self.shards} have a single split part, {WHOLE_PART!r}, with all samples, and "
            f"no {leaf.split_part!r}. Use split_part={WHOLE_PART!r}, or split them by "
            f"split_ratio='{WHOLE_PART}:0.9,{leaf.split_part}:0.1', the same wherever a part of them is used"
        )


def _define(leaf: LeafDataset, config: DatasetConfig) -> SampleDefinition:
    return define_samples(leaf, config) if leaf.definition is None else leaf.definition
