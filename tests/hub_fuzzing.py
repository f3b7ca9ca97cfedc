"""Hostile and damaged answers of the Hub and its content network: `python tests/hub_fuzzing.py SEED COUNT [FIRST]`.

In each case some answers are other ones than a Hub's, or some files of the dataset are damaged. What was asked for must
come as it is (of damaged files: anything), or be refused by an error with a name, soon and in bounded memory; the token
may go to the Hub alone, and nothing may be written but what the cache folder holds. Prints how many did which; a case
that breaks a rule is named with what it was, and the status is 1.
"""

from __future__ import annotations

import collections
import faulthandler
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hub_server import TOKEN, Answer, HubServer, running_hub
from parquet_files import write_numbers

from energon_grain import EnergonGrainError, EPath, StorageSettings, WorkerConfig, get_train_dataset, use_storage
from energon_grain.testing import make_text_dataset

MOST_BYTES = 2 << 30
"""That the process may ask for on top of what it has when it begins."""
SLOW_S = 60.0
LINES = b"".join(b'{"text": "line %d"}\n' % number for number in range(300))
NAMES = (
    "../x",
    "/etc/passwd",
    "a//b",
    "a/./b",
    "",
    ".",
    "x\0y",
    "x" * 100_000,
    "\ud800",
    "C:\\x",
    "set/../../x",
    "é\u202e",
)
SIZES = (-1, 0, 1, 1 << 31, 1 << 62, 1 << 63, 1 << 200, 1.5, "12", None, True, [], 10**400)
PLACES = (
    *("", "?", "//", "http://", "http://[::1", "http://127.0.0.1:1/x", "http://localhost:1/x", "http://name.invalid/x"),
    *("file:///etc/passwd", "ftp://localhost/x", "javascript:1", "data:,x", "gopher://localhost", "\\\\host\\x", "%00"),
    *("http://user:word@localhost:1/", "/api/datasets", "http://localhost:99999/", "x" * 60_000),
)
STATUSES = (
    200,
    203,
    204,
    206,
    226,
    300,
    301,
    302,
    304,
    307,
    400,
    401,
    403,
    404,
    408,
    410,
    416,
    429,
    500,
    502,
    503,
    599,
)
WAITS = (
    "0",
    "0.1",
    "-5",
    "soon",
    str(10**9),
    "1" * 5000,
    "Thu, 01 Jan 1970 00:00:00 GMT",
    "Fri, 99 Foo 9999 25:61:61 GMT",
)


def hostile(random: random.Random, of: str, path: str, answer: Answer, url: str) -> Answer:
    """Another answer than this one."""
    status, headers, body = answer[0], dict(answer[1]), answer[2]
    kind = random.choice(("cut", "longer", "lies", "page", "status", "place", "json", "json", "tree", "tree", "header"))
    if kind in ("json", "tree") and "json" not in headers.get("Content-Type", ""):
        kind = random.choice(("cut", "longer", "lies", "page", "header"))
    if kind == "cut":
        body = body[: random.randrange(len(body) + 1)]
        if random.random() < 0.7:
            headers |= {"Content-Length": str(len(answer[2])), "Connection": "close"}
    elif kind == "longer":
        body += bytes(random.choice((1, 7, 5000)))
    elif kind == "lies":
        size = random.choice((0, 1, len(body) + 1, 1 << 40, 1 << 70, -3))
        ranges = (
            f"bytes 0-{size}/{size}",
            f"bytes {size}-0/*",
            "bytes */5",
            "bytes=0-3",
            "x",
            "bytes 0-3/4, bytes 5-6/7",
        )
        headers |= {"Content-Range": random.choice(ranges)}
    elif kind == "page":
        status, headers, body = 200, {"Content-Type": "text/html"}, b"<html><title>Sign in</title>" + b"x" * 3000
    elif kind == "status":
        status = random.choice(STATUSES)
        headers |= {"Retry-After": random.choice(WAITS)} if random.random() < 0.5 else {}
        headers |= (
            {"X-Error-Message": random.choice((TOKEN, "x" * 30_000, "\x1b[2J", "é"))} if random.random() < 0.5 else {}
        )
        headers |= {"X-Error-Code": random.choice(("EntryNotFound", "GatedRepo", "RevisionNotFound", "?"))}
    elif kind == "place":
        places = (*PLACES, url + path, f"{url}{path}&again={random.random()}", path)
        status, headers, body = random.choice((301, 302, 303, 307, 308)), {"Location": random.choice(places)}, b""
    elif kind == "header":
        value = random.choice(("", "gzip", "0", "x" * 60_000, '"7"', "W/", "chunked", "-1", "identity, gzip"))
        names = (
            "Content-Encoding",
            "ETag",
            "X-Linked-Etag",
            "X-Linked-Size",
            "Link",
            "Content-Type",
            "Transfer-Encoding",
        )
        headers[random.choice(names)] = value
    elif kind == "json":
        changed = bytearray(body)
        for _ in range(random.choice((1, 1, 3, 20))):
            changed[random.randrange(len(changed))] = random.choice(b'{}[]",:0-9a\xff\0')
        body = random.choice((bytes(changed), b"[" * 20_000, b"null", b"{}", b"[]", b"0", b'[{"type": "file"}]', b'""'))
        headers.pop("Content-Length", None)
    else:
        found: Any = json.loads(body)
        entry: Any = random.choice(found) if isinstance(found, list) and found else found
        if isinstance(entry, dict):
            name = random.choice((*entry, "path", "size", "lfs", "sha"))
            entry[name] = random.choice((*NAMES, *SIZES, {"oid": "", "size": random.choice(SIZES)}, "0" * 40))
        if isinstance(found, list) and random.random() < 0.3:
            found += random.choice((found, found * 50, [found[:]], [None]))
        if random.random() < 0.3:
            headers["Link"] = f'<{random.choice((*PLACES, url + path))}>; rel="next"'
        body = json.dumps(found).encode()
    return status, headers, body


