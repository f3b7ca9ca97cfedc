# SPDX-License-Identifier: Apache-2.0
"""Resolve URLs to addresses (kind of store, bucket, key, settings) and open obstore's clients for them.

Credentials are found by each store's own chain, in obstore, with three exceptions that obstore does not support:
sections of `~/.aws` with keys (read by this module), sections with a role, a program or single sign-on (read by boto3,
if it is installed), and keys in a profile of the Multi-Storage Client. No message, state or pickle contains them.

Of a profile (`msc://`), the Multi-Storage Client's package resolves only the address and its settings. obstore reads
the data, so ranges, page cache and errors are the same as for `s3://`: 480 ranges of 100 KB per second, the client 96.
"""

from __future__ import annotations

import configparser
import contextlib
import functools
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import msgspec

from energon_grain.errors import ConfigError
from energon_grain.extras import needed_for
from energon_grain.storage.settings import StorageSettings, StoreSettings, as_msc, check_endpoint, storage_settings
from energon_grain.storage.store import opener_of, other_schemes
from energon_grain.storage.urls import STORE_SCHEMES, check_url, is_url, revision_of, scheme_of, without_revision

_KINDS = {"hf": "hub", "gs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure", "https": "http"}
"""Schemes whose kind of store has another name."""
_PROVIDERS = dict.fromkeys(("s3", "s8k", "gcs_s3"), "s3://") | {"gcs": "gs://", "azure": "az://", "file": "file:///"}
"""Kinds of stores of the Multi-Storage Client, and their URL prefixes."""
_Keys = tuple[tuple[str, Any], ...]
_GOOGLE = "https://storage.googleapis.com"
_GOOGLE_FILES = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH")
_BUCKET = re.compile(r"[A-Za-z0-9._-]{3,255}")
_HUB_DATASET = re.compile(r"hf://datasets/([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:/(.*))?", re.IGNORECASE | re.DOTALL)
_AZURE_HOST = re.compile(r"([a-z0-9]+)\.(?:blob|dfs)\.")
_IF_PUBLIC = "set `anonymous: true` for it in the storage settings if it is public"
_AWS_FILES = {"AWS_CONFIG_FILE": "~/.aws/config", "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials"}
_SIGNS_IN = re.compile(r"aws_access_key_id|role_arn|credential_process|web_identity_token_file|sso_|login_|source_")
"""Prefixes of entries that provide credentials in a section of `~/.aws`."""
_AWS_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_AZURE_ENDPOINTS = ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
_RENEWED = timedelta(minutes=10)
"""Assumed lifetime of a session token that another program renews. obstore refreshes some minutes earlier."""


NO_HOST = "127.0.0.1:0"
"""Target of requests that a redirect would send to another host: nothing can listen on port 0."""
_OWN_VARIABLES = {"s3": "AWS_", "gcs": "GOOGLE_|GCE_", "azure": "AZURE_|AZURITE_|IDENTITY_|MSI_"}
"""Prefixes of environment variables with endpoints for a store's client."""
_OWN_HOSTS = {
    "s3": ("sts.amazonaws.com", "169.254.169.254", "169.254.170.2", "169.254.170.23", "fd00:ec2::254", "fd00:ec2::23"),
    "gcs": ("googleapis.com", "metadata.google.internal", "metadata", "169.254.169.254"),
    "azure": ("login.microsoftonline.com", "169.254.169.254"),
}
"""Hosts that issue credentials, and the service itself if it has a single host. Includes their subdomains."""


