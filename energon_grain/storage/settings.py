# SPDX-License-Identifier: Apache-2.0
"""How object stores are reached: end points, regions, limits, and the cache on local disk.

Credentials never stand here: each store finds them as its own tools do (`AWS_ACCESS_KEY_ID`, `~/.aws`, an instance's
role, `GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_ACCOUNT_KEY`, …).
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Generator, Iterable

import msgspec

from energon_grain.errors import ConfigError, public
from energon_grain.storage.store import opener_of, stores_module
from energon_grain.storage.urls import STORE_SCHEMES, check_url, is_url, scheme_of

ENVIRONMENT = "ENERGON_GRAIN_STORAGE"
"""Names the YAML file with the settings; default: `$XDG_CONFIG_HOME/energon-grain/storage.yaml`, where it exists."""
DEFAULT_CACHE_SHARE = 0.1
"""Of the file system that the cache lies on, where `cache_bytes` says nothing."""
_LONGEST_S = 1e9
_LEAST = {
    "requests_in_flight": 1,
    "request_bytes": 1 << 16,
    "attempts": 1,
    "ahead_bytes": 0,
    "largest_group_bytes": 1,
}


@public
class StoreSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one store is reached.

    Attributes:
        endpoint: URL of the service, where it is not the usual one: MinIO, Ceph, R2, … (for `s3://` the default is
            `$AWS_ENDPOINT_URL_S3`, then `$AWS_ENDPOINT_URL`), or that of an account of Azure
            (`https://account.blob.core.windows.net`; default: the account in `$AZURE_STORAGE_ACCOUNT_NAME`).
        region: Region of the bucket; for `s3://` the default is `$AWS_REGION`, then `$AWS_DEFAULT_REGION`, else it is
            asked for.
        anonymous: Send no credentials.
        profile: Section of `~/.aws/credentials` or `~/.aws/config` to take them from, whatever the environment holds.
        requester_pays: Pay for what is read (`s3://`).
        location: Where this really lies: what makes a prefix such as `msc://team` another name for
            `s3://bucket/folder`.
    """

    endpoint: str | None = None
    region: str | None = None
    anonymous: bool = False
    profile: str | None = None
    requester_pays: bool = False
    location: str | None = None

    def __post_init__(self) -> None:
        if self.endpoint is not None:
            check_endpoint(self.endpoint, "endpoint")
        scheme = None if self.location is None else scheme_of(check_url(self.location)) or ""
        if scheme is not None and scheme not in (*STORE_SCHEMES, "file") and opener_of(scheme) is None:
            raise ConfigError(
                f"location {self.location!r}: must be a URL that is read as it is: "
                f"{', '.join(f'{scheme}://' for scheme in (*STORE_SCHEMES, 'file'))}"
            )


