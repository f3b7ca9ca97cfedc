"""The rows of the table: which programs are compared, and what ours has to reach."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.change_weights import GRAIN_FORMS, OUR_FORMS
from benchmarks.contender import Contender, Row, Target
from benchmarks.datasets import DATA_SETS, ENERGON_YAML, JOINS, METADATASET, OURS, OURS_YAML, prepare_options
from benchmarks.machine import energon_program
from benchmarks.object_store import BUCKET
from benchmarks.token_packing import BUFFER, LENGTHS

_RATE = "samples_per_s"
_RATES = (_RATE, "samples_per_cpu_s_of_all")
_CRUDE = "crude dataset, cooker into two fields"
_BLOCKS = "shuffled 100/100, batches of 32, one process"
_STEPS_OF_100_160 = 3_130


def table(cache: Path, *, warmup_s: float, seconds: float) -> list[Row]:
    """Return all rows, over the datasets in `cache`."""
    programs = _Programs(cache, {"warmup_s": warmup_s, "seconds": seconds})
    kinds = (
        _texts,
        _images,
        _preparing,
        _opening,
        _mixing,
        _amending,
        _uses,
        _packing,
        _joining,
        _torch,
        _ray,
        _array_record,
        _bucket,
        _waiting,
        _replicas,
    )
    return [row for kind in kinds for row in kind(programs)]


@dataclass(frozen=True, slots=True)
class _Programs:
    """Makes contenders over the datasets in `cache`; `span` is how long rates are measured."""

    cache: Path
    span: Mapping[str, float]

    def folder(self, name: str) -> str:
        return str(self.cache / name)

    def ours(
        self, data: str, program: str | None, name: str = "ours", call: str = "throughput", **more: Any
    ) -> Contender:
        """Return one of the measurements of energon-grain in `loaders.py`."""
        arguments = {"programs": "benchmarks.ours", "folder": self.folder(data), **_named(program), **more}
        return Contender(name=name, module="loaders", call=call, arguments=self._spanned(call, arguments))

    def torch(self, data: str, program: str, name: str = "ours", **more: Any) -> Contender:
        """Return the same measurement of the PyTorch adapter."""
        return self.ours(data, program, name, programs="benchmarks.ours_torch", **more)

    def energon(
        self, data: str, program: str | None, name: str = "energon", call: str = "throughput", **more: Any
    ) -> Contender:
        """Return the same measurement of Megatron-Energon."""
        arguments = {"programs": "benchmarks.peers.energon", "folder": self.folder(data), **_named(program), **more}
        return Contender(
            name=name, module="loaders", call=call, arguments=self._spanned(call, arguments), in_peer_python=True
        )

    def _spanned(self, call: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return {**arguments, **self.span} if call == "throughput" else arguments

    def peer(self, name: str, module: str, data: str, **more: Any) -> Contender:
        """Return the rate of another loader."""
        arguments = {"folder": self.folder(data), **self.span, **more}
        return Contender(
            name=name,
            module=f"peers.{module}",
            call="throughput",
            arguments=arguments,
            in_peer_python=True,
            peer=module,
        )

    def mosaic(self, data: str, **more: Any) -> Sequence[Contender]:
        """Return Mosaic over MDS shards, without and with worker processes."""
        return [
            self.peer("mosaic" + name, "mosaic", f"{data}.mosaic.plain", workers=workers, **more)
            for name, workers in (("", 0), (": 2 processes", 2))
        ]

    def floor(self, name: str, call: str, data: str, **more: Any) -> Contender:
        """Return the rate of a bare loop."""
        arguments = {"folder": self.folder(data), **self.span, **more}
        return Contender(name=name, module="floor", call=call, arguments=arguments)

    def grain(self, data: str, *, image: bool = False, mixed: bool = False, side: int = 0) -> Sequence[Contender]:
        """Return Grain + ArrayRecord at its defaults and in variants that benchmark well ("tuned" is the best one)."""
        common = {"image": image, "mixed": mixed, "side": side}
        plain = f"{data}.grain_array_record.uncompressed"
        variants: dict[str, dict[str, Any]] = {
            "0 threads": {"threads": 0},
            "0 threads, 2 processes": {"threads": 0, "workers": 2},
            "batch first, 0 threads": {"threads": 0, "batch_first": True},
            "batch first, 0 threads, 2 processes": {"threads": 0, "batch_first": True, "workers": 2},
        }
        default = plain if image else f"{data}.grain_array_record.default"
        return [
            self.peer("grain default", "grain_array_record", default, **common),
            *(
                self.peer(f"grain tuned: {name}", "grain_array_record", plain, **common, **options)
                for name, options in variants.items()
            ),
        ]


def _named(program: str | None) -> dict[str, str]:
    """Return the `program` argument, if any: earlier revisions do not take it where there is only one program."""
    return {} if program is None else {"program": program}


def _rates(
    name: str,
    title: str,
    data_sets: Sequence[str],
    contenders: Sequence[Contender],
    at_least: Mapping[str, float | None],
    *,
    metrics: Sequence[str] = (_RATE,),
    served: str = "",
) -> Row:
    """Return a row of samples per second. `at_least` maps another program to the required ratio; None is no target."""
    targets = [
        Target(metric=_RATE, bound=bound, sense="at least", against=against)
        for against, bound in at_least.items()
        if bound is not None
    ]
    return Row(
        name=name,
        title=title,
        data_sets=tuple(data_sets),
        metrics=tuple(metrics),
        contenders=tuple(contenders),
        targets=tuple(targets),
        served=served,
    )


def _at_most(metric: str, bound: float, against: str | None = None) -> Target:
    return Target(metric=metric, bound=bound, sense="at most", against=against)


def _texts(programs: _Programs) -> Iterator[Row]:
    ours, energon, peer, floor = programs.ours, programs.energon, programs.peer, programs.floor
    yield _rates(
        "text-crude",
        f"1 KB text + json: {_CRUDE}, {_BLOCKS}",
        ["text"],
        [
            ours("text-crude", "crude-text"),
            energon("text-crude", "crude-text"),
            energon("text-crude", "crude-text", "energon 2 workers", workers=2),
            *programs.grain("text"),
            peer("webdataset", "webdataset", "text-crude", parts=("txt", "json")),
            peer("litdata", "litdata", "text.litdata.plain"),
            *programs.mosaic("text"),
            peer("spdl", "spdl", "text-crude"),
            floor("pread", "pread", "text-crude"),
        ],
        {"energon": 30, "grain tuned": 5},
        metrics=_RATES,
    )
    yield _rates(
        "text-sample",
        f"1 KB text: `TextSample`, no user hook, {_BLOCKS}",
        ["text"],
        [
            ours("text", "plain"),
            energon("text", "plain"),
            *programs.grain("text"),
            peer("litdata", "litdata", "text.litdata.plain"),
            *programs.mosaic("text"),
            floor("pread", "pread", "text"),
        ],
        {"energon": 40, "grain tuned": 7, "litdata": 0.7},
        metrics=_RATES,
    )
    yield _rates(
        "blobs",
        f"100 KB blobs + json: {_CRUDE}, full shuffle, batches of 32, one process",
        ["blob"],
        [
            ours("blob", "crude-blob", blocks=False),
            energon("blob", "crude-blob"),
            *programs.grain("blob"),
            peer("webdataset", "webdataset", "blob", parts=("bin", "json")),
            peer("litdata", "litdata", "blob.litdata.plain"),
            *programs.mosaic("blob"),
            peer("spdl", "spdl", "blob"),
            floor("pread", "pread", "blob"),
            floor("pread, dropped at once", "pread", "blob", keep=False),
            floor("preadv", "preadv", "blob"),
        ],
        {"energon": 8, "grain tuned": 2.5, "pread": 1.2, "preadv": 0.5},
        metrics=_RATES,
    )


def _images(programs: _Programs) -> Iterator[Row]:
    ours, energon, peer, floor = programs.ours, programs.energon, programs.peer, programs.floor
    images = {"parts": ("jpg", "txt"), "image": True}
    rivals = [
        *programs.grain("jpeg", image=True),
        peer("webdataset", "webdataset", "jpeg", **images),
        *programs.mosaic("jpeg", image=True),
        floor("bare pillow", "jpeg", "jpeg", decoder="pillow"),
    ]

    def spdl(threads: int, decoder: str = "ffmpeg") -> Contender:
        name = f"spdl: {decoder}, {threads} thread{'s' if threads > 1 else ''}"
        return peer(name, "spdl", "jpeg", threads=threads, decoder=decoder)

    cores = os.cpu_count() or 1
    for mode, threads, more, targets in (
        ("rgb8", 1, [*rivals, spdl(1), spdl(2)], {"energon": 2.0, "bare decoder": 0.9}),
        (
            "rgb8",
            cores,
            rivals if cores == 1 else [spdl(cores), spdl(cores, "simplejpeg")],
            {"energon": 2.0, "bare decoder": 0.9},
        ),
        ("torchrgb", 1, [], {"energon": 2.5}),
    ):
        workers = 0 if threads == 1 else threads
        where = "one process" if threads == 1 else f"{threads} workers (ours: threads)"
        yield _rates(
            f"jpeg-{mode}" if threads == 1 else f"jpeg-{mode}-{threads}",
            f"256 x 256 JPEG + caption, image_decode={mode!r}, batches of 32, {where}",
            ["jpeg"],
            [
                ours("jpeg", mode, workers=workers),
                energon("jpeg", mode, workers=workers),
                floor("bare decoder", "jpeg", "jpeg", threads=threads),
                *more,
            ],
            targets,
            metrics=_RATES,
        )
    yield _rates(
        "jpeg-256",
        "1024 x 1024 JPEG + caption, resized to 256 x 256 (bicubic; the others decode whole), batches of 32, "
        "one process",
        ["large-jpeg"],
        [
            ours("large-jpeg", "rgb8-256"),
            energon("large-jpeg", "rgb8-256"),
            *programs.grain("large-jpeg", image=True, side=256),
            peer("webdataset", "webdataset", "large-jpeg", **images, side=256),
            peer("litdata", "litdata", "large-jpeg.litdata.plain", side=256),
            floor("bare pillow", "jpeg", "large-jpeg", decoder="pillow-256"),
        ],
        {"energon": 3, "bare pillow": 3},
    )


def _preparing(programs: _Programs) -> Iterator[Row]:
    data = DATA_SETS["text"]
    common = {"folder": programs.folder("text"), "samples": data.samples}
    options = prepare_options(data)
    for name, own, bound in (("prepare", [], 6), ("prepare-no-sqlite", ["--no-sqlite"], 20)):
        title = " ".join(["prepare", *own])
        yield _prepare(
            name,
            f"`{title}` of 1 KB samples, whole process, {os.cpu_count()} workers",
            ["text"],
            "prepare",
            ours={**common, "program": OURS, "options": [*options, *own]},
            energon={**common, "program": energon_program(), "options": options},
            bound=bound,
        )
    yield _digesting(common["folder"], data.samples, options)


def _digesting(folder: str, samples: int, options: Sequence[str]) -> Row:
    """Digests are made of bytes that the scan reads anyway: at most 15 % longer."""
    arguments = {"folder": folder, "samples": samples, "program": OURS}
    own = [*options, "--no-sqlite"]
    return Row(
        name="prepare-digests",
        title="`prepare --no-sqlite` of 1 KB samples with digests of the shards, and without (`--no-digest`)",
        data_sets=("text",),
        metrics=(_RATE, "seconds"),
        contenders=(
            Contender(name="ours", module="preparing", call="prepare", arguments={**arguments, "options": own}),
            Contender(
                name="without digests",
                module="preparing",
                call="prepare",
                arguments={**arguments, "options": [*own, "--no-digest"]},
            ),
        ),
        targets=(Target(metric=_RATE, bound=1 / 1.15, sense="at least", against="without digests"),),
    )


def _prepare(
    name: str, title: str, data_sets: Sequence[str], call: str, *, ours: Any, energon: Any, bound: float
) -> Row:
    return Row(
        name=name,
        title=title,
        data_sets=tuple(data_sets),
        metrics=(_RATE, "seconds", "index_mb"),
        contenders=(
            Contender(name="ours", module="preparing", call=call, arguments=ours),
            Contender(name="energon", module="preparing", call=call, arguments=energon, in_peer_python=True),
        ),
        targets=(Target(metric=_RATE, bound=bound, sense="at least", against="energon"),),
    )


def _opening(programs: _Programs) -> Iterator[Row]:
    def importing(name: str, *modules: str, in_peer_python: bool = False) -> Contender:
        arguments = {"modules": modules}
        return Contender(
            name=name, module="loaders", call="import_time", arguments=arguments, in_peer_python=in_peer_python
        )

    yield Row(
        name="million",
        title="one million samples in 1,000 shards: from the imports to the first batch, and memory and files in use",
        data_sets=("tiny",),
        metrics=("first_batch_s", "memory_mb", "open_files"),
        contenders=(
            programs.ours("tiny", None, call="first_batch"),
            programs.energon("tiny", None, call="first_batch"),
        ),
        targets=(
            _at_most("first_batch_s", 1.0, "energon"),
            _at_most("memory_mb", 20),
            _at_most("open_files", 64),
        ),
    )
    yield Row(
        name="import",
        title="importing the package in a fresh interpreter",
        data_sets=(),
        metrics=("import_s",),
        contenders=(
            importing("ours", "energon_grain"),
            importing("ours with loader, Grain and decoders", "energon_grain", "benchmarks.ours"),
            importing("energon", "megatron.energon", in_peer_python=True),
        ),
        targets=(_at_most("import_s", 0.15, "energon"),),
    )
    resumed = {"call": "resume", "batches": _STEPS_OF_100_160, "workers": 2}
    yield Row(
        name="resume",
        title="state after 100,160 samples with two workers (ours: threads), and time from restoring to a first batch",
        data_sets=("text",),
        metrics=("state_bytes", "save_s", "restore_s"),
        contenders=(
            programs.ours("text-crude", "crude-text", **resumed),
            programs.energon("text-crude", "crude-text", **resumed),
        ),
        targets=(_at_most("state_bytes", 1024), _at_most("restore_s", 0.02, "energon")),
    )


def _mixing(programs: _Programs) -> Iterator[Row]:
    """Rows for the cost of mixing two to a thousand datasets, and for the order of a blend of a hundred."""
    ours, blend = programs.ours, {"metadataset": METADATASET}
    leaf = ours("text", "plain", "single leaf")
    yield _rates(
        "blend-2",
        f"1 KB text: two datasets mixed one to one, `TextSample`, {_BLOCKS}",
        ["text", "text-2"],
        [
            ours("text-2", "plain", **blend),
            leaf,
            programs.energon("text-2", "plain", **blend),
            *programs.grain("text", mixed=True),
        ],
        {"single leaf": 0.8, "energon": 40, "grain tuned": 6},
    )
    hundred = ours("text-100", "plain", **blend)
    yield _rates(
        "blend-100",
        "1 KB text: a hundred datasets mixed, otherwise as above",
        ["text", "text-100"],
        [hundred, leaf],
        {"single leaf": 0.5},
    )
    yield _rates(
        "blend-1000",
        "1 KB text: a thousand datasets mixed, otherwise as above",
        ["text-1000", "text-100"],
        [ours("text-1000", "plain", **blend), ours("text-100", "plain", "a hundred", **blend)],
        {"a hundred": 0.5},
    )
    order = {"folder": programs.folder("text-100"), **blend, "batches": 200}
    yield Row(
        name="blend-100-order",
        title="a hundred datasets mixed: drawing the first million positions, and the state after 200 batches",
        data_sets=("text-100",),
        metrics=("draws_s", "state_bytes"),
        contenders=(Contender(name="ours", module="order", call="order", arguments=order),),
        targets=(_at_most("draws_s", 1.0), _at_most("state_bytes", 4096)),
    )
    yield Row(
        name="blend-1000-open",
        title="a thousand datasets mixed: from the imports to the first batch, and memory and files in use then",
        data_sets=("text-1000",),
        metrics=("first_batch_s", "memory_mb", "open_files"),
        contenders=(ours("text-1000", None, call="first_batch", **blend, batches=20),),
        targets=(_at_most("first_batch_s", 1.0),),
    )


def _amending(programs: _Programs) -> Iterator[Row]:
    """Rows for a mixture whose weights change: the rate and the costs, and what is dropped and repeated."""
    arguments = {"folder": programs.folder("text-100"), "datasets": 10, "amendments": 20, **programs.span}
    yield Row(
        name="amend",
        title=f"1 KB text: ten datasets mixed, `TextSample`, {_BLOCKS}: after 20 changes of the weights, and beside a "
        "loader that began with the last weights, in turns of 0.1 s in one process",
        data_sets=("text-100",),
        metrics=(_RATE, "of_unchanged", "amend_s", "state_bytes"),
        contenders=(Contender(name="ours", module="amended", call="amended", arguments=arguments),),
        targets=(
            Target(metric="of_unchanged", bound=0.98, sense="at least"),
            _at_most("amend_s", 0.01),
            _at_most("state_bytes", 2048),
        ),
    )
    often = {"folder": programs.folder("text-100"), "datasets": 10, "decisions": 500, "steps": 20, **programs.span}
    yield Row(
        name="reweight",
        title=f"1 KB text: ten datasets mixed, `TextSample`, {_BLOCKS}: 500 changes of weights, one every 20 steps",
        data_sets=("text-100",),
        metrics=("of_unchanged", "reweight_s", "of_run", "restored_s", "state_bytes", "saved_bytes"),
        contenders=(Contender(name="ours", module="amended", call="reweighted", arguments=often),),
        targets=(
            Target(metric="of_unchanged", bound=0.98, sense="at least"),
            _at_most("reweight_s", 0.003),
            _at_most("of_run", 0.01),
            _at_most("restored_s", 0.1),
            _at_most("state_bytes", 4096),
            _at_most("saved_bytes", 80_000),
        ),
    )
    first, *others = reversed(OUR_FORMS)
    forms = {"ours": first, **{form: form for form in others}, **{f"grain: {form}": form for form in GRAIN_FORMS}}
    yield Row(
        name="amend-samples",
        title="three datasets mixed, restarted with other weights 20 times: samples that are dropped and repeated; "
        f"`ours` is {first.removeprefix('ours: ')}",
        data_sets=(),
        metrics=("dropped", "repeated"),
        contenders=tuple(
            Contender(name=name, module="change_weights", call="damage", arguments={"form": form})
            for name, form in forms.items()
        ),
        targets=(_at_most("dropped", 0), _at_most("repeated", 0)),
    )


def _uses(programs: _Programs) -> Iterator[Row]:
    """Rows for the uses of samples by a run: a query, queries in bulk, and the counts of all samples."""
    del programs
    for name, block in (("full", None), ("blocks", 1000)):
        arguments = {"samples": 100_000_000, "counted": 10_000_000, "block": block}
        yield Row(
            name=f"when-{name}",
            title=f"uses of a sample among 100 million ({name}), in bulk, and the uses of 10 million samples; "
            "nothing is read",
            data_sets=(),
            metrics=("query_s", "us_per_sample", "seen_s"),
            contenders=(Contender(name="ours", module="uses", call="uses", arguments=arguments),),
            targets=(_at_most("query_s", 0.01), _at_most("seen_s", 5.0)),
        )


def _packing(programs: _Programs) -> Iterator[Row]:
    """Rows for the rate of packing, for restoring it, and for how full packs become."""
    ours, energon = programs.ours, programs.energon
    yield _rates(
        "packing",
        "1 KB text split into words, packed to 4,096 by the same greedy packer, buffer of 100, one process",
        ["text"],
        [ours("text", "pack-text"), energon("text", "pack-text")],
        {"energon": 5},
    )
    resumed = {"call": "resume", "batches": 500}
    yield Row(
        name="resume-packing",
        title="state after 2,000 packs with full buffers and two workers (ours: threads), and time from restoring to "
        "the first batch",
        data_sets=("text",),
        metrics=("restore_s", "state_bytes", "save_s"),
        contenders=tuple(
            each("text", "pack-text", name, workers=workers, **resumed)
            for workers, label in ((2, ""), (0, ", no workers"))
            for each, name in ((ours, f"ours{label}"), (energon, f"energon{label}"))
        ),
        targets=(_at_most("restore_s", 0.05, "energon"),),
    )
    for lengths in LENGTHS:
        yield _efficiency(lengths)


def _efficiency(lengths: str) -> Row:
    def own(name: str, packer: str, *, keep_rest: bool) -> Contender:
        arguments = {"lengths": lengths, "packer": packer, "keep_rest": keep_rest}
        return Contender(name=name, module="order", call="efficiency", arguments=arguments)

    def grain(title: str, bins: int | None) -> Contender:
        name, arguments = f"grain best fit: {title}", {"lengths": lengths, "bins": bins}
        return Contender(
            name=name, module="peers.grain_packing", call="efficiency", arguments=arguments, in_peer_python=True
        )

    return Row(
        name=f"packing-{lengths}",
        title=f"how full packs of 4,096 become, {LENGTHS[lengths].__doc__}; ours: greedy_knapsack with "
        f"`keep_rest=True`, buffer of {BUFFER}",
        data_sets=(),
        metrics=("efficiency", "us_per_sample"),
        contenders=(
            own("ours", "greedy_knapsack", keep_rest=True),
            *(
                own(f"ours: {packer}, rest kept", packer, keep_rest=True)
                for packer in ("best_fit_decreasing", "first_fit_decreasing", "best_fit")
            ),
            *(
                own(f"ours: {packer}, whole buffers", packer, keep_rest=False)
                for packer in ("greedy_knapsack", "best_fit_decreasing")
            ),
            grain("as many tokens", None),
            grain(f"{BUFFER} bins", BUFFER),
        ),
        targets=(Target(metric="efficiency", bound=1.0, sense="at least", against="grain best fit"),),
    )


def _joining(programs: _Programs) -> Iterator[Row]:
    """Rows for building the index of a join, and for reading its rows."""
    join = JOINS["tiny-join"]
    common = {"folder": programs.folder(join.name), "samples": join.data.samples}
    yield _prepare(
        "join-prepare",
        "`prepare` of a metadataset that joins two prepared datasets of a million samples, whole process",
        ["tiny", join.name],
        "prepare_join",
        ours={**common, "metadataset": OURS_YAML, "program": OURS},
        energon={**common, "metadataset": ENERGON_YAML, "program": energon_program()},
        bound=10,
    )
    for full in (False, True):
        for mixed in (False, True):
            data = "text-join-mixed" if mixed else "text-join"
            order = "another order" if mixed else "the same order"
            shuffle = "fully (Energon 100/100)" if full else "100/100"
            yield _rates(
                "join" + "-full" * full + "-mixed" * mixed,
                f"1 KB text joined with 1 KB text in {order}, a joiner that makes pairs, shuffled {shuffle}, "
                "batches of 32, one process",
                ["text", data],
                [
                    programs.ours(data, "join", metadataset=OURS_YAML, blocks=not full),
                    programs.ours("text", "plain", "single leaf", blocks=not full),
                    programs.energon(data, "join", metadataset=ENERGON_YAML),
                ],
                {"single leaf": 0.4, "energon": 30},
            )


def _torch(programs: _Programs) -> Iterator[Row]:
    """Rows for the PyTorch adapter: Megatron-Energon's own program, run by both, with 0, 1 and 2 workers.

    Ours decodes JPEGs in two threads if there are no worker processes; the row also shows its rate without the threads.
    """
    torch, energon, floor = programs.torch, programs.energon, programs.floor
    labels = ("no workers", "1 `DataLoader` worker", "2 `DataLoader` workers")
    for size, kind, data, program, bounds in (
        ("1 KB text", "text", "text-crude", "crude-text", (20, None, 8)),
        ("100 KB blobs", "blobs", "blob", "crude-blob", (4, None, None)),
    ):
        for workers, bound in enumerate(bounds):
            yield _rates(
                f"torch-{kind}-{workers}",
                f"PyTorch, {size} + json: {_CRUDE}, shuffled 100/100, batches of 32, {labels[workers]}",
                [data.removesuffix("-crude")],
                [torch(data, program, workers=workers), energon(data, program, workers=workers)],
                {"energon": bound},
            )
    threads = {"workers": 2, "worker_type": "thread"}
    for workers, bound in enumerate((2.5, None, 2)):
        own = [torch("jpeg", "torchrgb", workers=workers)]
        if not workers:
            own = [
                torch("jpeg", "torchrgb", **threads),
                torch("jpeg", "torchrgb", "ours, no threads", workers=0),
            ]
        where = labels[workers] if workers else "no worker processes (ours: 2 threads)"
        yield _rates(
            f"torch-jpeg-{workers}",
            f"PyTorch, 256 x 256 JPEG + caption, image_decode='torchrgb', batches of 32, {where}",
            ["jpeg"],
            [
                *own,
                energon("jpeg", "torchrgb", workers=workers),
                floor("bare decoder", "jpeg", "jpeg", threads=1),
                floor("bare decoder, 2 threads", "jpeg", "jpeg", threads=2),
            ],
            {"energon": bound},
        )
    resumed = {"call": "resume", "batches": _STEPS_OF_100_160, "workers": 2, "shuffle_buffer": 1_000}
    yield Row(
        name="torch-state",
        title="PyTorch, state after 100,160 texts with two workers and a shuffle buffer of 1,000, and time from "
        "restoring to the first batch",
        data_sets=("text",),
        metrics=("state_bytes", "save_s", "restore_s"),
        contenders=(
            torch("text-crude", "crude-text", **resumed),
            energon("text-crude", "crude-text", **resumed),
        ),
        targets=(_at_most("state_bytes", 0.05, "energon"), _at_most("restore_s", 0.1, "energon")),
    )


def _ray(programs: _Programs) -> Iterator[Row]:
    """Rows for Ray actors on this machine, beside own worker processes; "far" results pass through Ray's store."""
    if find_spec("ray") is None:
        return

    def workers(name: str, data: str, **more: Any) -> Contender:
        arguments = {"folder": programs.folder(data), **programs.span, "warmup_s": _RAY_WARM_S, **more}
        return Contender(name=name, module="ray_workers", call="throughput", arguments=arguments)

    for way, bound in (("near", 0.75), ("far", 0.6)):
        images = {"encoder": "floats", "workers": 2}
        yield Row(
            name=f"ray-{way}",
            title=f"256 x 256 JPEG as float32, batches of 32, two Ray actors, {way}",
            data_sets=("jpeg",),
            metrics=(_RATE, "driver_ms"),
            contenders=(
                workers("ours", "jpeg", way=way, **images),
                workers("processes", "jpeg", way="process", **images),
            ),
            targets=(
                Target(metric=_RATE, bound=bound, sense="at least", against="processes"),
                *([_at_most("driver_ms", 3.0)] if way == "near" else ()),
            ),
        )
    yield Row(
        name="ray-waiting",
        title="1 KB text, hook that waits for 5 ms, eight Ray actors (at most 1,600 per second)",
        data_sets=("text",),
        metrics=(_RATE,),
        contenders=(workers("ours", "text", way="near", encoder="waiting", workers=8),),
        targets=(Target(metric=_RATE, bound=1200, sense="at least"),),
    )