@dataclass(frozen=True, slots=True)
class Address:
    """Location of an object or folder.

    Attributes:
        kind: `s3`, `gcs`, `azure`, `http`, `hub` (Hugging Face), `memory`, or `file` for local paths.
        bucket: Bucket, container, or dataset of the Hub with its revision; empty for stores without buckets.
        key: Key in the bucket, without leading and trailing slashes; for local paths, the path.
        store: Settings of the store, including those from the environment.
        keys: Credentials of a profile of the Multi-Storage Client, with obstore's names.
        added: Whether another package adds the store; then the kind is its scheme.
    """

    kind: str
    bucket: str
    key: str
    store: StoreSettings
    keys: _Keys = field(default=(), repr=False)
    added: bool = False

    @property
    def service(self) -> str:
        """Name of the store in messages."""
        amazon = f"Amazon S3 in {self.store.region}" if self.store.region else "Amazon S3"
        return self.store.endpoint or {"s3": amazon, "gcs": "Google Cloud Storage"}.get(self.kind, self.kind)

    @property
    def settings_hint(self) -> str:
        """The settings to check if the store does not respond."""
        variable = {"s3": "AWS_ENDPOINT_URL", "azure": "AZURE_STORAGE_ACCOUNT_NAME"}.get(self.kind)
        if variable is None:
            return "the network, and the address"
        return f"the endpoint (`endpoint` of this store in the storage settings, else {variable})"

    @property
    def credentials_hint(self) -> str:
        """The credentials that were sent, and how to fix them."""
        if self.kind == "http":
            return "no credentials are sent to web servers: make the files public on this one"
        if self.store.anonymous:
            return "no credentials are sent, because the storage settings set `anonymous: true` for it: remove that"
        if self.keys:
            return "check the credentials in the configuration of the Multi-Storage Client"
        if self.kind == "gcs":
            return f"check GOOGLE_APPLICATION_CREDENTIALS, or log in with gcloud, or {_IF_PUBLIC}"
        if self.kind == "azure":
            return (
                "check the credentials in AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or the other variables of "
                f"Azure's tools (without any, this machine's identity is used), or {_IF_PUBLIC}"
            )
        section = aws_section("", self.store)
        if section is not None:
            return f"check the credentials of the profile {section[0]!r} in ~/.aws, or {_IF_PUBLIC}"
        if os.environ.get("AWS_ACCESS_KEY_ID"):
            return f"check the credentials in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or {_IF_PUBLIC}"
        return (
            "no credentials were found in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or in ~/.aws, "
            f"so this machine's role was used, if it has one; set them there, or {_IF_PUBLIC}"
        )


def address_of(url: str, settings: StorageSettings) -> Address:
    """Resolve a URL.

    Raises ConfigError if it has no bucket, its scheme is unknown, or the store does not support a setting.
    """
    real, store, keys = _resolved(check_url(url), settings)
    scheme, rest = scheme_of(real) or "", real.partition("://")[2]
    kind = _KINDS.get(scheme, scheme)
    if scheme not in STORE_SCHEMES and scheme != "file":
        if opener_of(scheme) is None:
            raise _unknown(url, settings)
        return Address(scheme, "", rest.strip("/"), store, added=True)
    if kind in ("file", "memory"):
        return Address(kind, "", rest if kind == "file" else rest.strip("/"), store)
    if kind == "http":
        return _web_address(real)
    if kind == "hub":
        return _hub_address(url, real, store)
    bucket, _, key = rest.partition("/")
    if not bucket:
        raise ConfigError(f"{url}: has no bucket; write {scheme}://bucket/folder")
    address = Address(kind, bucket, key.strip("/"), store, keys)
    return {"gcs": _google_address, "s3": _aws_address, "azure": _azure_address}[kind](address)


def _unknown(url: str, settings: StorageSettings) -> ConfigError:
    known = ", ".join(f"{name}://" for name in (*STORE_SCHEMES, "msc", "rclone", "dss", *other_schemes()))
    own = ", ".join(prefix for prefix, one in settings.stores.items() if one.location is not None)
    return ConfigError(
        f"{url}: unknown scheme; object stores are {known} and URLs with a `location` in the storage settings "
        f"({own or 'none now'}); file:// is a local path"
    )


def _web_address(url: str) -> Address:
    parts = urlsplit(check_url(url))
    # obstore encodes names again.
    key = unquote(parts.path).strip("/")
    return Address("http", "", key, StoreSettings(endpoint=f"{parts.scheme}://{parts.netloc}"))


