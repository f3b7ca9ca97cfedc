"""The index of a JSONL object, on this machine: a copy of the one beside it in the store, or one made of its lines.

It lies in the mirror, under a name that stands for the versions of both objects. So an index that fits is there or is
not, and what another version left behind is never taken for it.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

from energon_grain.errors import DatasetNotFoundError, IndexFileError, MissingObjectError, RangeError, StaleIndexError
from energon_grain.formats.jsonl_index import check_jsonl_size, read_jsonl_index, write_jsonl_index
from energon_grain.storage.atomic import atomic_write
from energon_grain.storage.mirror import Mirror
from energon_grain.storage.object_bytes import ObjectStream, is_unchanged
from energon_grain.storage.object_client import ObjectClient, ObjectRange, shared_client
from energon_grain.storage.remote_files import RemoteFiles
from energon_grain.storage.tensorstore_objects import UNVERSIONED

_logger = logging.getLogger("energon_grain")
_SMALLEST_INDEX_BYTES = 16
_COPIED_BYTES = 16 << 20


def index_of_object(url: str, files: RemoteFiles) -> tuple[Path, bytes]:
    """Give the path of an index that fits an object as it is now, and the object's generation.

    Takes three small requests. An index that lies beside the object, `x.jsonl.idx`, is copied once for each version of
    it; without one the object is read once for each of its versions, front to back, into the block cache. Of a server
    that tells no versions this is done each time.

    Args:
        url: Of the object.
        files: Learns the object's version.

    Raises:
        DatasetNotFoundError: There is no such object.
        StaleIndexError: The index beside it is of another version, or it was replaced while it was read.
        IndexFileError: The index beside it is damaged.
        DecodingError: There is no index beside it, and lines hold no object.
        EmptyDatasetError: There is no index beside it, and no sample.
        ReadError: The store cannot be reached.
    """
    client = shared_client(files.settings)
    size_bytes, generation, index_generation = _versions(url, files, client)
    version = repr((size_bytes, generation, index_generation))
    mirror = Mirror(url, client)
    index = mirror.folder / f"{hashlib.blake2b(version.encode(), digest_size=16).hexdigest()}.idx"
    is_sure = UNVERSIONED not in (generation, index_generation)
    if not (is_sure and _fits(index, url, size_bytes)):
        with mirror.locked():
            if is_sure and _fits(index, url, size_bytes):
                pass  # another process was quicker
            elif index_generation is None:
                _make(url, size_bytes, generation, index)
            else:
                _copy(f"{url}.idx", index)
            for other in mirror.folder.glob("*.idx"):
                if other != index:
                    other.unlink(missing_ok=True)
    check_jsonl_size(url, read_jsonl_index(index, of=url), size_bytes)
    return index, generation


def _fits(index: Path, url: str, size_bytes: int) -> bool:
    """Whether there is an index, and it is not damaged at its ends."""
    try:
        check_jsonl_size(url, read_jsonl_index(index, of=url), size_bytes)
    except (FileNotFoundError, IndexFileError):
        return False
    return True


def _versions(url: str, files: RemoteFiles, client: ObjectClient) -> tuple[int, bytes, bytes | None]:
    """Size and generation of an object, and the generation of its index; None: there is none."""

    def ask(of: str) -> tuple[int, bytes] | bytes | None:
        if of == url:
            version = files.versions.of(url)
            return version.size_bytes, version.generation
        found = client.read(ObjectRange(of, 0, _SMALLEST_INDEX_BYTES))
        return None if found is None else found.generation

    try:
        version, index_generation = client.map(ask, [url, f"{url}.idx"])
    except RangeError as error:
        raise IndexFileError(
            f"{url}.idx: has less than two offsets. The index is damaged; `energon-grain prepare {url}` writes it anew"
        ) from error
    except MissingObjectError:
        raise DatasetNotFoundError(f"{url}: no such object") from None
    assert isinstance(version, tuple)
    assert not isinstance(index_generation, tuple)
    return *version, index_generation


def _make(url: str, size_bytes: int, generation: bytes, index: Path) -> None:
    _logger.warning(
        "%s has no index beside it: reading its %.3g MB once to make one in %s; `energon-grain prepare %s` makes one "
        "for all machines",
        url,
        size_bytes / 1e6,
        index.parent,
        url,
    )
    write_jsonl_index(url, target=index)
    if generation != UNVERSIONED and not is_unchanged(url, generation):
        index.unlink()
        raise StaleIndexError(f"{url}: was replaced while it was indexed; begin anew")


def _copy(url: str, index: Path) -> None:
    with ObjectStream(url) as source, atomic_write(index) as target:
        while block := source.read(_COPIED_BYTES):
            target.write(block)
