"""Azure's emulator, Azurite, on loopback: what tests of Azure run against where it is installed.

npm install --prefix FOLDER azurite
AZURITE=FOLDER/node_modules/.bin/azurite-blob python -m pytest tests/storage/test_azure.py
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import subprocess
import threading
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from urllib.parse import quote

from azure_server import ACCOUNT, KEY, shared_key

_VERSION = "2021-12-02"
_OPTIONS = ("--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck", "--silent")


class Azurite:
    """The emulator, as `azure_server.AzureServer`.

    Attributes:
        url: End point of the account.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def create(self, container: str) -> None:
        """Make a container, for those who have the key."""
        self._put(f"/{container}?restype=container", {})

    def publish(self, container: str) -> None:
        """Let everybody read a container."""
        self._put(f"/{container}?comp=acl&restype=container", {"x-ms-blob-public-access": "container"})

    def token(self) -> str:
        """A signature for whoever has it."""
        fields = {"sp": "rwdlac", "ss": "b", "srt": "sco", "se": "2099-01-01T00:00:00Z", "sv": _VERSION}
        signed = [ACCOUNT, *(fields[name] for name in ("sp", "ss", "srt")), "", fields["se"], "", "", fields["sv"], ""]
        digest = hmac.new(base64.b64decode(KEY), "\n".join([*signed, ""]).encode(), hashlib.sha256).digest()
        fields["sig"] = base64.b64encode(digest).decode()
        return "&".join(f"{name}={quote(value, safe='')}" for name, value in fields.items())

    def _put(self, path: str, more: dict[str, str]) -> None:
        headers = {"x-ms-version": _VERSION, "x-ms-date": "Sun, 01 Nov 2026 00:00:00 GMT", **more}
        headers["Authorization"] = shared_key("PUT", f"/{ACCOUNT}{path}", headers)
        request = urllib.request.Request(f"{self.url}{path}", method="PUT", headers=headers, data=b"")
        request.add_unredirected_header("Content-Type", "")
        with urllib.request.urlopen(request, timeout=60):
            pass


@contextmanager
def running_azurite() -> Generator[Azurite]:
    """The emulator on a free port, in memory, until the end of the block."""
    command = [os.environ["AZURITE"], "--blobHost", "127.0.0.1", "--blobPort", "0", *_OPTIONS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            found = next(filter(None, map(re.compile("listens on (http.*)$").search, process.stdout)), None)
            assert found is not None, f"{command} does not start"
            rest = threading.Thread(target=process.stdout.read, daemon=True)
            rest.start()
            yield Azurite(f"{found[1].strip()}/{ACCOUNT}")
        finally:
            process.terminate()