def _google_address(address: Address) -> Address:
    store = address.store
    if store.anonymous:
        # Public objects are plain web files, even if listing is not allowed.
        endpoint = f"{(store.endpoint or _GOOGLE).rstrip('/')}/{address.bucket}"
        return Address("http", "", address.key, StoreSettings(endpoint=endpoint))
    for name in ("endpoint", "region", "profile", "requester_pays"):
        if getattr(store, name):
            raise ConfigError(
                f"gs://{address.bucket}: the storage settings set a {name}, which Google's store does not support "
                "(it reads GOOGLE_APPLICATION_CREDENTIALS from the environment); remove it"
            )
    return address


def _aws_address(address: Address) -> Address:
    endpoint = address.store.endpoint or _endpoint_of_environment(_AWS_ENDPOINTS)
    region = address.store.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    region = region or (endpoint and "us-east-1")  # services other than Amazon's ignore the region
    return _at(address, endpoint, region)


def _azure_address(address: Address) -> Address:
    endpoint = address.store.endpoint or _endpoint_of_environment(_AZURE_ENDPOINTS)
    bucket, _, host = address.bucket.partition("@")
    account = os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
    if host and not address.store.endpoint:
        endpoint = f"https://{host.replace('.dfs.', '.blob.')}"
    elif account and not endpoint:
        endpoint = f"https://{account}.blob.core.windows.net"
    return _at(replace(address, bucket=bucket), endpoint, address.store.region)


def _at(address: Address, endpoint: str | None, region: str | None) -> Address:
    store = msgspec.structs.replace(address.store, endpoint=endpoint and endpoint.rstrip("/"), region=region)
    return replace(address, store=store)


def _hub_address(url: str, real: str, store: StoreSettings) -> Address:
    revision = revision_of(real)
    plain = _HUB_DATASET.fullmatch(without_revision(real))
    if plain is None or revision == "":
        raise ConfigError(
            f"{url}: not a dataset of the Hub; write hf://datasets/OWNER/NAME, or "
            "hf://datasets/OWNER/NAME@REVISION, then a folder or file (write a slash in a revision as %2F)"
        )
    for name in ("region", "profile", "requester_pays"):
        if getattr(store, name):
            raise ConfigError(f"{url}: the storage settings set a {name}, which the Hub does not support; remove it")
    endpoint = store.endpoint or os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    check_endpoint(endpoint, "HF_ENDPOINT")
    store = msgspec.structs.replace(store, endpoint=endpoint.rstrip("/"))
    return Address("hub", f"{plain[1]}@{unquote(revision or 'main')}", (plain[2] or "").strip("/"), store)


def has_lists(url: str, settings: StorageSettings) -> bool:
    """Whether the store of a URL can list objects. Plain web servers cannot. Raises as `address_of`."""
    return address_of(url, settings).kind != "http"


def local_path(url: str) -> str | None:
    """The local path that a URL is mapped to; None if it is not mapped to one."""
    try:
        address = address_of(url, storage_settings())
    except ConfigError:
        return None  # reported when the URL is opened
    return os.path.normpath(address.key) if address.kind == "file" else None


def _resolved(url: str, settings: StorageSettings) -> tuple[str, StoreSettings, _Keys]:
    """Resolve aliases: the actual URL, the settings of the store there, and credentials of a profile."""
    url = as_msc(url)
    prefix, store = settings.store(url)
    keys: _Keys = ()
    scheme = scheme_of(url)
    if store.location is None and scheme in ("msc", "dss"):
        name = url.partition("://")[2].partition("/")[0]
        prefix = f"{scheme}://{name}"
        if scheme == "dss":
            profile = StoreSettings(location=_dataset_service(url, name))
        elif name in ("default", "__filesystem__"):
            profile = StoreSettings(location="file:///")
        else:
            where = ("MSC_CONFIG", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "HOME")
            profile, keys = _profile(prefix, name, tuple(os.environ.get(variable) for variable in where))
        store = _merged_settings(store, profile)
    if store.location is None:
        return url, store, keys
    scheme, _, folder = store.location.partition("://")
    name = url[len(prefix.rstrip("/")) :].lstrip("/")
    if scheme in ("http", "https"):
        name = quote(name)  # web URLs are encoded
    real = f"{folder.rstrip('/')}/{name}".rstrip("/")
    real = f"{scheme}://{real if scheme == 'file' else real.lstrip('/')}"
    return real, _merged_settings(store, settings.store(real)[1]), keys


