# SPDX-License-Identifier: Apache-2.0
"""Settings for object stores: endpoints, regions, limits, and the cache on local disk.

Credentials are never part of them: each store finds them as its own tools do (`AWS_ACCESS_KEY_ID`, `~/.aws`, an
instance's role, `GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_ACCOUNT_KEY`, …).
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
"""Path of the YAML settings file; default: `$XDG_CONFIG_HOME/energon-grain/storage.yaml`, if it exists."""
DEFAULT_CACHE_SHARE = 0.1
"""Share of the cache's file system to use without `cache_bytes`."""
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
    """Settings for one store.

    Attributes:
        endpoint: URL of the service, if it is not the default one: MinIO, Ceph, R2, … (for `s3://` the default is
            `$AWS_ENDPOINT_URL_S3`, then `$AWS_ENDPOINT_URL`), or of an Azure account
            (`https://account.blob.core.windows.net`; default: the account in `$AZURE_STORAGE_ACCOUNT_NAME`).
        region: Region of the bucket; for `s3://` the default is `$AWS_REGION`, then `$AWS_DEFAULT_REGION`, else the
            store is queried.
        anonymous: Send no credentials.
        profile: Section of `~/.aws/credentials` or `~/.aws/config` with the credentials; overrides the environment.
        requester_pays: Pay for the requests (`s3://`).
        location: Actual location: makes a prefix such as `msc://team` an alias of `s3://bucket/folder`.
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
                f"location {self.location!r}: expected the URL of a store: "
                f"{', '.join(f'{scheme}://' for scheme in (*STORE_SCHEMES, 'file'))}"
            )


@public
class StorageSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings for object stores, for a whole process and its workers.

    Attributes:
        stores: Settings by URL prefix (`s3://bucket`, `s3://bucket/folder`, `s3://`); the longest match applies.
        requests_in_flight: Maximum number of concurrent requests of one process.
        request_bytes: Approximate size of one request; longer ranges are split.
        timeout_s: Timeout of one request, in seconds.
        retry_s: Seconds during which a request is retried after temporary failures (too many requests, 500 to 599, no
            response, a broken connection, a name that does not resolve). Then it fails with an error. The delay before
            each attempt doubles from `first_pause_s` to `longest_pause_s`, both in seconds.
        attempts: Maximum number of attempts of a request; default: limited only by `retry_s`.
        cache_dir: Cache folder, shared by all processes of a host; default: `$XDG_CACHE_HOME/energon-grain/objects`.
        cache_bytes: Limit of the cached blocks; default: a tenth of the disk; 0: blocks are not cached.
        ahead_bytes: Maximum number of prefetched bytes: in the cache (at most half of it), or in memory if blocks are
            not cached. 0: no prefetch; every chunk of samples fetches its own bytes.
        largest_group_bytes: Maximum size in memory of one row group, record batch or shard of a table (Parquet, Arrow,
            MDS); a larger one raises an error before it is decoded. Also applies to local files.
        verify: Compare the bytes of tars and ArrayRecord files from a store with the digests of `energon-grain prepare
            --digest`; a difference raises an error before a sample of it is delivered.
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
        """Absolute path of the cache folder."""
        if self.cache_dir is not None:
            return os.path.abspath(os.path.expanduser(self.cache_dir))
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        return os.path.join(base, "energon-grain", "objects")

    def store(self, url: str) -> tuple[str, StoreSettings]:
        """The longest URL prefix with settings, and these settings; without a match, "" and the defaults."""
        stores = {as_msc(prefix): store for prefix, store in self.stores.items()}
        fitting = [prefix for prefix in stores if f"{as_msc(url)}/".startswith(f"{prefix.rstrip('/')}/")]
        best = max(fitting, key=len, default=None)
        return ("", StoreSettings()) if best is None else (best, stores[best])


def _check_prefixes(prefixes: Iterable[str]) -> None:
    for prefix in prefixes:
        if not is_url(check_url(prefix)):
            raise ConfigError(
                f"stores[{prefix!r}]: not a URL prefix; write 's3://{prefix.lstrip('/')}', or the scheme of your URLs"
            )


def as_msc(url: str) -> str:
    """A URL with `msc://` instead of its older name, `rclone://`."""
    return f"msc:{url[7:]}" if url.startswith("rclone:") else url


def check_endpoint(endpoint: str, name: str) -> None:
    """Raise ConfigError if this is not the URL of a service."""
    scheme, _, rest = endpoint.rpartition("://")
    user, _, host = rest.rpartition("@")
    shown = f"{scheme}://{host}" if scheme else host
    if user:
        raise ConfigError(
            f"{name} {shown!r}: must not contain a user or password; set credentials in the environment, such as "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or in ~/.aws"
        )
    if scheme.lower() not in ("http", "https"):
        raise ConfigError(f"{name} {shown!r}: expected a URL; write http://{host}, or https://{host}")


_chosen: StorageSettings | None = None


@public
def use_storage(settings: StorageSettings | None) -> None:
    """Set the settings for object stores, for everything that this process and its workers open from now on.

    Args:
        settings: None: use the settings file again, which is then read again.

    Raises:
        ConfigError: The argument has another type, such as the path of a file.
    """
    if not isinstance(settings, StorageSettings | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        shown = repr(check_url(settings)) if isinstance(settings, str) else f"a {type(settings).__name__}"
        raise ConfigError(
            f"use_storage takes a StorageSettings, not {shown}; to use a settings file, set the "
            f"environment variable {ENVIRONMENT}"
        )
    global _chosen
    _chosen = settings
    _from_file.cache_clear()


@contextlib.contextmanager
def using_storage(settings: StorageSettings) -> Generator[None]:
    """Use these settings for object stores inside a block."""
    before = _chosen
    use_storage(settings)
    try:
        yield
    finally:
        use_storage(before)


def storage_settings() -> StorageSettings:
    """The current settings: of `use_storage`, else of the settings file, else the defaults. Raises ConfigError."""
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
