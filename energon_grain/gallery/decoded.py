# SPDX-License-Identifier: Apache-2.0
"""The fields of a sample as a loader decodes them, to show beside the parts that they come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from energon_grain.gallery.fields import Shown, show_part
from energon_grain.transforms.decode import SampleDecoder
from energon_grain.transforms.field_map import FieldMap, Option

_Decoded = tuple[Option, Shown]


def with_fields(
    shown: Sequence[Shown], parts: Mapping[str, Any], field_map: FieldMap | None, decoder: SampleDecoder | None
) -> Iterator[Shown]:
    """Name the fields that each part fills, and add their decoded values.

    Pictures are described by type and shape, because the part shows them. A text that equals its part is left out.
    Videos and audio are not decoded again.

    Args:
        shown: The parts of a sample.
        parts: Their bytes or values, as they are read.
        field_map: The field map of the dataset; None: parts do not fill fields.
        decoder: The decoder of the dataset; None: parts stay bytes.
    """
    if field_map is None:
        yield from shown
        return
    fields = field_map.fields
    left_out = {part.name for part in shown if part.kind in ("film", "sound", "failed")}
    decodable = {name: value for name, value in parts.items() if name not in left_out}
    decoded = list(filter(None, (_decoded(name, options, decodable, decoder) for name, options in fields.items())))
    for part in shown:
        values = tuple(value for option, value in decoded if _belongs(option, value, part))
        yield replace(part, field=", ".join(_named(part.name, fields)), decoded=values)


def _belongs(option: Option, value: Shown, part: Shown) -> bool:
    """Whether a value comes from a part, and shows more than the part."""
    return option.part == part.name and (value.kind in ("picture", "failed") or value.text != part.text)


def _named(part: str, fields: Mapping[str, Sequence[Option]]) -> Iterator[str]:
    """The fields that a part can fill, with the expressions for values inside it."""
    for name, options in fields.items():
        for option in options:
            if option.part == part:
                yield f"{name} = {option}" if option.access else name


def _decoded(
    name: str, options: Sequence[Option], parts: Mapping[str, Any], decoder: SampleDecoder | None
) -> _Decoded | None:
    """The value of a field, and the option that it comes from: the first that exists. None: no part has it."""
    failed: _Decoded | None = None
    for option in options:
        if option.part in parts:
            try:
                value = option.follow({option.part: _decoded_part(option.part, parts[option.part], decoder)})
            except Exception as error:  # of a decoder, which can raise anything on bad data
                reason = Shown(kind="failed", name=name, note="", text=f"{type(error).__name__}: {error}")
                failed = failed or (option, reason)
                continue
            return option, _shown(name, value)
    return failed


def _decoded_part(part: str, raw: Any, decoder: SampleDecoder | None) -> Any:
    codec = decoder.decoder_for(part) if decoder is not None and isinstance(raw, bytes) else None
    return raw if codec is None else codec(raw)


def _shown(name: str, value: Any) -> Shown:
    shown = show_part(name, value, most_bytes=0)
    if shown.kind == "picture":
        shown = replace(shown, images=())
    return shown if shown.note else replace(shown, note=type(value).__name__)