_RAY_WARM_S = 3.0
"""Actors and their pages of shared memory take longer to warm up than a loader."""


def _array_record(programs: _Programs) -> Iterator[Row]:
    """Rows for ours over ArrayRecord files, beside Grain's own pipeline over ArrayRecord files of the same samples."""
    yield _rates(
        "array-record",
        "1 KB text in ArrayRecord files: `TextSample`, shuffled, batches of 32, one process",
        ["text"],
        [
            programs.ours("text-records", "plain"),
            programs.ours("text-records", "plain", "ours: full shuffle", blocks=False),
            programs.ours("text", "plain", "ours: tars"),
            *programs.grain("text"),
        ],
        {"grain tuned": 1.5, "grain default": 1.5},
    )


_LATENCY_S = 0.05
_PAGES_MB = 236


def _bucket(programs: _Programs) -> Iterator[Row]:
    """Rows for data in a bucket."""
    data, samples = "bucket", DATA_SETS["bucket"].samples
    metrics = (_RATE, "first_batch_s", "requests", "fetched_mb")

    def ours(name: str = "ours", call: str = "first_pass", **more: Any) -> Contender:
        arguments = {"programs": "benchmarks.ours", "url": f"s3://{BUCKET}/{data}", "program": "crude-blob", **more}
        given = {name: value for name, value in {"samples": samples, **arguments}.items() if value is not None}
        return Contender(name=name, module="object_store", call=call, arguments=given)

    def energon(**more: Any) -> Contender:
        arguments = {"programs": "benchmarks.peers.energon", "url": f"msc://{BUCKET}/{data}", "program": "crude-blob"}
        arguments = {"samples": samples, **arguments, **more}
        return Contender(
            name="energon", module="object_store", call="first_pass", arguments=arguments, in_peer_python=True
        )

    def bare(call: str, name: str, **more: Any) -> Contender:
        arguments = {"folder": programs.folder(data), "samples": samples, **more}
        return Contender(name=name, module="object_store", call=call, arguments=arguments)

    def ranges(in_flight: int, **more: Any) -> Contender:
        name = f"range reads: TensorStore, {in_flight} in flight"
        return bare("kvstore", name, in_flight=in_flight, **more)

    served = {"metrics": metrics, "served": data}
    yield _rates(
        "bucket",
        "100 KB blobs + json in a bucket: the first pass, including opening; crude dataset, cooker into two fields, "
        "shuffled 100/100, batches of 32, one process",
        [data],
        [
            ours(),
            ours("ours, 2 threads", workers=2),
            ours("ours, no blocks kept", cache_mb=0),
            energon(),
            *map(ranges, (2, 4, 8, 16, 32)),
            bare("http_loop", "http.client, 2 threads", in_flight=2),
        ],
        {"range reads": 0.8, "energon": 3},
        **served,
    )
    slow = {"latency_s": _LATENCY_S}
    yield _rates(
        "bucket-latency",
        f"the same with {_LATENCY_S * 1000:.0f} ms before each response",
        [data],
        [
            ours(**slow),
            ours("ours, no latency"),
            ours("ours, no blocks kept", cache_mb=0, **slow),
            ours("ours, no blocks kept, no latency", cache_mb=0),
            energon(**slow),
            *(ranges(in_flight, **slow) for in_flight in (8, 32)),
        ],
        {"ours, no latency": 0.7},
        **served,
    )
    passes = {"call": "passes", "warm": 1, "count": 5}
    yield _rates(
        "bucket-cached",
        "the same, from the second to the sixth pass of one process, with all blocks in the cache",
        [data],
        [ours(**passes), ours("ours, local files", url=programs.folder(data), **passes)],
        {"ours, local files": 0.9},
        metrics=(_RATE, "requests", "fetched_mb"),
        served=data,
    )
    short: dict[str, Any] = {"call": "short_run", "batches": 20, "samples": None}
    yield Row(
        name="bucket-short",
        title="the same, 20 batches of 32: bytes that the store sent over bytes delivered",
        data_sets=(data,),
        served=data,
        metrics=("times_needed", "requests", "run_s"),
        contenders=(
            ours(cache_mb=0, **short),
            ours("ours, cache of a tenth of the data", cache_mb=80, **short),
            ours("ours, cache for all", cache_mb=2_000, **short),
        ),
        targets=(_at_most("times_needed", 1.3), _at_most("run_s", 1.2, "ours, cache of a tenth of the data")),
    )
    lost: dict[str, Any] = {"call": "swallowed", "batches": 50, "samples": None}
    yield Row(
        name="bucket-swallowed",
        title="the same without prefetch, 50 batches of 32, from a store that never answers one request in 40",
        data_sets=(data,),
        served=data,
        metrics=("run_s", "requests"),
        contenders=(ours(every=40, **lost), ours("ours, all requests answered", every=0, **lost)),
        targets=(_at_most("run_s", 15.0),),
    )
    cases = [(order, hosts, 1_000) for order in _ORDERS for hosts in (1, 2, 8)]
    yield Row(
        name="bucket-fetched",
        title=f"10 KB samples, {_PAGES_MB} MB in total, in blocks of 100: what all hosts together fetch in the first "
        "pass if they may fetch 100 MB ahead in total, and the most that one host has fetched and not yet used",
        data_sets=("pages",),
        served="pages",
        metrics=("requests", "fetched_mb", "times_data", "ahead_mb"),
        contenders=tuple(_fetched(programs, *case) for case in (*cases, *((order, 1, 100) for order in _ORDERS))),
    )