def _merged_settings(store: StoreSettings, rest: StoreSettings) -> StoreSettings:
    """The settings of `store`; unset ones are taken from `rest`."""
    given = {name: value for name, value in msgspec.structs.asdict(store).items() if value}
    return msgspec.structs.replace(rest, **given)


def _endpoint_of_environment(variables: Iterable[str]) -> str | None:
    for variable in variables:
        endpoint = os.environ.get(variable)
        if endpoint:
            check_endpoint(endpoint, variable)
            return endpoint
    return None


def _dataset_service(url: str, name: str) -> str:
    """The location of `dss://name@version`: a local folder, as in Energon."""
    cache = os.environ.get("NVDATASET_CACHE_DIR")
    dataset, _, version = name.partition("@")
    if not (dataset and version):
        raise ConfigError(f"{url}: has no version; write dss://name@version/path")
    if not cache:
        raise ConfigError(f"{url}: set NVDATASET_CACHE_DIR to the folder that holds dss:// datasets; it is not set")
    return f"file://{os.path.join(os.path.abspath(cache), dataset, version)}"


@functools.lru_cache(maxsize=64)
def _profile(prefix: str, name: str, environment: tuple[str | None, ...]) -> tuple[StoreSettings, _Keys]:
    """Settings and credentials of a profile in the files of the Multi-Storage Client, or of rclone, which it reads.

    Cached for each environment.
    """
    advice = f"the storage settings: `stores: {{'{prefix}': {{location: 's3://bucket/folder'}}}}`"
    with needed_for(f"reading {prefix}", instead=f"set its location in {advice}"):
        from multistorageclient.config import StorageClientConfig
        from multistorageclient.rclone import read_rclone_config
        from multistorageclient.utils import expand_env_vars
    try:
        files = (StorageClientConfig.read_msc_config()[0], read_rclone_config()[0])
        profile: Mapping[str, Any] = expand_env_vars(_written_profile(name, files))
        provider = profile.get("storage_provider") or {}
        kind, options = str(provider.get("type", "")).lower(), provider.get("options") or {}
        keys = _keys_of(profile.get("credentials_provider") or {})
    except Exception as error:  # any exception; its text may quote keys
        raise ConfigError(
            f"{prefix}: the Multi-Storage Client cannot read its configuration ({type(error).__name__}); "
            "run `msc config validate` for details"
        ) from None
    if not profile:
        raise ConfigError(
            f"{prefix}: no configuration of the Multi-Storage Client (MSC_CONFIG, ~/.msc_config.yaml) or of rclone "
            f"(~/.config/rclone/rclone.conf) has a profile {name!r}; add it there, or to {advice}"
        )
    if kind not in _PROVIDERS:
        raise ConfigError(
            f"{prefix}: the profile {name!r} has type {kind!r}, not one of {', '.join(_PROVIDERS)}; add it to {advice}"
        )
    return _settings_of(kind, options), tuple(keys.items())


def _written_profile(name: str, files: Iterable[Any]) -> dict[str, Any]:
    """The entries of a profile in the first file that has it; {} if none has."""
    for file in files:
        profiles = (file or {}).get("profiles") or {}
        if name in profiles:
            return dict(profiles[name])
    return {}


