"""The datasets, written once into a cache folder: `python -m benchmarks.datasets CACHE`.

CACHE/NAME/shard_000000.tar …    the shards
CACHE/NAME/.nv-meta/             prepared by Megatron-Energon if installed, to rule out a preparation that favours
                                 this library's reader; otherwise by energon-grain
CACHE/NAME-crude/                hard links to the same shards, prepared as a crude dataset
CACHE/NAME-records/              the same samples in ArrayRecord files, written by `energon-grain convert`
CACHE/NAME.PEER/                 the same samples in a peer's own format
CACHE/MIXTURE/leaf_000/ …        datasets with the samples of a mixture, prepared
CACHE/MIXTURE/blend.yaml         a blend of them with equal weights
CACHE/JOIN/first/                hard links to the first dataset of a join, with its index
CACHE/JOIN/second/               a second one with the keys of the first, prepared
CACHE/JOIN/ours.yaml             the join, with the joiner for energon-grain
CACHE/JOIN/energon.yaml          the same for Megatron-Energon
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks import contents
from benchmarks.contents import write_shard
from benchmarks.machine import energon_program, peer_python

METADATASET, OURS_YAML, ENERGON_YAML = "blend.yaml", "ours.yaml", "energon.yaml"
REPO = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSet:
    """One kind of samples, the numbers of samples and shards, and how loaders read them."""

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
                ("mosaic", "plain"),
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
                ("mosaic", "plain"),
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
            peer_formats=(("grain_array_record", "uncompressed"), ("mosaic", "plain")),
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixture:
    """The samples of `data`, distributed over `leaves` datasets."""

    name: str
    data: DataSet
    leaves: int
    shards_per_leaf: int
    by_energon: bool  # prepared by Energon, because Energon reads it too
    alike: bool = False  # all leaves are copies of the first one


MIXTURES = {
    mixture.name: mixture
    for mixture in (
        Mixture(name="text-2", data=DATA_SETS["text"], leaves=2, shards_per_leaf=10, by_energon=True),
        Mixture(name="text-100", data=DATA_SETS["text"], leaves=100, shards_per_leaf=1, by_energon=False),
        Mixture(name="text-1000", data=DATA_SETS["text"], leaves=1000, shards_per_leaf=1, by_energon=False, alike=True),
    )
}


@dataclass(frozen=True, kw_only=True, slots=True)
class TwoWayJoin:
    """The samples of `data` joined with the same number of others of the same kind, in `shards` shards."""

    name: str
    data: DataSet
    shards: int
    same_order: bool


JOINS = {
    join.name: join
    for join in (
        TwoWayJoin(name="text-join", data=DATA_SETS["text"], shards=16, same_order=True),
        TwoWayJoin(name="text-join-mixed", data=DATA_SETS["text"], shards=16, same_order=False),
        TwoWayJoin(name="tiny-join", data=DATA_SETS["tiny"], shards=100, same_order=True),
    )
}


def shards(folder: Path) -> list[Path]:
    """Return the tar files of a dataset, in order."""
    return sorted(folder.glob("shard_*.tar"))


def build(cache: Path, names: Iterable[str] = tuple(DATA_SETS)) -> None:
    """Write the missing datasets, mixtures and joins of these names; complete ones are kept."""
    for name in names:
        if name in MIXTURES:
            once(cache / name, f"{name}: mixture", partial(write_mixture, cache / name, MIXTURES[name]))
            continue
        if name in JOINS:
            once(cache / name, f"{name}: join", partial(write_join, cache / name, JOINS[name]))
            continue
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
        for peer, option in data.peer_formats:
            if peer_python(peer) is None:
                continue
            once(
                target := cache / f"{name}.{peer}.{option}",
                f"{name}: {peer} ({option})",
                partial(_convert, folder, target, peer, option),
            )


def link(folder: Path, target: Path) -> None:
    """Make `target` a folder with hard links to the shards of `folder`: the same cached pages, without an index."""
    target.mkdir(parents=True, exist_ok=True)
    for shard in shards(folder):
        os.link(shard, target / shard.name)


def _as_records(folder: Path, target: Path) -> None:
    subprocess.run([*OURS, "convert", str(folder), str(target)], check=True, cwd=REPO, stdout=sys.stderr)


def prepare(folder: Path, data: DataSet | None) -> None:
    """Index a folder of shards non-interactively, with everything in the split part `train`; None: as a crude set."""
    program = energon_program() if peer_python() else OURS
    subprocess.run([*program, "prepare", *prepare_options(data), str(folder)], check=True, cwd=REPO, stdout=sys.stderr)
    # energon-grain builds its columnar index on first use of a dataset prepared by Energon: not during a measurement.
    subprocess.run([*OURS, "info", str(folder)], check=True, cwd=REPO, stdout=sys.stderr)


OURS = [sys.executable, "-c", "from energon_grain.cli import main; main()"]


def prepare_options(data: DataSet | None) -> list[str]:
    """Return the options shared by `energon prepare` and `energon-grain prepare`."""
    options = ["--non-interactive", "--force-overwrite", "--split-ratio", "1,0,0", "--num-workers", str(os.cpu_count())]
    if data is None or data.field_map is None:
        return [*options, "--sample-type", "CrudeWebdataset"]
    return [*options, "--sample-type", data.sample_type, "--field-map", json.dumps(data.field_map)]


def once(target: Path, title: str, make: Callable[[], None]) -> None:
    """Make `target` unless it is complete."""
    done = target.parent / f".done-{target.name.lstrip('.')}"
    if done.exists() and target.exists():
        return
    print(f"building {title}", file=sys.stderr, flush=True)
    shutil.rmtree(target, ignore_errors=True)
    make()
    done.touch()


def _write_tars(folder: Path, data: DataSet) -> None:
    folder.mkdir(parents=True)
    for shard, (begin, end) in enumerate(_bounds(data, data.shards)):
        write_shard(folder / f"shard_{shard:06d}.tar", data.contents(begin, end))


def _bounds(data: DataSet, shards: int) -> list[tuple[int, int]]:
    """Return the first sample of each shard, and one past its last."""
    return list(itertools.pairwise(data.samples * shard // shards for shard in range(shards + 1)))


def _convert(folder: Path, target: Path, peer: str, option: str) -> None:
    call = {"call": "build", "tars": [str(shard) for shard in shards(folder)], "target": str(target), "option": option}
    command = [str(peer_python(peer)), "-W", "ignore", "-m", f"benchmarks.peers.{peer}", json.dumps(call)]
    subprocess.run(command, check=True, cwd=REPO, stdout=sys.stderr)


def write_mixture(folder: Path, mixture: Mixture) -> None:
    """Write shards, indexes and the metadataset."""
    data, leaves = mixture.data, mixture.leaves
    bounds = _bounds(data, leaves * mixture.shards_per_leaf)
    for leaf in range(leaves):
        target = folder / f"leaf_{leaf:03d}"
        if leaf and mixture.alike:
            shutil.copytree(folder / "leaf_000", target)
            continue
        target.mkdir(parents=True)
        for number in range(mixture.shards_per_leaf):
            samples = data.contents(*bounds[leaf * mixture.shards_per_leaf + number])
            write_shard(target / f"shard_{number:06d}.tar", samples)
        if mixture.by_energon:
            prepare(target, data)
        else:
            command = [*OURS, "prepare", *prepare_options(data), str(target)]
            subprocess.run(command, check=True, cwd=REPO, stdout=sys.stderr)
    lines = ["__module__: megatron.energon", "__class__: MetadatasetV2", "splits:", "  train:", "    blend:"]
    for leaf in range(leaves):
        lines += [f"      - path: leaf_{leaf:03d}", "        weight: 1"]
    (folder / METADATASET).write_text("\n".join(lines) + "\n")


def write_join(folder: Path, join: TwoWayJoin) -> None:
    """Write the second dataset and the metadatasets, and prepare both; the first dataset must exist."""
    data, second = join.data, folder / "second"
    second.mkdir(parents=True)
    shutil.copytree(folder.parent / data.name, folder / "first", copy_function=os.link)
    numbers = np.arange(data.samples)
    if not join.same_order:
        numbers = np.random.default_rng(6).permutation(data.samples)
    for shard, (begin, end) in enumerate(_bounds(data, join.shards)):
        write_shard(second / f"shard_{shard:06d}.tar", _renumbered(data, begin, numbers[begin:end]))
    prepare(second, data)
    prepare_joins(folder)


def prepare_joins(folder: Path) -> None:
    """Write the join for each program, which differ only in the joiner's module, and prepare it."""
    programs = [(OURS_YAML, "benchmarks.ours", OURS)]
    if peer_python():
        programs.append((ENERGON_YAML, "benchmarks.peers.energon", energon_program()))
    for name, module, program in programs:
        joiner = {"__module__": module, "__class__": "Pair"}
        split = {"join": [{"path": "first"}, {"path": "second"}], "joiner": joiner}
        document = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": split}}
        (folder / name).write_text(json.dumps(document, indent=2) + "\n")
        subprocess.run([*program, "prepare", str(folder / name)], check=True, cwd=REPO, stdout=sys.stderr)


def _renumbered(data: DataSet, begin: int, numbers: npt.NDArray[np.int64]) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield samples of `data` under the keys of others."""
    samples = data.contents(begin, begin + len(numbers))
    for number, (_, parts) in zip(numbers.tolist(), samples, strict=True):
        yield f"{number:09d}", dict(parts)


if __name__ == "__main__":
    build(Path(sys.argv[1]), sys.argv[2:] or DATA_SETS)
