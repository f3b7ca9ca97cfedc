"""ArrayRecord files as a kind of data."""

from __future__ import annotations

from energon_grain.formats.data_folder import open_folder
from energon_grain.formats.nv_meta import RECORDS_JSON, holds_records
from energon_grain.kinds.array_record.source import ArrayRecordFileStore, ArrayRecordSource
from energon_grain.kinds.prepared.kind import local_folder
from energon_grain.kinds.prepared.leaf import PreparedLeaves
from energon_grain.prepare.containers import Container, Shards
from energon_grain.sources.kinds import Kind

ARRAY_RECORDS = Container(name="array-record", file="ArrayRecord file", marker=RECORDS_JSON, source=ArrayRecordSource)
ARRAY_RECORD = Kind(
    name="array_record",
    described="a prepared dataset of ArrayRecord files",
    marked=lambda at: holds_records(at.once(local_folder)),
    shards=Shards(container=ARRAY_RECORDS),
    opener=PreparedLeaves(),
    is_configured=True,
    store=lambda location: ArrayRecordFileStore(open_folder(location)),
)
