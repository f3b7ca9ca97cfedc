"""A Hub on loopback: datasets with commits and branches, trees in pages, and files from a second host by signed URLs.

It speaks what the Hub of Hugging Face does of `/api/datasets/…/revision`, `…/tree` and `/datasets/…/resolve`: tokens,
private and gated datasets, error codes, `X-Linked-*`, redirects, rate limits. `python tests/hub_server.py FOLDER
OWNER/NAME` serves a folder, and prints the end point; for each line of its input it prints how many requests there were
of the Hub and of its content network, and counts anew.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

TOKEN = "hf_do-not-tell"
LFS_BYTES = 2000
Answer = tuple[int, dict[str, str], bytes]


@dataclass(frozen=True)
class Asked:
    """A request: of the Hub, or of its content network (`of`)."""

    of: str
    path: str
    headers: Mapping[str, str]


@dataclass
class HubServer:
    """A running server.

    Attributes:
        url: Of the Hub.
        cdn: Of the content network.
        commits: Files of each commit, by dataset and commit.
        branches: Commits, by dataset and branch.
        private: Datasets that only those see who have the token.
        gated: Likewise, but everybody may know of them.
        limited: How many of the next requests to the Hub are refused as too many, and the header that says so.
        page: Entries of a page of a tree.
        asked: All requests.
        instead: Answers a request in place of the server, if it gives something: (of, path).
        changed: Makes another answer of the server's: (of, path, answer).
        sent: Sends an answer in place of the server, and says whether it did: (connection, of, answer).
    """

    url: str = ""
    cdn: str = ""
    commits: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    branches: dict[str, dict[str, str]] = field(default_factory=dict)
    private: set[str] = field(default_factory=set)
    gated: set[str] = field(default_factory=set)
    limited: int = 0
    limit_headers: dict[str, str] = field(default_factory=lambda: {"Retry-After": "0"})
    page: int = 1000
    asked: list[Asked] = field(default_factory=list)
    instead: Callable[[str, str], Answer | None] = lambda of, path: None
    changed: Callable[[str, str, Answer], Answer] = lambda of, path, answer: answer
    sent: Callable[[BaseHTTPRequestHandler, str, Answer], bool] = lambda connection, of, answer: False
    _signature: int = 0

    def commit(self, repo: str, files: Path | Mapping[str, bytes], branch: str = "main") -> str:
        """Put files in place of those of a branch; give the commit."""
        if isinstance(files, Path):
            paths = [path for path in files.rglob("*") if path.is_file()]
            files = {path.relative_to(files).as_posix(): path.read_bytes() for path in paths}
        sums = sorted((name, hashlib.sha1(data).hexdigest()) for name, data in files.items())
        made = hashlib.sha1(repr((repo, sums)).encode()).hexdigest()
        self.commits.setdefault(repo, {})[made] = dict(files)
        self.branches.setdefault(repo, {})[branch] = made
        return made

    def expire(self) -> None:
        """No signature that was given holds any more."""
        self._signature += 1

    def count(self, of: str, part: str = "") -> int:
        """Requests to the Hub, or to its content network, whose paths contain a text."""
        return sum(each.of == of and part in each.path for each in self.asked)

    def of_hub(self, path: str, headers: Mapping[str, str]) -> Answer:
        if self.limited > 0:
            self.limited -= 1
            return 429, self.limit_headers, b""
        parts = urlsplit(path)
        if re.fullmatch("/api/datasets/[^/]+/[^/]+", parts.path):  # other clients ask so
            return self.of_hub(f"{parts.path}/revision/main", headers)
        found = re.fullmatch(
            r"(?:/api)?/datasets/([^/]+/[^/]+)/(revision|tree|paths-info|resolve)/([^/]+)/?(.*)"
            r"|/api/resolve-cache/datasets/([^/]+/[^/]+)/([^/]+)/(.*)",
            parts.path,
        )
        if found is None:
            return _refusal(404, "", "Not Found")
        repo, call, revision, rest, repo_2, commit_2, rest_2 = (unquote(each or "") for each in found.groups())
        repo, call, revision, rest = (repo, call, revision, rest) if repo else (repo_2, "cached", commit_2, rest_2)
        sent = headers.get("Authorization")
        if sent not in (None, f"Bearer {TOKEN}"):
            return _refusal(401, "", f"Invalid credentials in Authorization header ({sent})")
        if repo not in self.commits or (repo in self.private and sent is None):
            return _refusal(401 if sent is None else 404, "RepoNotFound", "Repository not found")
        if repo in self.gated and sent is None:
            return _refusal(401, "GatedRepo", f"Access to dataset {repo} is restricted.")
        commit = self.branches[repo].get(revision, revision)
        files = self.commits[repo].get(commit)
        if files is None:
            return _refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if call == "revision":
            return _json({"id": repo, "sha": commit, "private": repo in self.private})
        if call == "paths-info":  # which other clients ask for
            wanted = parse_qs(headers.get("body", "")).get("paths", [])
            return _json([entry for entry in self._entries(files, "").values() if entry["path"] in wanted])
        if call == "tree":
            return self._tree(parts.path, files, rest, parse_qs(parts.query))
        return self._resolve(call, repo, commit, files, rest, headers)

    def _tree(self, path: str, files: Mapping[str, bytes], folder: str, query: dict[str, list[str]]) -> Answer:
        entries = self._entries(files, folder)
        inside = f"{folder}/" if folder else ""
        if not entries and folder:
            return _refusal(404, "EntryNotFound", f"{folder} does not exist")
        if query.get("recursive") not in (["true"], ["True"]):
            entries = {name: entry for name, entry in entries.items() if "/" not in name[len(inside) :]}
        start = int(query.get("cursor", ["0"])[0])
        page = list(entries.values())[start : start + self.page]
        status, headers, body = _json(page)
        if start + self.page < len(entries):
            recursive = query.get("recursive", ["false"])[0]
            headers["Link"] = f'<{self.url}{path}?recursive={recursive}&cursor={start + self.page}>; rel="next"'
        return status, headers, body

    def _entries(self, files: Mapping[str, bytes], folder: str) -> dict[str, dict[str, Any]]:
        inside = f"{folder}/" if folder else ""
        entries: dict[str, dict[str, Any]] = {}
        for name, data in sorted(files.items()):
            if not name.startswith(inside):
                continue
            steps = name[len(inside) :].split("/")
            for depth in range(1, len(steps)):
                at = inside + "/".join(steps[:depth])
                entries[at] = {"type": "directory", "oid": hashlib.sha1(at.encode()).hexdigest(), "size": 0, "path": at}
            entries[name] = {"type": "file", "oid": hashlib.sha1(data).hexdigest(), "size": len(data), "path": name}
            if len(data) >= LFS_BYTES:
                sha = hashlib.sha256(data).hexdigest()
                entries[name] |= {"lfs": {"oid": sha, "size": len(data), "pointerSize": 130}, "xetHash": sha}
        return entries

    def _resolve(
        self, call: str, repo: str, commit: str, files: Mapping[str, bytes], name: str, headers: Mapping[str, str]
    ) -> Answer:
        data = files.get(name)
        if data is None:
            return _refusal(404, "EntryNotFound", "Entry not found")
        about = {"X-Repo-Commit": commit}
        if len(data) >= LFS_BYTES:
            sha = hashlib.sha256(data).hexdigest()
            to = f"{self.cdn}/{repo}/{commit}/{quote(name)}?Signature={self._signature}"
            about |= {"X-Linked-Size": str(len(data)), "X-Linked-Etag": f'"{sha}"', "Location": to}
            return 302, about, f"Found. Redirecting to {to}".encode()
        if call == "resolve":
            return 307, about | {"Location": f"/api/resolve-cache/datasets/{repo}/{commit}/{quote(name)}"}, b""
        return _ranged(data, headers, about)

    def of_cdn(self, path: str, headers: Mapping[str, str]) -> Answer:
        if "Authorization" in headers:
            return 400, {}, b"Only one auth mechanism allowed"
        parts = urlsplit(path)
        if len(steps := unquote(parts.path).lstrip("/").split("/", 3)) < 4:
            return 404, {}, b""
        owner, name, commit, file = steps
        if parse_qs(parts.query).get("Signature") != [str(self._signature)]:
            return 403, {}, b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"
        return _ranged(self.commits[f"{owner}/{name}"][commit][file], headers, {"ETag": '"of the network"'})


def _json(value: Any) -> Answer:
    return 200, {"Content-Type": "application/json; charset=utf-8"}, json.dumps(value).encode()


def _refusal(status: int, code: str, said: str) -> Answer:
    _, headers, body = _json({"error": said})
    return status, headers | {"X-Error-Message": said} | ({"X-Error-Code": code} if code else {}), body


def _ranged(data: bytes, headers: Mapping[str, str], more: dict[str, str]) -> Answer:
    wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", headers.get("Range", ""))
    if not wanted:
        return 200, more, data
    start, stop = int(wanted[1]), min(int(wanted[2]) + 1, len(data))
    return 206, {**more, "Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"}, data[start:stop]


@contextmanager
def running_hub() -> Generator[HubServer]:
    """A Hub and its content network on free ports, until the end of the block."""
    server = HubServer()
    with ExitStack() as ends:
        server.url = ends.enter_context(_listening(server, "hub", server.of_hub))
        server.cdn = ends.enter_context(_listening(server, "cdn", server.of_cdn))
        yield server


class _Listening(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # who has enough goes away
            super().handle_error(request, client_address)


@contextmanager
def _listening(server: HubServer, of: str, answer: Callable[[str, Mapping[str, str]], Answer]) -> Generator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            given = {name.title(): value for name, value in self.headers.items()}  # some clients write them small
            given["body"] = self.rfile.read(int(given.get("Content-Length", "0"))).decode()
            server.asked.append(Asked(of, self.path, given))
            given_back = server.instead(of, self.path) or answer(self.path, given)
            status, headers, body = server.changed(of, self.path, given_back)
            if server.sent(self, of, (status, headers, body)):
                return
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)  # `Connection: close` closes it
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    with _Listening(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            # Hosts of two names: what is sent to one of them alone must not be sent to the other.
            yield f"http://{'127.0.0.1' if of == 'hub' else 'localhost'}:{listening.server_port}"
        finally:
            listening.shutdown()
            thread.join()


if __name__ == "__main__":
    with running_hub() as hub:
        hub.commit(sys.argv[2], Path(sys.argv[1]))
        print(hub.url, flush=True)
        for _ in sys.stdin:
            print(json.dumps({of: hub.count(of) for of in ("hub", "cdn")}), flush=True)
            hub.asked.clear()