def _waiting(programs: _Programs) -> Iterator[Row]:
    """Rows for hooks that wait unequally long: how near loaders get to the ideal, and what keeping the order costs."""
    torch = ("torch in order", "torch out of order")
    bare = ("bare threads, batch by batch",)
    for workload, title, cases in (
        (
            "slow",
            "hooks that sleep 1 ms, and 50 ms for 5 % of the samples",
            (("threads", 4, 0.95), ("threads", 16, 0.95), ("processes", 4, 0.95)),
        ),
        ("rare", "hooks that sleep 1 ms, and 500 ms for 1 % of the samples", (("threads", 4, 0.9),)),
    ):
        for kind, workers, bound in cases:
            common = {"folder": programs.folder("text"), "workload": workload, "workers": workers, **programs.span}
            yield Row(
                name=f"hooks-{workload}-{kind}-{workers}",
                title=f"{title}, batches of 8, {workers} workers (ours: {kind}): share of the ideal, work / workers; "
                "only `torch out of order` loses the order of samples",
                data_sets=("text",),
                metrics=("of_ideal", "wait_p99_ms"),
                contenders=tuple(
                    Contender(
                        name="ours" if name.startswith("ours") else name,
                        module="waiting_hooks",
                        call="share_of_ideal",
                        arguments={"loader": name, **common},
                    )
                    for name in (f"ours, {kind}", *torch, *(bare if kind == "threads" else ()))
                ),
                targets=(
                    Target(metric="of_ideal", bound=bound, sense="at least"),
                    Target(metric="of_ideal", bound=1.3, sense="at least", against="torch in order"),
                ),
            )


