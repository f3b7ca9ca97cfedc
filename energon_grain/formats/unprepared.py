"""What lies at a path or URL that is no prepared dataset, and the way out: what messages say."""

from __future__ import annotations

from pathlib import Path

import msgspec

from energon_grain.errors import ReadError
from energon_grain.formats.array_group import is_array_folder
from energon_grain.formats.nv_meta import (
    INFO_JSON,
    IS_ARRAY,
    IS_FILE,
    META_FOLDER,
    RECORD_SUFFIX,
    not_prepared_here,
    preparing,
)
from energon_grain.storage.kvstore_spec import has_lists
from energon_grain.storage.location import is_url
from energon_grain.storage.object_client import shared_client
from energon_grain.storage.read_whole import read_beginning
from energon_grain.storage.storage_settings import storage_settings

_LONGEST_LIST_SECONDS = 10.0


def not_prepared(location: str) -> str:
    """Say what lies at a path or URL instead of a prepared dataset. Of a store this takes a few requests.

    Raises:
        ConfigError: The URL is of no store that can be read.
        ReadError: The store cannot be reached.
    """
    if not is_url(location):
        return not_prepared_here(Path(location))
    names = _names_below(location)
    if names is not None and not names:
        found = IS_FILE if read_beginning(location, 1) else "nothing lies below that URL"
    elif is_array_folder(location):
        found = IS_ARRAY
    elif not has_lists(location, storage_settings()):
        found = f"no {META_FOLDER}/{INFO_JSON} is served there: check the URL, or prepare the folder on its own machine"
    else:
        records = any(name.endswith(RECORD_SUFFIX) for name in names or ())
        found = f"not a prepared dataset (no {META_FOLDER}/{INFO_JSON}); run `{preparing(location, records=records)}`"
    return f"{location}: {found}"


def _names_below(url: str) -> list[str] | None:
    """What lies in a folder of a store; None where that cannot be told, or not soon."""
    settings = storage_settings()
    if not has_lists(url, settings):
        return None
    hasty = msgspec.structs.replace(settings, attempts=1, timeout_s=min(settings.timeout_s, _LONGEST_LIST_SECONDS))
    try:
        return shared_client(hasty).list(url)
    except ReadError:
        return None