def _settings_of(kind: str, options: Mapping[str, Any]) -> StoreSettings:
    """The settings of a store of the Multi-Storage Client, one of `_PROVIDERS`."""
    endpoint = options.get("endpoint_url") or (_GOOGLE if kind == "gcs_s3" else None)
    if endpoint and not is_url(endpoint):
        endpoint = f"https://{endpoint}"  # rclone accepts endpoints that are not URLs
    return StoreSettings(
        location=_PROVIDERS[kind] + str(options.get("base_path", "")).strip("/"),
        endpoint=endpoint if kind != "gcs" else None,
        region=options.get("region_name"),
        profile=options.get("profile_name"),
        anonymous=options.get("signature_version") == "UNSIGNED" or bool(options.get("skip_signature")),
    )


def _keys_of(provider: Mapping[str, Any]) -> dict[str, Any]:
    """The credentials in a profile, with obstore's names; empty: use the store's own chain."""
    kind, options = provider.get("type"), provider.get("options") or {}
    if kind == "S3Credentials":
        keys = {"access_key_id": options["access_key"], "secret_access_key": options["secret_key"]}
        return {**keys, "token": options.get("session_token")}
    if kind == "AzureCredentials":
        parts = {part.partition("=")[0]: part.partition("=")[2] for part in options["connection"].split(";")}
        key = parts.get("AccountKey")
        return {"access_key": key} if key else {"sas_token": parts["SharedAccessSignature"]}
    if kind == "GoogleServiceAccountCredentialsProvider":
        if "file" in options:
            return {"service_account": options["file"]}
        return {"service_account_key": msgspec.json.encode(options["info"]).decode()}
    return {}


def open_store(address: Address, url: str, timeout_s: float) -> Any:
    """Open the store of an address with obstore. Raises ConfigError for an invalid name; the message has the URL."""
    from obstore import store as stores
    from obstore.exceptions import BaseError

    client: dict[str, Any] = {"timeout": timedelta(seconds=timeout_s), "allow_http": True}
    # The caller retries requests.
    retries = {"max_retries": 0, "retry_timeout": timedelta(seconds=timeout_s)}
    options: Any = {"retry_config": retries, "client_options": client}
    store = address.store
    try:
        if address.kind == "memory":
            return _memory()
        if address.kind == "http":
            return stores.HTTPStore(str(store.endpoint), **options)
        if address.kind == "gcs":
            client |= _own_hosts_only(address, _GOOGLE, _hosts_of_service_account(address.keys))
            return stores.GCSStore(address.bucket, **dict(address.keys), **options)
        if address.kind == "azure":
            azure = _azure_options(address, url)
            if not store.anonymous:
                account = azure["config"]["account_name"]
                own = store.endpoint or f"https://{account}.blob.core.windows.net"
                client |= _own_hosts_only(address, own, [f"{account}.blob.fabric.microsoft.com"])
            return stores.AzureStore(address.bucket, **azure, **options)
        config, credentials = _aws_config(address, url, timeout_s), _aws_credentials(address, url)
        if "skip_signature" not in credentials:
            client |= _own_hosts_only(address, *_aws_hosts(address, config["region"]))
        return stores.S3Store(address.bucket, config=config, **credentials, **options)
    except BaseError as error:
        raise ConfigError(f"{url}: {str(error).partition('Debug source')[0].strip()}") from None


def _aws_config(address: Address, url: str, timeout_s: float) -> Any:
    if not _BUCKET.fullmatch(address.bucket):
        raise ConfigError(
            f'{url}: invalid S3 bucket name "{address.bucket}": a name has 3 to 63 lower-case letters, digits, '
            f"dots and hyphens"
        )
    store = address.store
    # Objects are deleted one by one, because not all S3-compatible services support DeleteObjects.
    config: Any = {"region": store.region or _region(address.bucket, timeout_s), "disable_bulk_delete": True}
    if store.endpoint is not None:
        config["endpoint"] = store.endpoint
    if store.requester_pays:
        config["request_payer"] = True
    return config


