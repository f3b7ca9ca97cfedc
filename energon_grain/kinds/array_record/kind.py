# SPDX-License-Identifier: Apache-2.0
"""ArrayRecord files as a kind of data."""

from __future__ import annotations

from energon_grain.formats.data_folder import open_folder
from energon_grain.formats.nv_meta import holds_records
from energon_grain.kinds.array_record.container import Records
from energon_grain.kinds.array_record.source import ArrayRecordFileStore, ArrayRecordSource
from energon_grain.kinds.prepared.kind import local_folder
from energon_grain.kinds.prepared.leaf import PreparedLeaves
from energon_grain.prepare.containers import Shards
from energon_grain.sources.kinds import Kind

ARRAY_RECORDS = Records()
ARRAY_RECORD = Kind(
    name="array_record",
    described="a prepared dataset of ArrayRecord files",
    marked=lambda at: holds_records(at.once(local_folder)),
    shards=Shards(container=ARRAY_RECORDS, source=ArrayRecordSource),
    opener=PreparedLeaves(),
    is_configured=True,
    hint=ARRAY_RECORDS.hint,
    store=lambda location: ArrayRecordFileStore(open_folder(location)),
)