def damaged(random: random.Random, files: dict[str, bytes], of: str) -> dict[str, bytes]:
    """The files, some of those whose names begin so cut, changed, emptied, missing or exchanged."""
    found = dict(files)
    for name in random.choices([name for name in sorted(found) if name.startswith(of)], k=random.choice((1, 1, 2, 5))):
        if name not in found:
            continue
        data = bytearray(found[name])
        kind = random.randrange(5)
        if kind == 0:
            del data[random.randrange(len(data) + 1) :]
        elif kind == 1 and data:
            for _ in range(random.choice((1, 4, 64))):
                data[random.randrange(len(data))] = random.choice((0, 255, random.randrange(256)))
        elif kind == 2:
            data = bytearray(
                random.choice((b"", b"version https://git-lfs.github.com/spec/v1\n", b"<html>", bytes(4096)))
            )
        elif kind == 3:
            data = bytearray(found[random.choice(sorted(found))])
        found[name] = bytes(data)
        if kind == 4:
            del found[name]
    return found


def bytes_of(url: str) -> Any:
    """A file, and an end of another one."""
    with EPath(f"{url}/lines.jsonl").open("rb") as file:
        file.seek(-30, os.SEEK_END)
        return (EPath(url) / "small").read_bytes(), file.read()


def names_of(url: str) -> Any:
    """What is there."""
    return sorted(path.relative_to(EPath(url)) for path in EPath(url).walk())


def served(path: str, part: str) -> list[Any]:
    """A part of all samples, through all that a pass over them opens."""
    workers, whole = WorkerConfig(rank=0, world_size=1, num_workers=0), {"repeat": False, "batch_size": None}
    shuffle = {"shuffle_buffer_size": None, "max_samples_per_sequence": None}
    dataset: Any = get_train_dataset(path, worker_config=workers, **whole, **shuffle)
    return [sample[part] if isinstance(sample, dict) else getattr(sample, part) for sample in dataset]


WAYS: tuple[tuple[Callable[[str], Any], int, str], ...] = (
    (bytes_of, 8, ""),
    (names_of, 4, ""),
    (lambda url: served(f"{url}/set", "text"), 2, "set/"),
    (lambda url: served(f"{url}/bare", "txt"), 2, "bare/"),
    (lambda url: served(f"{url}/lines.jsonl", "json"), 2, "lines.jsonl"),
    (lambda url: served(f"{url}/rows.parquet", "text"), 2, "rows.parquet"),
)
"""What is asked for, how often, and what the names of its files begin with."""


