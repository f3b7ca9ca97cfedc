"""From URLs to stores: what kind they are and how they are reached, in the words of TensorStore's specifications."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import msgspec

from energon_grain.errors import ConfigError
from energon_grain.storage.aws_profiles import aws_credentials
from energon_grain.storage.location import STORE_SCHEMES, check_url, scheme_of
from energon_grain.storage.profiles import SCHEMES, profile_of
from energon_grain.storage.storage_settings import StorageSettings, StoreSettings, check_endpoint, storage_settings

_AZURE = ". Azure's are read where they are mounted, or through a gateway that speaks S3"
_GOOGLE = "https://storage.googleapis.com"


def kvstore_spec(url: str, settings: StorageSettings) -> tuple[dict[str, Any], str]:
    """The store that a URL lies in, and the key there.

    The key of a folder ends without a slash, as the URL does.

    Args:
        url: Of an object or folder.
        settings: End point, region and the like, and what `msc://team` stands for.

    Raises:
        ConfigError: The URL lacks a bucket, its scheme is unknown, or the store has no such setting.
    """
    real, store = _reached(check_url(url), settings)
    scheme = scheme_of(real)
    if scheme == "memory":
        return {"driver": "memory"}, real[len("memory://") :]
    if scheme == "file":
        return {"driver": "file"}, real[len("file://") :]
    if scheme in ("http", "https"):
        parts = urlsplit(check_url(real))
        # The driver encodes the key for its way.
        return {"driver": "http", "base_url": f"{parts.scheme}://{parts.netloc}"}, unquote(parts.path)
    if scheme not in ("s3", "gs"):
        raise ConfigError(f"{url}: object stores are {_readable(settings)}{_AZURE if _is_azure(scheme) else ''}")
    bucket, _, key = real[len(f"{scheme}://") :].partition("/")
    if not bucket:
        raise ConfigError(f"{url}: names no bucket; write {scheme}://bucket/folder")
    return (_s3(bucket, store) if scheme == "s3" else _gcs(bucket, store)), key


def local_path(url: str) -> str | None:
    """The path on this machine that a URL stands for; None: it stands for none, or nothing says what it stands for."""
    try:
        spec, key = kvstore_spec(url, storage_settings())
    except ConfigError:
        return None  # said when it is opened
    return os.path.normpath(key) if spec["driver"] == "file" else None


def _readable(settings: StorageSettings) -> str:
    """All that a URL may begin with."""
    stores = ", ".join(f"{name}://" for name in (*STORE_SCHEMES, *SCHEMES))
    own = ", ".join(prefix for prefix, store in settings.stores.items() if store.location is not None)
    return f"{stores} and what the storage settings give a location ({own or 'nothing now'}); file:// is a path"


def _is_azure(scheme: str | None) -> bool:
    return scheme is not None and scheme.startswith(("az", "abfs", "adl", "wasb"))


def _reached(url: str, settings: StorageSettings) -> tuple[str, StoreSettings]:
    """Where a URL really lies, and how the store there is reached."""
    prefix, store = settings.store(url)
    if store.location is None and scheme_of(url) in SCHEMES:
        prefix, profile = profile_of(url)
        store = _over(store, profile)
    if store.location is None:
        return url, store
    scheme, _, folder = store.location.partition("://")
    name = url[len(prefix.rstrip("/")) :].lstrip("/")
    if scheme in ("http", "https"):
        name = quote(name)  # URLs of the web have names as they are sent
    real = f"{folder.rstrip('/')}/{name}".rstrip("/")
    real = f"{scheme}://{real if scheme == 'file' else real.lstrip('/')}"
    return real, _over(store, settings.store(real)[1])


def _over(store: StoreSettings, rest: StoreSettings) -> StoreSettings:
    """The settings of `store`, and of `rest` what it leaves open."""
    given = {name: value for name, value in msgspec.structs.asdict(store).items() if value}
    return msgspec.structs.replace(rest, **given)


def has_lists(url: str, settings: StorageSettings) -> bool:
    """Whether the store of a URL says which objects it has. Plain web servers do not.

    Raises:
        ConfigError: As `kvstore_spec`.
    """
    return kvstore_spec(url, settings)[0]["driver"] != "http"


def _s3(bucket: str, store: StoreSettings) -> dict[str, Any]:
    spec: dict[str, Any] = {"driver": "s3", "bucket": bucket}
    endpoint = store.endpoint or _endpoint_of_environment()
    region = store.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if endpoint:
        spec["endpoint"] = endpoint.rstrip("/")
    if region or endpoint:
        spec["aws_region"] = region or "us-east-1"  # services other than Amazon's do not mind
    if store.anonymous:
        spec["aws_credentials"] = {"type": "anonymous"}
    else:
        credentials = aws_credentials(f"s3://{bucket}", store.profile)
        if credentials is not None:
            spec["aws_credentials"] = credentials
    if store.requester_pays:
        spec["requester_pays"] = True
    return spec


def _endpoint_of_environment() -> str | None:
    for variable in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        endpoint = os.environ.get(variable)
        if endpoint:
            check_endpoint(endpoint, variable)
            return endpoint
    return None


def _gcs(bucket: str, store: StoreSettings) -> dict[str, Any]:
    if store.anonymous:
        # Public objects are plain files of the web.
        return {"driver": "http", "base_url": f"{(store.endpoint or _GOOGLE).rstrip('/')}/{bucket}/"}
    for name in ("endpoint", "region", "profile", "requester_pays"):
        if getattr(store, name):
            raise ConfigError(
                f"gs://{bucket}: the storage settings give a {name}, which Google's store takes from the environment "
                "(GOOGLE_APPLICATION_CREDENTIALS) or not at all; leave it out"
            )
    return {"driver": "gcs", "bucket": bucket}
