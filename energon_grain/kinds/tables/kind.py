# SPDX-License-Identifier: Apache-2.0
"""Files of tables as kinds of data: Parquet, Arrow and MDS."""

from __future__ import annotations

from functools import partial

from energon_grain.kinds.tables.arrow_files import ArrowFiles
from energon_grain.kinds.tables.field import read_field
from energon_grain.kinds.tables.files import TableFiles
from energon_grain.kinds.tables.mds_compression import COMPRESSED_ENDINGS
from energon_grain.kinds.tables.mds_files import INDEX_JSON, MdsFiles
from energon_grain.kinds.tables.parquet import ParquetFiles
from energon_grain.kinds.tables.source import TableFileStore, TableRows
from energon_grain.kinds.tables.summary import summarize_tables
from energon_grain.sources.kinds import Described, Kind, Listing, Opened
from energon_grain.sources.source import PartFilter

_MDS_SHARDS = (".mds", *COMPRESSED_ENDINGS)


def _open(location: str, parts: PartFilter, *, files: type[TableFiles]) -> Opened:
    rows = TableRows(files(location), parts=parts)
    return Opened(rows=rows, part_names=rows.all_part_names, has_lists=bool(rows.lists), endings=rows.endings)


def _store(location: str, *, files: type[TableFiles]) -> TableFileStore:
    return TableFileStore(files(location))


def _summary(location: str, *, files: type[TableFiles]) -> Described:
    return summarize_tables(files(location))


def _names_index(location: str) -> bool:
    return location.endswith(f"/{INDEX_JSON}") or location == INDEX_JSON


def _holds_mds(at: Listing) -> bool:
    return INDEX_JSON in at.names and at.has(_MDS_SHARDS)


PARQUET = Kind(
    name="parquet",
    described="a Parquet file",
    open=partial(_open, files=ParquetFiles),
    endings=(".parquet",),
    holds=lambda at: at.has((".parquet",)),
    files="Parquet files",
    pattern="**/*.parquet",
    store=partial(_store, files=ParquetFiles),
    read_field=read_field,
    summary=partial(_summary, files=ParquetFiles),
)
ARROW = Kind(
    name="arrow",
    described="an Arrow file",
    open=partial(_open, files=ArrowFiles),
    endings=(".arrow", ".feather"),
    holds=lambda at: at.has((".arrow", ".feather")),
    files="Arrow files",
    pattern="**/*.arrow",
    store=partial(_store, files=ArrowFiles),
    summary=partial(_summary, files=ArrowFiles),
)
MDS = Kind(
    name="mds",
    described="an MDS dataset",
    open=partial(_open, files=MdsFiles),
    endings=(INDEX_JSON, *_MDS_SHARDS),
    named=_names_index,
    holds=_holds_mds,
    files="MDS shards",
    pattern=INDEX_JSON,
    store=partial(_store, files=MdsFiles),
    summary=partial(_summary, files=MdsFiles),
)
