"""ArrayRecord files as a kind of data."""

from __future__ import annotations

from energon_grain.formats.data_folder import open_folder
from energon_grain.formats.nv_meta import holds_records
from energon_grain.sources.array_record import ArrayRecordFileStore
from energon_grain.sources.kinds import Kind

ARRAY_RECORD = Kind(
    name="array_record",
    described="a prepared dataset of ArrayRecord files",
    marked=lambda at: holds_records(at.local),
    has_shards=True,
    is_configured=True,
    container="array-record",
    store=lambda location: ArrayRecordFileStore(open_folder(location)),
)
