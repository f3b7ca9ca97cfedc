"""The data sets, written once into a cache folder: `python -m benchmarks.datasets CACHE`.

CACHE/NAME/shard_000000.tar …    the shards
CACHE/NAME/.nv-meta/             prepared (by Megatron-Energon where it is installed, so that nobody can say that
                                 we favoured our own reader; by energon-grain else)
CACHE/NAME-crude/                hard links to the same shards, prepared as a crude data set
CACHE/NAME-records/              the same samples in ArrayRecord files, as `energon-grain convert` writes them
CACHE/NAME.PEER/                 the same samples in a peer's own format
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import contents
from benchmarks.peer_python import energon_program, peer_python
from benchmarks.tar_writer import write_shard

REPO = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSet:
    """One kind of samples: how many in how many shards, and how a loader is told to read them."""

    name: str
    contents: Callable[[int, int], Iterator[contents.Sample]]
    samples: int
    shards: int
    sample_type: str
    field_map: dict[str, str] | None = None
    crude_twin: bool = False
    record_twin: bool = False
    peer_formats: tuple[tuple[str, str], ...] = ()  # (peer, option)

    @property
    def title(self) -> str:
        """One line for the report."""
        return f"{self.name}: {self.samples:,} samples in {self.shards:,} shards, {self.contents.__doc__}"


DATA_SETS = {
    data.name: data
    for data in (
        DataSet(
            name="text",
            contents=contents.text,
            samples=200_000,
            shards=20,
            sample_type="TextSample",
            field_map={"text": "txt"},
            crude_twin=True,
            record_twin=True,
            peer_formats=(
                ("grain_array_record", "uncompressed"),
                ("grain_array_record", "default"),
                ("litdata", "plain"),
            ),
        ),
        DataSet(
            name="blob",
            contents=contents.blob,
            samples=20_000,
            shards=20,
            sample_type="CrudeWebdataset",
            peer_formats=(
                ("grain_array_record", "uncompressed"),
                ("grain_array_record", "default"),
                ("litdata", "plain"),
            ),
        ),
        DataSet(name="bucket", contents=contents.blob, samples=8_000, shards=8, sample_type="CrudeWebdataset"),
        DataSet(name="pages", contents=contents.page, samples=20_000, shards=20, sample_type="CrudeWebdataset"),
        DataSet(
            name="jpeg",
            contents=contents.jpeg,
            samples=4_000,
            shards=8,
            sample_type="CaptioningSample",
            field_map={"image": "jpg", "caption": "txt"},
            peer_formats=(("grain_array_record", "uncompressed"),),
        ),
        DataSet(
            name="large-jpeg",
            contents=contents.large_jpeg,
            samples=480,
            shards=8,
            sample_type="CaptioningSample",
            field_map={"image": "jpg", "caption": "txt"},
            peer_formats=(("grain_array_record", "uncompressed"), ("litdata", "plain")),
        ),
        DataSet(
            name="tiny",
            contents=contents.tiny,
            samples=1_000_000,
            shards=1_000,
            sample_type="TextSample",
            field_map={"text": "txt"},
        ),
    )
}


def shards(folder: Path) -> list[Path]:
    """The tar files of a data set, in order."""
    return sorted(folder.glob("shard_*.tar"))


def build(cache: Path, names: Iterable[str] = tuple(DATA_SETS)) -> None:
    """Write what is missing; what is complete is kept."""
    for name in names:
        data = DATA_SETS[name]
        folder = cache / name
        once(folder, f"{data.name}: tars", partial(_write_tars, folder, data))
        once(folder / ".nv-meta", f"{data.name}: index", partial(prepare, folder, data))
        if data.crude_twin:
            crude = cache / f"{name}-crude"
            once(crude, f"{name}: crude twin", partial(link, folder, crude))
            once(crude / ".nv-meta", f"{name}: crude index", partial(prepare, crude, None))
        if data.record_twin:
            records = cache / f"{name}-records"
            once(records, f"{name}: records", partial(_as_records, folder, records))
        for peer, option in data.peer_formats if peer_python() else ():
            once(
                target := cache / f"{name}.{peer}.{option}",
                f"{name}: {peer} ({option})",
                partial(_convert, folder, target, peer, option),
            )


def link(folder: Path, target: Path) -> None:
    """Make `target` a folder with hard links to the shards of `folder`: the same pages in the cache, no index."""
    target.mkdir(parents=True, exist_ok=True)
    for shard in shards(folder):
        os.link(shard, target / shard.name)


def _as_records(folder: Path, target: Path) -> None:
    subprocess.run([*OURS, "convert", str(folder), str(target)], check=True, cwd=REPO, stdout=sys.stderr)


def prepare(folder: Path, data: DataSet | None) -> None:
    """Index a folder of shards non-interactively, everything in the split part `train`; None: as a crude set."""
    program = energon_program() if peer_python() else OURS
    subprocess.run([*program, "prepare", *prepare_options(data), str(folder)], check=True, cwd=REPO, stdout=sys.stderr)
    # Ours builds its columnar index when it first meets a dataset that Energon prepared: not during a measurement.
    build_index = "import sys, pathlib, energon_grain.formats.columnar as c; c.open_columnar(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", build_index, str(folder)], check=True, cwd=REPO)


OURS = [sys.executable, "-c", "from energon_grain.cli import main; main()"]


def prepare_options(data: DataSet | None) -> list[str]:
    """Flags that `energon prepare` and `energon-grain prepare` share."""
    options = ["--non-interactive", "--force-overwrite", "--split-ratio", "1,0,0", "--num-workers", str(os.cpu_count())]
    if data is None or data.field_map is None:
        return [*options, "--sample-type", "CrudeWebdataset"]
    return [*options, "--sample-type", data.sample_type, "--field-map", json.dumps(data.field_map)]


def once(target: Path, title: str, make: Callable[[], None]) -> None:
    """Make `target` unless it was made completely before."""
    done = target.parent / f".done-{target.name.lstrip('.')}"
    if done.exists() and target.exists():
        return
    print(f"building {title}", file=sys.stderr, flush=True)
    shutil.rmtree(target, ignore_errors=True)
    make()
    done.touch()


def _write_tars(folder: Path, data: DataSet) -> None:
    folder.mkdir(parents=True)
    bounds = [data.samples * shard // data.shards for shard in range(data.shards + 1)]
    for shard in range(data.shards):
        write_shard(folder / f"shard_{shard:06d}.tar", data.contents(bounds[shard], bounds[shard + 1]))


def _convert(folder: Path, target: Path, peer: str, option: str) -> None:
    call = {"call": "build", "tars": [str(shard) for shard in shards(folder)], "target": str(target), "option": option}
    command = [str(peer_python()), "-m", f"benchmarks.peers.{peer}", json.dumps(call)]
    subprocess.run(command, check=True, cwd=REPO, stdout=sys.stderr)


if __name__ == "__main__":
    build(Path(sys.argv[1]), sys.argv[2:] or DATA_SETS)
