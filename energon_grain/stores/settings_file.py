# SPDX-License-Identifier: Apache-2.0
"""The YAML file with storage settings."""

from __future__ import annotations

import re
from pathlib import Path

from energon_grain.errors import ConfigError
from energon_grain.formats.yaml_dialect import parse_yaml
from energon_grain.forms import Form, Place, as_mapping, wrong
from energon_grain.storage.settings import ENVIRONMENT, StorageSettings, StoreSettings

_SECRET = re.compile(r"key|secret|token|password|credential", re.IGNORECASE)
_STORE_SHAPE = "a mapping such as `{region: us-east-1}`"
_SHAPE = "a mapping such as `stores: {'s3://bucket': {region: us-east-1}}`"
_ALL, _STORE = Form(StorageSettings), Form(StoreSettings)


def read_settings(path: str) -> StorageSettings:
    """Read a YAML file with settings. Raises ConfigError."""
    try:
        content = parse_yaml(Path(path).read_bytes(), where=path, written_floats=False)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; {ENVIRONMENT} must name a file with storage settings") from error
    place = Place(path)
    given = as_mapping(content, place, _SHAPE)
    stores = as_mapping(given.get("stores", {}), place.at("stores"), _SHAPE)
    for prefix, store in stores.items():
        secret = next(filter(_SECRET.search, as_mapping(store, place.at("stores", prefix), _STORE_SHAPE)), None)
        if secret is not None:
            raise wrong(
                place.at("stores", prefix, secret),
                "credentials are not allowed here: set them in the environment, or in ~/.aws/credentials and name "
                "their section with `profile`",
            )
    stores = {prefix: _STORE.read(store, place.at("stores", prefix)) for prefix, store in stores.items()}
    return _ALL.read({**given, "stores": stores}, place)
