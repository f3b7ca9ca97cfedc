# SPDX-License-Identifier: Apache-2.0
"""What is known of an image, a video or a sound without decoding it, and the JSON text that an index keeps of it.

The types, their fields and the text are those of Megatron-Energon 7.3 and later: one side reads what the other wrote.
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
    """Kinds of metadata, by the word that the index has for each."""

    AV = "av"
    IMAGE = "image"

    @classmethod
    def from_string(cls, value: str) -> MediaMetadataType:
        """The kind of that word.

        Raises:
            FormatError: There is no such kind.
        """
        try:
            return cls(value)
        except ValueError:
            raise FormatError(
                f"metadata of a medium is of type {value!r}; known are {', '.join(map(repr, _TYPES))}"
            ) from None


@edataclass
class MediaMetadataBase:
    """What the kinds of metadata have in common: a mapping of what is known, and back."""

    metadata_type: ClassVar[MediaMetadataType]

    def to_dict(self) -> dict[str, Any]:
        """The fields that are known; None stands for what is not, and is left out."""
        known = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in known.items() if value is not None}

    @classmethod
    def from_dict(cls, payload: Mapping[str, Any]) -> Self:
        """The metadata of such a mapping; fields of a later version are left out.

        Raises:
            FormatError: A value has the wrong type, or one that must be there is not.
        """
        try:
            return cast("Self", (_FORMS.get(cls) or Form(cls)).from_value(payload))
        except msgspec.ValidationError as error:
            raise FormatError(f"metadata of a medium does not fit {cls.__name__}: {error}: {dict(payload)}") from error


@edataclass
class AVMetadata(MediaMetadataBase):
    """What is known of a video or a sound; None: that it has not, that is not known, or that was not asked for."""

    metadata_type: ClassVar[MediaMetadataType] = MediaMetadataType.AV

    video_duration: float | None = None
    """In seconds."""
    video_num_frames: int | None = None
    video_fps: float | None = None
    """Frames a second, on average."""
    video_width: int | None = None
    video_height: int | None = None
    audio_duration: float | None = None
    """In seconds."""
    audio_channels: int | None = None
    audio_sample_rate: int | None = None
    """Samples a second, in each channel."""
    audio_num_samples: int | None = None
    """In each channel."""


@edataclass
class ImageMetadata(MediaMetadataBase):
    """What is known of an image file."""

    metadata_type: ClassVar[MediaMetadataType] = MediaMetadataType.IMAGE

    width: int
    height: int
    format: str
    """Pillow's name of it, such as `JPEG`."""
    mode: str
    """Pillow's name of its colours, such as `RGB`."""


_FORMS: dict[Any, Form[Any]] = {kind: Form(kind) for kind in (AVMetadata, ImageMetadata)}
_FIELDS = Form(dict[str, Any])
_TYPES: dict[str, type[AVMetadata] | type[ImageMetadata]] = {"av": AVMetadata, "image": ImageMetadata}


def serialize_media_metadata(metadata: MediaMetadataBase) -> tuple[MediaMetadataType, str]:
    """The kind of metadata, and its JSON text without spaces; what is None is not in it."""
    return metadata.metadata_type, msgspec.json.encode(metadata.to_dict()).decode()


def deserialize_media_metadata(
    metadata_type: str | MediaMetadataType, metadata_json: str
) -> AVMetadata | ImageMetadata:
    """The metadata of which the index keeps this kind and this text; an empty text says nothing.

    Raises:
        FormatError: There is no such kind, or the text is no JSON that fits it.
    """
    kind = _TYPES[MediaMetadataType.from_string(metadata_type).value]
    try:
        payload = _FIELDS.from_json(metadata_json.encode() or b"{}")
    except msgspec.MsgspecError as error:
        raise FormatError(f"metadata of a medium is damaged: {error}: {metadata_json!r}") from error
    return kind.from_dict(payload)
