# SPDX-License-Identifier: Apache-2.0
"""Metadata of an image, video or sound that is known without decoding it, and its JSON form in an index.

The types, fields and JSON are those of Megatron-Energon 7.3 and later: each side can read what the other wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from typing import Any, ClassVar, Self, cast

import msgspec

from energon_grain.errors import FormatError
from energon_grain.forms import Form
from energon_grain.samples.sample import edataclass


class MediaMetadataType(str, Enum):  # noqa: UP042 (its `str()` is that of Energon's)
    """Kinds of metadata, by the word used in the index."""

    AV = "av"
    IMAGE = "image"

    @classmethod
    def from_string(cls, value: str) -> MediaMetadataType:
        """The kind of a word.

        Raises:
            FormatError: The kind does not exist.
        """
        try:
            return cls(value)
        except ValueError:
            raise FormatError(
                f"metadata of a medium has type {value!r}; expected one of {', '.join(map(repr, _TYPES))}"
            ) from None


@edataclass
class MediaMetadataBase:
    """Base of all kinds of metadata: conversion to and from a mapping."""

    metadata_type: ClassVar[MediaMetadataType]

    def to_dict(self) -> dict[str, Any]:
        """The known fields. Unknown ones (None) are left out."""
        known = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in known.items() if value is not None}

    @classmethod
    def from_dict(cls, payload: Mapping[str, Any]) -> Self:
        """The metadata of a mapping. Fields of later versions are ignored.

        Raises:
            FormatError: A value has the wrong type, or a required one is missing.
        """
        try:
            return cast("Self", (_FORMS.get(cls) or Form(cls)).from_value(payload))
        except msgspec.ValidationError as error:
            raise FormatError(f"metadata of a medium does not fit {cls.__name__}: {error}: {dict(payload)}") from error


@edataclass
class AVMetadata(MediaMetadataBase):
    """Metadata of a video or a sound; None: absent, unknown, or not requested."""

    metadata_type: ClassVar[MediaMetadataType] = MediaMetadataType.AV

    video_duration: float | None = None
    """In seconds."""
    video_num_frames: int | None = None
    video_fps: float | None = None
    """Average number of frames per second."""
    video_width: int | None = None
    video_height: int | None = None
    audio_duration: float | None = None
    """In seconds."""
    audio_channels: int | None = None
    audio_sample_rate: int | None = None
    """Samples per second, in each channel."""
    audio_num_samples: int | None = None
    """In each channel."""


@edataclass
class ImageMetadata(MediaMetadataBase):
    """Metadata of an image file."""

    metadata_type: ClassVar[MediaMetadataType] = MediaMetadataType.IMAGE

    width: int
    height: int
    format: str
    """Pillow's name of the format, such as `JPEG`."""
    mode: str
    """Pillow's name of the colour mode, such as `RGB`."""


_FORMS: dict[Any, Form[Any]] = {kind: Form(kind) for kind in (AVMetadata, ImageMetadata)}
_FIELDS = Form(dict[str, Any])
_TYPES: dict[str, type[AVMetadata] | type[ImageMetadata]] = {"av": AVMetadata, "image": ImageMetadata}


def serialize_media_metadata(metadata: MediaMetadataBase) -> tuple[MediaMetadataType, str]:
    """The kind of metadata, and its JSON without spaces. Fields that are None are left out."""
    return metadata.metadata_type, msgspec.json.encode(metadata.to_dict()).decode()


def deserialize_media_metadata(
    metadata_type: str | MediaMetadataType, metadata_json: str
) -> AVMetadata | ImageMetadata:
    """Return the metadata of an index entry. An empty `metadata_json` has no fields.

    Raises:
        FormatError: The kind does not exist, or `metadata_json` is invalid JSON or does not fit it.
    """
    kind = _TYPES[MediaMetadataType.from_string(metadata_type).value]
    try:
        payload = _FIELDS.from_json(metadata_json.encode() or b"{}")
    except msgspec.MsgspecError as error:
        raise FormatError(f"metadata of a medium is damaged: {error}: {metadata_json!r}") from error
    return kind.from_dict(payload)