def _own_hosts_only(address: Address, endpoint: str, others: Iterable[str] = ()) -> dict[str, Any]:
    """Options that stop obstore's client from following redirects to hosts other than the store's.

    By default it follows all redirects and only removes `Authorization`: session tokens (`x-amz-security-token`) and
    signatures in URLs (in `Referer`) are sent along. It has no option against that, except a proxy with exceptions. So
    the proxy does not exist, and the exceptions are the hosts of the store, and those that issue credentials, on any
    port.

    This cannot be combined with a proxy from the environment. In that case nothing is restricted: requests go through
    the proxy, which can restrict hosts itself.
    """
    parts = urlsplit(endpoint)
    variables = re.compile(_OWN_VARIABLES[address.kind])
    named = [value for name, value in os.environ.items() if variables.match(name)]
    if any(re.match(f"({variables.pattern})PROXY_URL$", name) for name in os.environ) or proxy_of(endpoint):
        return {}
    hosts = [parts.hostname or "", *others, *_OWN_HOSTS[address.kind], *_hosts_in(named)]
    return {"proxy_url": f"http://{NO_HOST}", "proxy_excludes": ",".join(dict.fromkeys(hosts))}


def proxy_of(url: str) -> str | None:
    """The proxy for a URL, from the environment."""
    parts = urlsplit(url)
    if urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    proxies = urllib.request.getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")


def _hosts_in(values: Iterable[object]) -> list[str]:
    """The hosts of the values that are web URLs."""
    urls = [value for value in values if isinstance(value, str) and value.startswith(("http://", "https://"))]
    with contextlib.suppress(ValueError):
        return [host for host in (urlsplit(url).hostname for url in urls) if host]
    return []


def _aws_hosts(address: Address, region: str) -> tuple[str, list[str]]:
    """The endpoint of a bucket, and further hosts: of its zone, and of services that issue its credentials."""
    zone = address.bucket.removesuffix("--x-s3").rpartition("--")[2]
    own = address.store.endpoint or f"https://s3.{region}.amazonaws.com"
    return own, [f"s3express-{zone}.{region}.amazonaws.com", f"sts.{region}.amazonaws.com"]


def _hosts_of_service_account(keys: _Keys) -> list[str]:
    """The hosts in a Google key file: of the store, and of the services that issue tokens for the key."""
    given = dict(keys)
    files = [given.get("service_account"), *map(os.environ.get, ("GOOGLE_APPLICATION_CREDENTIALS", *_GOOGLE_FILES))]
    texts = [given.get("service_account_key"), os.environ.get("GOOGLE_SERVICE_ACCOUNT_KEY")]
    for file in filter(None, files):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            texts.append(Path(file).expanduser().read_text(encoding="utf-8"))
    hosts: list[str] = []
    for text in filter(None, texts):
        with contextlib.suppress(msgspec.DecodeError):  # obstore reports the error
            key: Any = msgspec.json.decode(text)
            hosts += _hosts_in(key.values() if isinstance(key, dict) else ())
    return hosts


@functools.cache
def _memory() -> Any:
    from obstore.store import MemoryStore

    return MemoryStore()


