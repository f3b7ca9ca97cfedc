"""Which files make up a dataset: every `*.tar` below its folder, in an order that does not depend on the disk."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from energon_grain.errors import ConfigError, DatasetNotFoundError, TarError
from energon_grain.formats.nv_meta import META_FOLDER, RECORD_SUFFIX
from energon_grain.storage.location import is_url, located
from energon_grain.storage.object_client import shared_client
from energon_grain.storage.storage_settings import storage_settings

COMPRESSED_SUFFIXES = {
    ".tgz": "gzip",
    ".tar.gz": "gzip",
    ".tbz2": "bzip2",
    ".tar.bz2": "bzip2",
    ".txz": "xz",
    ".tar.xz": "xz",
    ".tar.zst": "zstd",
}
"""What names of compressed tar files end with, and the tool that decompresses each."""
TAR_SUFFIX = ".tar"


def find_shards(
    root: str | os.PathLike[str], *, exclude: str | None = None, suffix: str = TAR_SUFFIX
) -> tuple[str, ...]:
    """List the tar files, or those with another ending, below `root` as paths relative to it, sorted folder by folder.

    Symbolic links to folders are followed (each real folder once on a branch); `.nv-meta` is not searched.

    Args:
        root: The dataset folder, or its URL.
        exclude: A regular expression; shards in whose relative path it is *found* are left out.
        suffix: What their names end with: `.tar` or `.array_record`.

    Raises:
        DatasetNotFoundError: `root` is no folder, or holds no such file.
        ReadError: The store cannot be listed.
        TarError: There are compressed tars among them, which cannot be read at random offsets.
        ConfigError: `exclude` is no regular expression, or leaves nothing; a name is not UTF-8.
    """
    endings = (suffix, *COMPRESSED_SUFFIXES) if suffix == TAR_SUFFIX else (suffix,)
    files = list_files(root, what=suffix)
    found = [name for name in files if name.endswith(endings)]
    if not found:
        others = sum(name.endswith(RECORD_SUFFIX) for name in files)
        advice = f" There are {others} *{RECORD_SUFFIX} files: add --records msgpack|tf_example|raw." if others else ""
        advice = advice if files else " Nothing else lies there either: check the path."
        raise DatasetNotFoundError(f"{root}: no *{suffix} files in it or in its subfolders.{advice}")
    kept = exclude_shards(sorted(found, key=lambda name: name.split("/")), exclude)
    refuse_compressed(kept)
    refuse_unwritable(kept)
    return tuple(kept)


def list_files(root: str | os.PathLike[str], *, what: str = TAR_SUFFIX) -> list[str]:
    """List the files below a folder or URL, relative to it, without those in `.nv-meta`; see `find_shards`."""
    location = located(root)
    if is_url(location):
        names = shared_client(storage_settings()).list(location)
        return [name for name in names if META_FOLDER not in name.split("/") and not name.endswith("/")]
    if not os.path.isdir(location):
        raise DatasetNotFoundError(f"{location}: not a folder. Give the folder that holds the {what} files.")
    return list(_walk(Path(location), Path(location), frozenset()))


def exclude_shards(shards: Sequence[str], exclude: str | None) -> list[str]:
    """Leave out the shards in whose name the regular expression is found; their order is kept."""
    if exclude is None:
        return list(shards)
    try:
        pattern = re.compile(exclude)
    except re.error as error:
        raise ConfigError(f"exclude {exclude!r} is not a regular expression: {error}.") from error
    kept = [name for name in shards if not pattern.search(name)]
    if not kept:
        raise ConfigError(f"exclude {exclude!r} leaves out all {len(shards)} shards, such as {shards[0]}.")
    return kept


def refuse_compressed(shards: Sequence[str]) -> None:
    """Raise TarError where names say that archives are compressed."""
    compressed = [name for name in shards if name.endswith(tuple(COMPRESSED_SUFFIXES))]
    if not compressed:
        return
    example = compressed[0]
    suffix, tool = next(item for item in COMPRESSED_SUFFIXES.items() if example.endswith(item[0]))
    others = f" (and {len(compressed) - 1} more)" if len(compressed) > 1 else ""
    raise TarError(
        f"{example}{others}: compressed. Samples are read at random offsets, which a compressed archive does not "
        f"allow. Decompress it (`{tool} -dc {example} > {example.removesuffix(suffix)}.tar`) and remove the compressed "
        f"file, or leave such files out with --exclude '{re.escape(suffix)}$'."
    )


def refuse_unwritable(shards: Sequence[str]) -> None:
    """Raise ConfigError where a name is not UTF-8, which split files and indices are."""
    for name in shards:
        try:
            name.encode()
        except UnicodeEncodeError:
            shown = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
            raise ConfigError(
                f"{shown}: the name is not UTF-8, as the files that name shards must be. Rename the file, or leave it "
                f"out with --exclude."
            ) from None


def _walk(root: Path, folder: Path, above: frozenset[tuple[int, int]]) -> Iterator[str]:
    """Yield the files below `folder` relative to `root`; a link back to a folder above it is not entered."""
    status = os.stat(folder)
    identity = (status.st_dev, status.st_ino)
    if identity in above:
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name != META_FOLDER:
                    yield from _walk(root, Path(entry.path), above | {identity})
            elif entry.is_file():
                yield os.path.relpath(entry.path, root)