@public
class StorageSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How object stores are reached, for a whole process and its workers.

    Attributes:
        stores: Settings by the beginning of URLs (`s3://bucket`, `s3://bucket/folder`, `s3://`); the longest counts.
        requests_in_flight: Requests of one process at a time, at most.
        request_bytes: Bytes of one request, about; longer ranges are cut.
        timeout_s: For one request, in seconds.
        retry_s: How long a request is made again while its failures may pass (too many requests, 500 to 599, no answer,
            a broken connection, a name that does not resolve), in seconds, before they are an error. Before each new
            attempt there is a pause that doubles from `first_pause_s` to `longest_pause_s`, both in seconds.
        attempts: How often a request is made, at most; default: as often as `retry_s` allows.
        cache_dir: Folder of what was read; default: `$XDG_CACHE_HOME/energon-grain/objects`. All processes of a host
            share it.
        cache_bytes: Bound on the blocks in it; default: a tenth of the disk; 0: blocks are not kept.
        ahead_bytes: How much is fetched before it is needed, at most: into the cache (half of it at most), or into
            memory where blocks are not kept. 0: every chunk of samples fetches what it takes.
        largest_group_bytes: What one row group, record batch or shard of a table (Parquet, Arrow, MDS) may take in
            memory; a larger one is an error before it is decoded. Of files of this machine, too.
        verify: Compare what a store sends of tars and ArrayRecord files with the digests that `energon-grain prepare
            --digest` kept; a difference is an error before a sample of it is delivered.
    """

    stores: dict[str, StoreSettings] = {}
    requests_in_flight: int = 32
    request_bytes: int = 8 << 20
    timeout_s: float = 60.0
    retry_s: float = 600.0
    attempts: int | None = None
    first_pause_s: float = 0.1
    longest_pause_s: float = 10.0
    cache_dir: str | None = None
    cache_bytes: int | None = None
    ahead_bytes: int = 1 << 30
    largest_group_bytes: int = 1 << 30
    verify: bool = False

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            given = getattr(self, name)
            if given is not None and given < least:
                raise ConfigError(f"{name}={given}: must be {least} or more")
        if not 0 <= self.retry_s <= _LONGEST_S:
            raise ConfigError(f"retry_s={self.retry_s}: must be between 0 and {_LONGEST_S:g}")
        if not (0 < self.timeout_s <= _LONGEST_S and 0 <= self.first_pause_s <= self.longest_pause_s <= _LONGEST_S):
            raise ConfigError(
                f"timeout_s={self.timeout_s} must be positive, first_pause_s={self.first_pause_s} between 0 and "
                f"longest_pause_s={self.longest_pause_s}, and all of them at most {_LONGEST_S:g}"
            )
        if self.cache_bytes is not None and self.cache_bytes < 0:
            raise ConfigError(f"cache_bytes={self.cache_bytes}: must be 0 (no blocks) or more")
        _check_prefixes(self.stores)

    @property
    def cache_folder(self) -> str:
        """Absolute path of the folder of what was read."""
        if self.cache_dir is not None:
            return os.path.abspath(os.path.expanduser(self.cache_dir))
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        return os.path.join(base, "energon-grain", "objects")

    def store(self, url: str) -> tuple[str, StoreSettings]:
        """The beginning of a URL that has settings, the longest, and these; without any: "" and the default."""
        stores = {as_msc(prefix): store for prefix, store in self.stores.items()}
        fitting = [prefix for prefix in stores if f"{as_msc(url)}/".startswith(f"{prefix.rstrip('/')}/")]
        best = max(fitting, key=len, default=None)
        return ("", StoreSettings()) if best is None else (best, stores[best])


def _check_prefixes(prefixes: Iterable[str]) -> None:
    for prefix in prefixes:
        if not is_url(check_url(prefix)):
            raise ConfigError(
                f"stores[{prefix!r}]: is the beginning of no URL; write 's3://{prefix.lstrip('/')}', "
                "or what else the URLs begin with"
            )


def as_msc(url: str) -> str:
    """A URL with `msc://` in the place of its older name, `rclone://`."""
    return f"msc:{url[7:]}" if url.startswith("rclone:") else url


def check_endpoint(endpoint: str, name: str) -> None:
    """Refuse what is no URL of a service. Raises ConfigError."""
    scheme, _, rest = endpoint.rpartition("://")
    user, _, host = rest.rpartition("@")
    shown = f"{scheme}://{host}" if scheme else host
    if user:
        raise ConfigError(
            f"{name} {shown!r}: must have no user and password; give credentials in the environment, such as "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or in ~/.aws"
        )
    if scheme.lower() not in ("http", "https"):
        raise ConfigError(f"{name} {shown!r}: must be a URL; write http://{host}, or https://{host}")


_chosen: StorageSettings | None = None


@public
def use_storage(settings: StorageSettings | None) -> None:
    """Reach object stores by these settings from now on: everything that this process opens, and its workers.

    Args:
        settings: None: those of the settings file again, which is then read anew.

    Raises:
        ConfigError: They are something else, such as the path of a file.
    """
    if not isinstance(settings, StorageSettings | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        shown = repr(check_url(settings)) if isinstance(settings, str) else f"a {type(settings).__name__}"
        raise ConfigError(
            f"use_storage takes a StorageSettings, not {shown}; a file is named by the "
            f"environment variable {ENVIRONMENT}"
        )
    global _chosen
    _chosen = settings
    _from_file.cache_clear()


@contextlib.contextmanager
def using_storage(settings: StorageSettings) -> Generator[None]:
    """Reach object stores by these settings inside a block."""
    before = _chosen
    use_storage(settings)
    try:
        yield
    finally:
        use_storage(before)


def storage_settings() -> StorageSettings:
    """The settings in use: those of `use_storage`, else of the settings file, else the defaults. Raises ConfigError."""
    return _from_file(_settings_file()) if _chosen is None else _chosen


def _settings_file() -> str | None:
    named = os.environ.get(ENVIRONMENT)
    if named:
        return os.path.abspath(os.path.expanduser(named))
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    path = os.path.join(base, "energon-grain", "storage.yaml")
    return path if os.path.exists(path) else None


@functools.lru_cache(maxsize=1)
def _from_file(path: str | None) -> StorageSettings:
    return StorageSettings() if path is None else stores_module("settings_file").read_settings(path)