def _region(bucket: str, timeout_s: float) -> str:
    """The region of an Amazon bucket. It is public, even in a refusal; obstore does not look it up."""
    request = urllib.request.Request(f"https://s3.amazonaws.com/{bucket}", method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            headers: Any = answer.headers
    except urllib.error.HTTPError as error:
        headers = error.headers
    except OSError:
        return "us-east-1"
    return headers.get("x-amz-bucket-region") or "us-east-1"


def _azure_options(address: Address, url: str) -> dict[str, Any]:
    endpoint = urlsplit(address.store.endpoint or "")
    host, path = _AZURE_HOST.match(endpoint.hostname or ""), endpoint.path.strip("/")
    # Emulators have the account as the first folder of the path.
    account = host[1] if host else path.rpartition("/")[2] or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
    if not account:
        raise ConfigError(
            f"{url}: the storage account is unknown; set AZURE_STORAGE_ACCOUNT_NAME, or set `endpoint: "
            "https://ACCOUNT.blob.core.windows.net` for this store in the storage settings"
        )
    config: dict[str, Any] = {"account_name": account}
    if address.store.endpoint:
        config["endpoint"] = address.store.endpoint
    if address.store.anonymous:
        config["skip_signature"] = True
    return {"config": config, **_provider(address.keys)}


def _aws_credentials(address: Address, url: str) -> dict[str, Any]:
    if address.store.anonymous:
        return {"skip_signature": True}
    section = None if address.keys else aws_section(url, address.store)
    if section is None:
        if address.keys or os.environ.get("AWS_ACCESS_KEY_ID"):
            return _provider(address.keys)
        # By default the store requests the machine's role, which takes seconds if it has none.
        return {"skip_signature": True} if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true" else {}
    name, entries = section
    if "aws_access_key_id" in entries and "role_arn" not in entries:
        held = dict(entries)

        def keys() -> dict[str, Any]:
            with contextlib.suppress(ConfigError):
                found = aws_section(url, address.store)
                if found is not None and {"aws_access_key_id", "aws_secret_access_key"} <= found[1].keys():
                    held.update({"aws_session_token": ""} | found[1])  # else a program is rewriting the file
            return {
                "access_key_id": held["aws_access_key_id"],
                "secret_access_key": held.get("aws_secret_access_key", ""),
                "token": held.get("aws_session_token") or None,
                "expires_at": datetime.now(UTC) + _RENEWED if held.get("aws_session_token") else None,
            }

        return {"credential_provider": keys}
    with needed_for(f"{url}: signing in with the profile {name!r} (without keys)"):
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    return {"credential_provider": Boto3CredentialProvider(boto3.Session(profile_name=name))}


def _provider(keys: _Keys) -> dict[str, Any]:
    """Credentials that override the environment."""
    return {"credential_provider": lambda: {**dict(keys), "expires_at": None}} if keys else {}


def aws_section(url: str, store: StoreSettings) -> tuple[str, dict[str, str]] | None:
    """The section of `~/.aws` with the credentials, and its entries; None: no section, or the environment's.

    Args:
        store: Its `profile` is used first, then the environment's keys, then the section named by `AWS_PROFILE`, then
            `default`.

    Raises ConfigError: a named section does not exist, or the environment holds half of a key pair.
    """
    if store.profile is None and _has_keys(url):
        return None
    named = store.profile or os.environ.get("AWS_PROFILE")
    files = _aws_files()
    sections = _sections_of(files, url)
    name = named or "default"
    if name in sections and (named or any(map(_SIGNS_IN.match, sections[name]))):
        return name, sections[name]
    if named is None:
        return None
    source = "AWS_PROFILE" if store.profile is None else "the storage settings"
    there = ", ".join(sorted(sections)) or "none"
    raise ConfigError(
        f"{url}: the profile {name!r} of {source} has no section in {' or '.join(reversed(files))}; there are: {there}"
    )


def _has_keys(url: str) -> bool:
    """Whether the environment holds Amazon keys. Raises ConfigError if it holds half of a pair."""
    if not os.environ.get("AWS_ACCESS_KEY_ID"):
        return False
    if not os.environ.get("AWS_SECRET_ACCESS_KEY"):
        raise ConfigError(f"{url}: AWS_ACCESS_KEY_ID is set, but AWS_SECRET_ACCESS_KEY is not; set both, or none")
    return True


def _aws_files() -> list[str]:
    return [os.environ.get(variable) or usual for variable, usual in _AWS_FILES.items()]


def _sections_of(files: Iterable[str], url: str) -> dict[str, dict[str, str]]:
    """The entries of each section in files such as those in `~/.aws`; missing files have none."""
    sections: dict[str, dict[str, str]] = {}
    for file in files:
        parser = configparser.RawConfigParser(default_section="", strict=False, allow_no_value=True)
        try:
            parser.read_string(Path(file).expanduser().read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
        except configparser.Error as error:  # its text quotes lines
            raise ConfigError(f"{url}: {file}: not a valid AWS profile file ({type(error).__name__})") from None
        for section in parser.sections():
            entries = {name: value or "" for name, value in parser[section].items()}
            sections.setdefault(re.sub(r"^profile\s+", "", section).strip(), {}).update(entries)
    return sections
