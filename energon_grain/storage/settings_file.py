"""The YAML file with storage settings: read, and checked key by key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from energon_grain.errors import ConfigError
from energon_grain.forms import Form
from energon_grain.storage.storage_settings import ENVIRONMENT, SUBJECT, StorageSettings, StoreSettings

_Settings = TypeVar("_Settings", StorageSettings, StoreSettings)
_ALL, _STORE = Form(StorageSettings), Form(StoreSettings)
_SECRET = re.compile(r"key|secret|token|password|credential", re.IGNORECASE)


def read_settings(path: str) -> StorageSettings:
    """Read a settings file.

    Raises:
        ConfigError: It cannot be read or is not valid; names it, and the key.
    """
    import yaml

    from energon_grain.storage.bounded_yaml import load_yaml

    try:
        with open(path, "rb") as file:
            content = load_yaml(file.read())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; {ENVIRONMENT} must name a file with storage settings") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from error
    return parse_settings(content, where=path)


def parse_settings(content: Any, *, where: str = SUBJECT) -> StorageSettings:
    """Check what a settings file holds.

    Raises:
        ConfigError: A key is unknown or a value wrong; names its place.
    """
    form = "a mapping, such as `stores: {'s3://bucket': {region: us-east-1}}`"
    if not isinstance(content, Mapping):
        raise ConfigError(f"{where}: must hold {form}")
    given: Any = content.get("stores", {})
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where}: $.stores: must be {form}")
    settings = _converted({**content, "stores": {}}, _ALL, where, "$")
    stores = {
        str(prefix): _converted(store, _STORE, where, f"$.stores[{str(prefix)!r}]") for prefix, store in given.items()
    }
    try:
        return msgspec.structs.replace(settings, stores=stores)
    except ConfigError as error:
        raise ConfigError(f"{where}: {_without_subject(error)}") from None


def _converted(content: Any, form: Form[_Settings], where: str, place: str) -> _Settings:
    if not isinstance(content, Mapping):
        raise ConfigError(f"{where}: {place}: must be a mapping, such as {{region: us-east-1}}")
    known = form.of.__struct_fields__
    for key in content:
        if key not in known:
            raise ConfigError(f"{where}: {place}.{key}: there is no such key. {_advice(str(key), known)}")
    try:
        return form.from_value(dict(content))
    except msgspec.ValidationError as error:
        what, _, inside = _without_subject(error).partition(" - at `$")
        raise ConfigError(f"{where}: {place}{inside.rstrip('`')}: {what}") from None


def _without_subject(error: Exception) -> str:
    return str(error).removeprefix(f"{SUBJECT}: ")


def _advice(key: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    if close:
        return f"Did you mean `{close[0]}`?"
    if _SECRET.search(key):
        return (
            "Credentials never stand here: give them in the environment, or in ~/.aws/credentials and name their "
            "section by `profile`"
        )
    return f"Known here: {', '.join(known)}"