def case(hub: HubServer, files: dict[str, bytes], seed: str, expected: dict[str, Any]) -> str:
    """One case: what it came to. Raises AssertionError where a rule is broken."""
    chosen = random.Random(seed)
    repo = f"team/{seed}"
    is_damaged = chosen.random() < 0.4
    ways = WAYS[2:] if is_damaged else WAYS
    way, _, names = chosen.choices(ways, [weight for _, weight, _ in ways])[0]
    name = names or way.__name__
    hub.commit(repo, damaged(chosen, files, names) if is_damaged else files)
    hub.page = chosen.choice((2, 1000))
    rate, whole = chosen.choice(((1.0, 0), (0.5, 0), (1.0, chosen.randrange(8)), (0.1, 0)))
    only = chosen.choice(("", "/revision/", "/tree/", "/resolve/", "cdn"))
    count = 0

    def changed(of: str, path: str, answer: Answer) -> Answer:
        nonlocal count
        if is_damaged or (only and only not in (of if only == "cdn" else path)):
            return answer
        count += 1
        if count <= whole or chosen.random() > rate:
            return answer
        return hostile(chosen, of, path, answer, hub.cdn if of == "cdn" else hub.url)

    hub.asked.clear()
    hub.changed = changed
    began, said = time.monotonic(), ""
    try:
        found = way(f"hf://datasets/{repo}")
    except (EnergonGrainError, FileNotFoundError) as error:
        said, outcome = str(error), f"{name} {type(error).__name__}"
    else:
        hidden = is_damaged or (
            way is names_of and only in ("", "/tree/")
        )  # a list that says less, or other names, is the Hub's word
        assert hidden or found == expected[name], f"{name} gave {str(found)[:300]}"
        outcome = f"{name} {'of some damaged files' if is_damaged else 'as it is'}"
    finally:
        hub.changed = lambda of, path, answer: answer
    assert TOKEN not in said, f"said: {said[:1000]}"
    assert len(said) < 20_000, f"said: {said[:1000]}"
    assert time.monotonic() - began < SLOW_S, f"{name} took {time.monotonic() - began:.0f} s"
    told = [each for each in hub.asked if TOKEN in str(each.headers) and each.of != "hub"]
    assert not told, f"the token went to {told[0].of} {told[0].path}"
    return outcome


def main(seed: int, count: int, first: int = 0) -> int:
    """Run the cases."""
    faulthandler.enable()
    broken = 0
    with tempfile.TemporaryDirectory() as scratch, running_hub() as hub:
        root = Path(scratch, "home", "data")
        make_text_dataset(root / "set", n=20, shards=2)
        make_text_dataset(root / "bare", n=20, shards=2, prepared=False)
        write_numbers(root / "rows.parquet", 200, row_group_size=50)
        files = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        files |= {"lines.jsonl": LINES, "small": b"1234"}
        cache = Path(scratch, "cache")
        os.environ |= {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "XDG_CACHE_HOME": str(cache)}
        use_storage(StorageSettings(attempts=3, first_pause_s=0.001, timeout_s=2.0, cache_bytes=0))
        hub.commit("team/whole", files)
        expected = {names or way.__name__: way("hf://datasets/team/whole") for way, _, names in WAYS}
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES + _mapped_bytes(), -1))
        outcomes: collections.Counter[str] = collections.Counter()
        for number in range(first, first + count):
            faulthandler.dump_traceback_later(2 * SLOW_S, exit=True)
            try:
                outcomes[case(hub, files, f"{seed}-{number}", expected)] += 1
            except Exception as error:
                broken += 1
                at = traceback.extract_tb(error.__traceback__)[-1]
                print(
                    f"{seed}-{number}: {type(error).__name__}: {str(error)[:1000]} ({at.filename} {at.lineno})",
                    flush=True,
                )
            shutil.rmtree(cache, ignore_errors=True)
            hub.commits = {"team/whole": hub.commits["team/whole"]}
            left = sorted(path.name for path in Path(scratch).iterdir())
            assert left in (["home"], ["cache", "home"]), left
        faulthandler.cancel_dump_traceback_later()
    print(json.dumps(dict(sorted(outcomes.items()))))
    return int(broken > 0)


def _mapped_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    import logging

    logging.disable(logging.WARNING)
    sys.exit(main(*map(int, sys.argv[1:])))
