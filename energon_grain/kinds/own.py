# SPDX-License-Identifier: Apache-2.0
"""Our kinds of data, which `energon_grain.sources.kinds` loads."""

from __future__ import annotations

from energon_grain.kinds.array_record.kind import ARRAY_RECORD
from energon_grain.kinds.arrays.kind import ARRAY
from energon_grain.kinds.jsonl.kind import JSONL
from energon_grain.kinds.prepared.kind import FILESYSTEM
from energon_grain.kinds.tables.kind import ARROW, MDS, PARQUET
from energon_grain.kinds.tar.kind import BARE_TARS, WEBDATASET
from energon_grain.kinds.tokens.kind import TOKENS

OWN = (FILESYSTEM, BARE_TARS, ARRAY_RECORD, WEBDATASET, ARRAY, JSONL, TOKENS, PARQUET, ARROW, MDS)
"""In the order in which they are tried."""
