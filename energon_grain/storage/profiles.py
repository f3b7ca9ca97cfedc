"""Other tools' names for stores: profiles of the Multi-Storage Client (`msc://`) and remotes of rclone (`rclone://`).

Energon reads `msc://profile/path`, `rclone://` as an older name of the same, and `dss://name@version/path`. Where data
lies and how it is reached is taken from the files that configure these profiles; keys that stand there are not: they
come from the store's usual environment only.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from typing import Any

from energon_grain.errors import ConfigError
from energon_grain.storage.location import is_url
from energon_grain.storage.storage_settings import StoreSettings

SCHEMES = ("msc", "rclone", "dss")
_LOCAL_PROFILES = ("default", "__filesystem__")
_DATASET_CACHE = "NVDATASET_CACHE_DIR"
_STORES = {
    "s3": "s3://",
    "s8k": "s3://",
    "gcs_s3": "s3://",
    "gcs": "gs://",
    "google cloud storage": "gs://",
    "file": "file:///",
    "local": "file:///",
}
"""What a provider of the client or of rclone is called, and how URLs of it begin."""


def profile_of(url: str) -> tuple[str, StoreSettings]:
    """The part of an `msc://`, `rclone://` or `dss://` URL that names a profile, and what it stands for.

    Raises:
        ConfigError: Nothing configures it, or its kind of store is not one that we read; says what to do.
    """
    scheme, _, rest = url.partition("://")
    name = rest.partition("/")[0]
    prefix = f"{scheme}://{name}"
    if scheme == "dss":
        return prefix, _dataset_service(url, name)
    if name in _LOCAL_PROFILES:
        return prefix, StoreSettings(location="file:///")
    file, profile = _find(name)
    if profile is None:
        raise ConfigError(
            f"{url}: no configuration of the Multi-Storage Client (MSC_CONFIG, ~/.msc_config.yaml) or of rclone "
            f"(RCLONE_CONFIG, ~/.config/rclone/rclone.conf) has a profile {name!r}; {_way_out(prefix)}"
        )
    kind = str(profile.get("type", "")).lower()
    if kind not in _STORES:
        raise ConfigError(
            f"{url}: {file}: profile {name!r} is of type {kind!r}; read are {', '.join(_STORES)}; {_way_out(prefix)}"
        )
    return prefix, StoreSettings(
        location=_STORES[kind] + str(profile.get("base_path", "")).strip("/"),
        endpoint=_with_scheme(profile.get("endpoint_url")) if _STORES[kind] == "s3://" else None,
        region=profile.get("region_name") if _STORES[kind] == "s3://" else None,
        profile=profile.get("profile_name") if _STORES[kind] == "s3://" else None,
        anonymous=_is_anonymous(profile),
    )


def _with_scheme(endpoint: str | None) -> str | None:
    """An end point as a URL, which rclone's need not be."""
    return endpoint if endpoint is None or is_url(endpoint) else f"https://{endpoint}"


def _is_anonymous(profile: Mapping[str, Any]) -> bool:
    return str(profile.get("anonymous", False)).lower() == "true" or profile.get("signature_version") == "UNSIGNED"


def _way_out(prefix: str) -> str:
    return f"add it there, or to the storage settings: `stores: {{'{prefix}': {{location: 's3://bucket/folder'}}}}`"


def _dataset_service(url: str, name: str) -> StoreSettings:
    cache = os.environ.get(_DATASET_CACHE)
    dataset, _, version = name.partition("@")
    if not (dataset and version):
        raise ConfigError(f"{url}: write dss://name@version/path, with the version")
    if not cache:
        raise ConfigError(f"{url}: lies below the folder that {_DATASET_CACHE} names, which is not set")
    return StoreSettings(location=f"file://{os.path.join(os.path.abspath(cache), dataset, version)}")


def _find(name: str) -> tuple[str, Mapping[str, Any] | None]:
    """The file that configures a profile, and what it says, in the client's words."""
    for path in _client_files():
        if os.path.isfile(path):
            profile = _client_profile(path, name)
            if profile is not None:
                return path, profile
            break  # the client reads the first file that there is
    for path in _rclone_files():
        if os.path.isfile(path):
            return path, _rclone_profile(path, name)
    return "", None


def _client_files() -> list[str]:
    home, config = os.path.expanduser("~"), os.environ.get("XDG_CONFIG_HOME")
    named = os.environ.get("MSC_CONFIG")
    stems = [] if config is None else [os.path.join(config, "msc", "config")]
    stems += [os.path.join(home, ".msc_config"), os.path.join(home, ".config", "msc", "config"), "/etc/msc_config"]
    found = [f"{stem}.{ending}" for stem in stems for ending in ("yaml", "json")]
    return [named, *found] if named else found


def _client_profile(path: str, name: str) -> Mapping[str, Any] | None:
    import yaml  # which reads JSON too

    from energon_grain.storage.bounded_yaml import load_yaml

    try:
        with open(path, "rb") as file:
            content = load_yaml(file.read())
        profile = (content or {}).get("profiles", {}).get(name)
        provider = None if profile is None else profile["storage_provider"]
        if provider is None:
            return None
        options: dict[str, Any] = provider.get("options") or {}
        filled = {key: os.path.expandvars(value) if isinstance(value, str) else value for key, value in options.items()}
        return {"type": provider["type"], **filled}
    except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: not a configuration of the Multi-Storage Client: {error}") from error


def _rclone_files() -> list[str]:
    home = os.path.expanduser("~")
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    found = [os.path.join(base, "rclone", "rclone.conf"), os.path.join(home, ".rclone.conf"), "/etc/rclone.conf"]
    named = os.environ.get("RCLONE_CONFIG")
    return [named, *found] if named else found


def _rclone_profile(path: str, name: str) -> Mapping[str, Any] | None:
    remotes = configparser.ConfigParser(interpolation=None)
    try:
        remotes.read(path, encoding="utf-8")
    except configparser.Error as error:
        # What it says quotes lines, and these hold keys.
        raise ConfigError(f"{path}: not a configuration of rclone ({type(error).__name__})") from None
    if not remotes.has_section(name):
        return None
    names = {"endpoint": "endpoint_url", "region": "region_name", "profile": "profile_name"}
    return {names.get(key, key): value for key, value in remotes[name].items() if value}
