"""A glance at the first samples of a shard: their parts, and their JSON cut to a readable length."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from energon_grain.formats.array_record_encoding import RecordEncoding, record_decoder
from energon_grain.formats.array_record_ranges import open_records
from energon_grain.formats.tar.scan import ShardScan
from energon_grain.formats.tar.walk import TarBytes

_LIST_ITEMS = 3
_TEXT_LENGTH = 40
_JSON_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplePreview:
    """What one sample consists of.

    Attributes:
        key: Its key.
        parts: Its parts and their sizes in bytes, in the order of the shard.
        json_text: Its `json` part, shortened and indented; None without one that can be read.
    """

    key: str
    parts: dict[str, int]
    json_text: str | None


def preview_samples(
    path: str, scan: ShardScan, count: int = 2, *, records: RecordEncoding | None = None
) -> list[SamplePreview]:
    """Look at the first `count` samples of the shard at a path or URL: of a tar, or of records in this encoding."""
    previews: list[SamplePreview] = []
    for sample in range(min(count, len(scan))):
        rows = range(int(scan.part_start[sample]), int(scan.part_start[sample + 1]))
        parts = {scan.part_names[int(scan.part_name[row])]: int(scan.part_size[row]) for row in rows}
        json_text = None
        if parts.get("json", _JSON_BYTES + 1) <= _JSON_BYTES:
            json_text = _pretty(_json_part(path, scan, rows) if records is None else _json_of(path, records, sample))
        previews.append(SamplePreview(key=scan.key(sample), parts=parts, json_text=json_text))
    return previews


def _json_part(path: str, scan: ShardScan, rows: range) -> bytes:
    row = next(row for row in reversed(rows) if scan.part_names[int(scan.part_name[row])] == "json")
    with TarBytes(path) as tar:
        return tar.read(int(scan.part_offset[row]), int(scan.part_size[row]))


def _json_of(path: str, encoding: RecordEncoding, record: int) -> object:
    _, parts = record_decoder(encoding)(open_records(path).read([record])[0])
    return parts["json"]


def shorten(value: Any) -> Any:
    """Cut lists to three items and strings to forty characters, everywhere in a JSON value."""
    if isinstance(value, dict):
        return {key: shorten(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shorten(item) for item in value[:_LIST_ITEMS]] + ["…"] * (len(value) > _LIST_ITEMS)
    if isinstance(value, str) and len(value) > _TEXT_LENGTH:
        return value[:_TEXT_LENGTH] + "…"
    return value


def _pretty(data: object) -> str | None:
    if not isinstance(data, bytes):
        return None
    try:
        return json.dumps(shorten(json.loads(data)), indent=2, ensure_ascii=False)
    except ValueError:
        return None