_ORDERS = ("ours: block shuffle", "full shuffle")


def _fetched(programs: _Programs, order: str, hosts: int, cache_mb: int) -> Contender:
    limited = "" if cache_mb > _PAGES_MB else f", cache of {cache_mb} MB"
    arguments = {
        "url": f"s3://{BUCKET}/pages",
        "original": programs.folder("pages"),
        "samples": DATA_SETS["pages"].samples,
        "hosts": hosts,
        "blocks": order != "full shuffle",
        "cache_mb": cache_mb,
        "ahead_mb": 100 / hosts,
    }
    name = f"{order}, {hosts} host{'s' if hosts > 1 else ''}{limited}"
    return Contender(name=name, module="object_store_hosts", call="fetched", arguments=arguments)


def _replicas(programs: _Programs) -> Iterator[Row]:
    """Rows for ranks that need the same batches: two data ranks of four processes (context and tensor parallelism)."""
    del programs

    def ours(name: str, kind: str, worker_type: str) -> Contender:
        arguments = {"kind": kind, "worker_type": worker_type}
        return Contender(name=name, module="replicas", call="measured", arguments=arguments)

    for worker_type in ("thread", "process"):
        alone = "one process of each data rank"
        yield Row(
            name=f"replicas-{worker_type}",
            title="batches of 32 images of 256 x 256 in float32 (25 MB) for 8 processes, 4 of which need the same "
            f"batches: one of them reads, with workers of type {worker_type!r}",
            data_sets=(),
            metrics=(_RATE, "decoded", "pss_mb", "handed_on_ms"),
            contenders=(
                ours("ours", "shared", worker_type),
                ours("each process reads", "each", worker_type),
                ours(alone, "alone", worker_type),
                ours("two nodes, one of which reads", "broadcast", worker_type),
            ),
            targets=(
                Target(metric=_RATE, bound=1.4, sense="at least", against="each process reads"),
                _at_most("decoded", 1.15, alone),
                _at_most("pss_mb", 2.5, alone),
            ),
        )
