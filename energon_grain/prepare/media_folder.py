# SPDX-License-Identifier: Apache-2.0
"""Folders of loose media files (images, videos, audio), grouped into samples.

**Samples.** Files with the same path up to their extension are one sample: `cats/1.jpg` and `cats/1.txt` are the parts
`jpg` and `txt` of the sample `cats/1`. A file with a longer extension, `cats/1.seg.png`, is a part of the sample
`cats/1` if that has a media file, `cats/1.jpg`; otherwise it is the sample `cats/1.seg`. Keys cannot contain dots after
the last slash, so these become `_`. Samples are in the order of their keys. Hidden files and files without a media file
of the same name are left out.

**Splits.** If all media files are below folders named `train`, `val`, `validation`, `valid`, `dev` or `test`, these
folders are the split parts. They stay a part of the keys.

**Classes.** In an ImageFolder (torchvision, Hugging Face) the folder of an image is its class: each sample gets a part
`cls` with the index of its class among the sorted folder names. By default that is the layout of a folder where all
media files are images in at least two class folders, without other files of the same name and without metadata files.

**Metadata.** A file `metadata.jsonl` (or `.jsonl.gz`, `.jsonl.zst`) or `metadata.csv` (Hugging Face) has a row for each
media file, named by its field `file_name` relative to the metadata file. The sample of that file gets the row as its
part `json`. Samples without a row are left out.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import msgspec

from energon_grain.errors import ConfigError, DecodingError, ReadError
from energon_grain.prepare.containers import Sample
from energon_grain.prepare.dataset_definition import IMAGE_PARTS, VIDEO_PARTS
from energon_grain.prepare.listing import list_files, shards_per_part
from energon_grain.prepare.write_shards import parts_of
from energon_grain.sources.kinds import streaming_kind
from energon_grain.storage.epath import EPath
from energon_grain.storage.location import is_url, join
from energon_grain.storage.remote import shared_client
from energon_grain.storage.settings import storage_settings

CLASSES_JSON = "classes.json"
"""File in `.nv-meta` with the names of the classes, as a JSON list: the part `cls` holds indices into it."""
_IMAGES = frozenset({*IMAGE_PARTS, "jfif", "avif"})
_VIDEOS = frozenset({*VIDEO_PARTS, "mpg", "mpeg", "ogv", "flv", "ts"})
_AUDIO = frozenset({"wav", "mp3", "flac", "ogg", "oga", "opus", "m4a", "aac"})
_MEDIA = _IMAGES | _VIDEOS | _AUDIO
_CSV = "metadata.csv"
_ROWS_AT_ONCE = 4096
_SPLITS = {
    "train": "train",
    "val": "val",
    "validation": "val",
    "valid": "val",
    "dev": "val",
    "test": "test",
}
"""Split part by the name of its folder."""
_LISTED = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class LooseSample:
    """The files of a sample.

    Attributes:
        key: The key.
        files: Each part, and its path relative to the folder.
        split: The split part; "" if folders are not splits.
        size_bytes: Size of all files.
        folder: The folder right below the root, or below the folder of the split part; "" if there is none.
        inline: Parts that are not files: a class index, a row of metadata.
    """

    key: str
    files: tuple[tuple[str, str], ...]
    split: str
    size_bytes: int
    folder: str
    inline: tuple[tuple[str, bytes], ...] = ()

    @property
    def is_image(self) -> bool:
        """Whether it is one image file and nothing else."""
        return len(self.files) == 1 and self.files[0][0] in _IMAGES


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaFolder:
    """A folder of loose media files.

    Attributes:
        location: Path or URL.
        samples: Its samples, by split part and then in the order of their keys.
        classes: Names of the classes; empty if folders are not classes.
        left_out: Relative paths of the files that belong to no sample.
        content_id: Digest of names, sizes and modification times of all files.
    """

    location: str
    samples: Sequence[LooseSample]
    classes: Sequence[str]
    left_out: Sequence[str]
    content_id: str

    @property
    def part_names(self) -> list[str]:
        """Names of all parts, in the order of first appearance."""
        return list(dict.fromkeys(part for each in self.samples for part, _ in (*each.files, *each.inline)))

    def example(self) -> object:
        """The content of the first `json` part; None if there is none, or it is not valid JSON."""
        for sample in self.samples:
            if any(part == "json" for part, _ in (*sample.files, *sample.inline)):
                with contextlib.suppress(ValueError):
                    return json.loads(dict(_contents(self.location, sample))["json"])
                break
        return None

    def notes(self) -> Iterator[str]:
        """Facts that the caller should know, though they are not errors."""
        if self.classes:
            more = ", …" if len(self.classes) > _LISTED else ""
            yield (
                f"folders are classes: {len(self.classes):,} ({', '.join(self.classes[:_LISTED])}{more}); the part cls "
                f"is the index, .nv-meta/{CLASSES_JSON} has the names"
            )
        if self.left_out:
            several = len(self.left_out) > 1
            yield (
                f"{len(self.left_out):,} {'files belong' if several else 'file belongs'} to no sample and "
                f"{'were' if several else 'was'} left out, such as {self.left_out[0]}"
            )

    def split_by(self, ratio: Mapping[str, float]) -> MediaFolder:
        """Give each sample a split part, by a hash of its key, so that every part has samples of all classes.

        The numbers of samples follow the ratio, see `shards_per_part`. Raises SplitError if a part would be empty.
        """
        counts = shards_per_part(len(self.samples), ratio)
        parts = [name for name, count in counts.items() for _ in range(count)]
        by_hash = sorted(self.samples, key=lambda sample: hashlib.blake2b(sample.key.encode(), digest_size=8).digest())
        samples = [replace(sample, split=part) for sample, part in zip(by_hash, parts, strict=True)]
        return replace(self, samples=sorted(samples, key=lambda sample: (sample.split, sample.key)))

    def shards(self, shard_samples: int, shard_bytes: int) -> Iterator[tuple[str, int, list[LooseSample]]]:
        """Cut the samples into shards: name without ending, bytes, samples. A shard has samples of one split part.

        A shard ends before the sample that would make it larger than `shard_bytes`, and after `shard_samples` samples.
        """
        for split, group in groupby(self.samples, lambda sample: sample.split):
            number, size_bytes, shard = 0, 0, list[LooseSample]()
            for sample in group:
                if shard and (len(shard) == shard_samples or size_bytes + sample.size_bytes > shard_bytes):
                    yield f"{split or 'shard'}-{number:06d}", size_bytes, shard
                    number, size_bytes, shard = number + 1, 0, []
                shard.append(sample)
                size_bytes += sample.size_bytes
            yield f"{split or 'shard'}-{number:06d}", size_bytes, shard


def find_media(location: str, *, class_folders: bool | None = None) -> MediaFolder | None:
    """List the loose media files of a folder at a path or URL, and group them into samples; None: there are none.

    Args:
        location: Path or URL.
        class_folders: Whether folders are classes; None: see the beginning of this module.

    Raises:
        ConfigError: Two samples would get the same key, a sample the same part twice, or, with `class_folders=True`, a
            media file is not in a folder.
        DecodingError: A metadata file is malformed, or names a file that does not exist.
        ReadError: The store cannot be read.
    """
    entries = _entries(location)
    stems = {_stem(name) for name in _visible(entries) if _extension(name) in _MEDIA}
    if not stems:
        return None
    rows = _rows(location, filter(_is_metadata, _visible(entries)))
    samples, left_out = _grouped(stems, entries, rows)
    _check(location, samples, rows or {}, entries)
    samples.sort(key=lambda sample: (sample.split, sample.key))
    classes = _classes(location, samples, class_folders, rows is not None)
    return MediaFolder(
        location=location,
        samples=[_with_class(location, sample, classes) for sample in samples] if classes else samples,
        classes=classes,
        left_out=left_out,
        content_id=_digest(entries),
    )


def _visible(entries: Mapping[str, Any]) -> list[str]:
    """The names of the files, sorted, without hidden ones."""
    return [name for name in sorted(entries) if "/." not in f"/{name}"]


def _is_metadata(name: str) -> bool:
    base = name.rpartition("/")[2]
    return base.startswith("metadata.") and (base == _CSV or streaming_kind(base) is not None)


def _grouped(
    stems: set[str], entries: Mapping[str, tuple[int, Any]], rows: dict[str, bytes] | None
) -> tuple[list[LooseSample], list[str]]:
    """Group files into samples. Rows of metadata that are used are removed from `rows`.

    Returns:
        The samples, and the files that belong to none.
    """
    are_splits = all(stem.split("/")[0] in _SPLITS and "/" in stem for stem in stems)
    samples, left_out = list[LooseSample](), list[str]()
    for stem, files in _groups(_visible(entries), stems).items():
        row = _row_of(files, rows or {})
        if stem in stems and (row is not None or rows is None):
            samples.append(_sample(stem, files, entries, are_splits, row))
        else:
            left_out += files
    return samples, left_out


def _digest(entries: Mapping[str, Any]) -> str:
    text = repr(sorted(entries.items())).encode("utf-8", "surrogateescape")
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def _row_of(files: Sequence[str], rows: dict[str, bytes]) -> bytes | None:
    """Remove and return the row of metadata about one of some files; None: there is none."""
    return next((rows.pop(name) for name in files if name in rows), None)


def _groups(names: Sequence[str], stems: set[str]) -> dict[str, list[str]]:
    """The files of each sample, by its stem. Metadata files are left out."""
    groups: dict[str, list[str]] = {}
    for name in names:
        if not _is_metadata(name):
            groups.setdefault(_sample_of(name, stems), []).append(name)
    return groups


def _check(
    location: str, samples: Sequence[LooseSample], rows: Mapping[str, bytes], entries: Mapping[str, Any]
) -> None:
    """Check that keys are unique, and that all rows of metadata were used. Raises ConfigError and DecodingError."""
    for name in rows:
        why = "another file of its sample has a row, too" if name in entries else "there is no such file"
        raise DecodingError(f"{location}: a row of metadata is about {name}: {why}")
    known: dict[str, LooseSample] = {}
    for sample in samples:
        other = known.setdefault(sample.key, sample)
        if other is not sample:
            raise ConfigError(
                f"{location}: {other.files[0][1]} and {sample.files[0][1]} would both become the sample "
                f"{sample.key!r}: rename one of them"
            )


def loose_parts(location: str, samples: Sequence[LooseSample]) -> Iterator[Sample]:
    """Read samples. Raises ReadError if a file changed since it was listed."""
    for sample in samples:
        parts = dict(_contents(location, sample))
        size_bytes = sum(len(parts[part]) for part, _ in sample.files)
        if size_bytes != sample.size_bytes:
            raise ReadError(
                f"{join(location, sample.files[0][1])}: the sample has {size_bytes:,} bytes, but had "
                f"{sample.size_bytes:,} when the folder was listed; run the command again when its files do not change"
            )
        yield parts_of({"__key__": sample.key, **parts})


def _contents(location: str, sample: LooseSample) -> Iterator[tuple[str, bytes]]:
    for part, name in sample.files:
        yield part, EPath(join(location, name)).read_bytes()
    yield from sample.inline


def _entries(location: str) -> dict[str, tuple[int, Any]]:
    """Size in bytes and version of every file below a folder, by relative path."""
    if is_url(location):
        return {
            name: (size, version.hex())
            for name, (size, version) in shared_client(storage_settings()).list_versions(location).items()
        }
    found: dict[str, tuple[int, Any]] = {}
    for name in list_files(location):
        status = os.stat(os.path.join(location, name))
        found[name] = status.st_size, status.st_mtime_ns
    return found


def _extension(name: str) -> str:
    """The extension in lower case, without the dot."""
    return os.path.splitext(name)[1][1:].lower()


def _stem(name: str) -> str:
    return os.path.splitext(name)[0]


def _sample_of(name: str, stems: set[str]) -> str:
    """The stem of the sample that a file belongs to: the shortest one that a media file has."""
    folder, slash, base = name.rpartition("/")
    pieces = base.split(".")
    for end in range(1, len(pieces)):
        stem = folder + slash + ".".join(pieces[:end])
        if stem in stems:
            return stem
    return _stem(name)


def _sample(
    stem: str, files: Sequence[str], entries: Mapping[str, tuple[int, Any]], are_splits: bool, row: bytes | None
) -> LooseSample:
    """Raises ConfigError if two files would become the same part."""
    parts: dict[str, str] = {}
    for name in files:
        part = name[len(stem) + 1 :].lower()
        if part == "json" and row is not None:
            raise ConfigError(f"{name}: its sample has a row of metadata, too, which becomes the part json; remove one")
        if parts.setdefault(part, name) != name:
            raise ConfigError(f"{parts[part]} and {name} would both become the part {part!r}: rename one of them")
    folder, slash, base = stem.rpartition("/")
    folders = folder.split("/")[1 if are_splits else 0 :]
    return LooseSample(
        key=folder + slash + base.replace(".", "_"),
        files=tuple(parts.items()),
        split=_SPLITS[stem.split("/")[0]] if are_splits else "",
        size_bytes=sum(entries[name][0] for name in files),
        folder=folders[0] if folders else "",
        inline=() if row is None else (("json", row),),
    )


def _classes(
    location: str, samples: Sequence[LooseSample], class_folders: bool | None, has_metadata: bool
) -> list[str]:
    """The sorted names of the classes; none if folders are not classes. Raises ConfigError."""
    classes = sorted({sample.folder for sample in samples})
    if class_folders is None:
        class_folders = _is_image_folder(samples, classes) and not has_metadata
    if not class_folders:
        return []
    if "" in classes:
        name = next(sample.files[0][1] for sample in samples if not sample.folder)
        raise ConfigError(f"{location}: {name} is in no class folder; leave out --class-folders (class_folders=True)")
    return classes


def _is_image_folder(samples: Sequence[LooseSample], folders: Sequence[str]) -> bool:
    return len(folders) > 1 and "" not in folders and all(sample.is_image for sample in samples)


def _with_class(location: str, sample: LooseSample, classes: Sequence[str]) -> LooseSample:
    file = dict(sample.files).get("cls")
    if file is not None:
        raise ConfigError(
            f"{join(location, file)}: its folder also defines a class; pass --no-class-folders, or remove the file"
        )
    return replace(sample, inline=(*sample.inline, ("cls", str(classes.index(sample.folder)).encode())))


def _rows(location: str, metadata: Iterable[str]) -> dict[str, bytes] | None:
    """Rows of metadata files as JSON, by the path of the file that each is about; None: there are no such files.

    Raises DecodingError.
    """
    rows: dict[str, bytes] | None = None
    for name in metadata:
        rows = {} if rows is None else rows
        where, folder = join(location, name), name.rpartition("/")[0]
        for number, row, written in _rows_of(where):
            file = row.get("file_name") if isinstance(row, dict) else None
            if not isinstance(file, str):
                raise DecodingError(f"{where}: row {number}: expected a field file_name with the path of a file")
            path = os.path.normpath(f"{folder}/{file}" if folder else file)
            if path in rows:
                raise DecodingError(f"{where}: row {number}: {file} has a row already")
            rows[path] = written
    return rows


def _rows_of(where: str) -> Iterator[tuple[int, Any, bytes]]:
    """Number, content and JSON of each row of a metadata file. Raises DecodingError."""
    number = 0
    try:
        for number, (row, written) in enumerate(_lines_of(where), 1):
            yield number, json.loads(written) if row is None else row, written
    except DecodingError:
        raise
    except (ValueError, csv.Error) as error:
        raise DecodingError(f"{where}: row {number + 1}: cannot be parsed: {error}") from error


def _lines_of(where: str) -> Iterator[tuple[dict[str, Any] | None, bytes]]:
    """Content, if it is parsed already, and JSON of each row."""
    kind = streaming_kind(where)
    if kind is not None and kind.streamed is not None:
        for _, samples in kind.streamed.runs(where, _ROWS_AT_ONCE):
            for sample in samples():
                [written] = (value for name, value in sample.items() if name != "__key__")
                yield None, written
        return
    for row in csv.DictReader(io.StringIO(EPath(where).read_bytes().decode("utf-8-sig"))):
        if None in row:
            raise ValueError("it has more values than columns")
        yield row, msgspec.json.encode(row)
