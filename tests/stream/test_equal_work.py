"""Equal work for every host: the same global batches, dealt out by what samples cost."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from metadatasets import write_v2
from stream_hosts import MakeDataset, Tolerant, config, open_stream, train_on

from energon_grain import (
    Balance,
    BatchDataset,
    BlendDataset,
    ConfigError,
    CostBudget,
    FatalSampleError,
    FilterDataset,
    FingerprintError,
    KeyNotFoundError,
    PackingPlan,
    SkipSample,
    Stream,
    TaskEncoder,
    get_val_dataset,
    measure_dataset,
    merge_cursors,
)
from energon_grain.testing import make_text_dataset

G = 48
HOSTS = (1, 3, 16)


class Noted(TaskEncoder):
    """Makes batches of (key, random number) and how many bytes of text there are."""

    __default_failure_tolerance__ = 0

    def encode_sample(self, sample: Any) -> Any:
        return sample.__key__, int(self.rng.integers(1 << 30)), len(sample.text.encode())

    def batch(self, samples: list[Any]) -> Any:
        return {"samples": samples, "__valid__": np.ones(len(samples), bool)}


class Skips(Noted):
    """Drops every seventh sample on purpose."""

    def encode_sample(self, sample: Any) -> Any:
        if int(sample.__key__) % 7 == 0:
            raise SkipSample
        return super().encode_sample(sample)


def fleet(path: Any, hosts: int, *, balance: Any = "bytes.txt", workers: int = 0, kind: Any = "thread", **options: Any):
    given = {"batch_size": G // hosts, "task_encoder": Noted(), "balance": balance, **options}
    return [
        open_stream(path, worker_config=config(host, hosts, workers, worker_type=kind), **given)
        for host in range(hosts)
    ]


def step(streams: list[Stream]) -> list[list[Any]]:
    """The real samples that each host gets next, over the ends of passes."""
    found = []
    for stream in streams:
        batch = next(stream, None)
        if batch is None:
            batch = next(iter(stream))
        found.append([sample for sample, real in zip(batch["samples"], batch["__valid__"], strict=True) if real])
    return found


def together(batches: list[list[Any]]) -> list[Any]:
    return sorted(sample for batch in batches for sample in batch)


ENDS: list[dict[str, Any]] = [
    {},
    {"repeat": False, "last_batch": "pad"},
    {"repeat": False, "last_batch": "drop"},
    {"virtual_epoch_length": 3},
]


@pytest.mark.parametrize("options", ENDS, ids=str)
def test_global_batches_are_the_same_and_hosts_have_equal_work(
    text_dataset: MakeDataset, options: dict[str, Any]
) -> None:
    path = text_dataset(200)
    expected = [together(step(one)) for one in [fleet(path, 1, balance=None, **options)] for _ in range(7)]
    for hosts in HOSTS:
        streams, plain = fleet(path, hosts, **options), fleet(path, hosts, balance=None, **options)
        told = [streams[0].which(number) for number in range(7)]
        for number in range(7):
            batches, before = step(streams), step(plain)
            assert together(batches) == expected[number]
            if len(expected[number]) == G:
                work = [[sum(size for *_, size in batch) for batch in each] for each in (batches, before)]
                assert max(work[0]) <= max(work[1])
                assert {len(batch) for batch in batches} == {G // hosts}
            assert [record.key for record in sorted(told[number], key=lambda record: (record.host, record.item))] == [
                key for batch in batches for key, *_ in batch
            ]
            assert [record.key for record in streams[-1].which(number)] == [record.key for record in told[number]]


def test_work_is_equal(text_dataset: MakeDataset) -> None:
    streams, plain = (fleet(text_dataset(200), 3, balance=balance) for balance in ("bytes.txt", None))
    unequal = [np.ptp([sum(size for *_, size in batch) for batch in step(plain)]) for _ in range(8)]
    equal = [np.ptp([sum(size for *_, size in batch) for batch in step(streams)]) for _ in range(8)]
    assert max(equal) * 5 < max(unequal)


@pytest.mark.parametrize("encoder", [Noted, Skips])
@pytest.mark.parametrize("options", ENDS[:3], ids=str)
def test_what_is_dropped_is_stood_in_for_alike_on_any_number_of_hosts(
    text_dataset: MakeDataset, options: dict[str, Any], encoder: Any
) -> None:
    broken = set(range(0, 130, 9))
    path = text_dataset(130, broken=broken)
    gone = broken | (set(range(0, 130, 7)) if encoder is Skips else set())
    [one] = fleet(text_dataset(130), 1, **options)
    planned = [[record.key for record in one.which(number)] for number in range(5)]
    found: list[list[Any]] = []
    for hosts in HOSTS:
        streams = fleet(path, hosts, task_encoder=encoder(), **options)
        found.append([together(step(streams)) for _ in range(5)])
        dropped = sum(stream.stats()["dropped_total"] for stream in streams)
        assert dropped == sum(int(key) in gone for keys in planned for key in keys)
        assert all(not stream.cursor()["drops"] for stream in streams)
        told = streams[0].which(4)  # a host that had drops makes the step again
        if told.read:
            assert sorted(record.key for record in told) == sorted(key for key, *_ in found[-1][4])
    assert found[1:] == found[:-1]
    for got, keys in zip(found[0], planned, strict=True):
        good = (next(key for key in keys[n:] + keys[:n] if int(key) not in gone) for n in range(len(keys)))
        assert [key for key, *_ in got] == sorted(good)


def test_a_global_batch_without_one_good_sample_ends_the_run(text_dataset: MakeDataset) -> None:
    streams = fleet(text_dataset(20, broken=range(20)), 2, batch_size=3)
    with pytest.raises(FatalSampleError, match="all 6 samples of a global batch were dropped"):
        next(streams[1])


def test_another_batch_size_begins_its_steps_where_the_state_is(text_dataset: MakeDataset) -> None:
    path = text_dataset(130)
    before = fleet(path, 2, batch_size=5)
    for _ in range(3):
        step(before)
    saved = merge_cursors([stream.cursor() for stream in before])
    told = []
    for hosts, size in ((1, 21), (3, 7), (7, 3)):
        streams = fleet(path, hosts, batch_size=size)
        for stream in streams:
            stream.restore(saved)
        found = [together(step(streams)) for _ in range(4)]
        told.append(found)
        for number in range(4):
            assert sorted(r.key for r in streams[0].which(3 + number)) == [key for key, *_ in found[number]]
        assert len(streams[0].which(1)) == 10
    assert told[0] == told[1] == told[2]


def test_workers_change_nothing(text_dataset: MakeDataset) -> None:
    """Not even which rows are padding where worker processes make batches."""
    for encoder, broken in ((Noted, ()), (Skips, (5, 50))):
        options = {"task_encoder": encoder(), "repeat": False, "last_batch": "pad"}
        path = text_dataset(130, broken=broken)
        told = []
        for workers, kind in ((0, "thread"), (2, "thread"), (1, "process")):
            with closing(fleet(path, 2, workers=workers, kind=kind, **options)[1]) as stream:
                found = [(batch["samples"], batch["__valid__"].tolist()) for batch in stream]
                told.append((found, stream.stats()["dropped_total"]))
        assert len(found) == 3
        assert told[0] == told[1] == told[2]


def test_a_batch_is_made_again_from_its_restore_key(text_dataset: MakeDataset) -> None:
    path = text_dataset(130, broken={5, 50})
    streams = fleet(path, 3, task_encoder=Tolerant())
    for _ in range(5):
        for stream in streams:
            batch = next(stream)
            assert streams[0].restore_sample(batch.__restore_key__).text == batch.text


def test_micro_batches_cost_alike(text_dataset: MakeDataset) -> None:
    path = text_dataset(200)
    for hosts in (1, 2):
        plain = fleet(path, hosts)
        parted = fleet(path, hosts, balance=Balance("bytes.txt", micro_batches=4))
        spread = []
        for _ in range(5):
            batches, same = step(parted), step(plain)
            assert list(map(sorted, batches)) == list(map(sorted, same))
            for batch, before in zip(batches, same, strict=True):
                loads = [np.reshape([size for *_, size in each], (4, -1)).sum(axis=1) for each in (batch, before)]
                spread.append([np.ptp(load) for load in loads])
        equal, unequal = np.sum(spread, axis=0)
        assert equal * 3 < unequal
    [kept] = fleet(path, 1, balance=Balance("bytes.txt", micro_batches=4), repeat=False, last_batch="keep")
    assert [len(batch["samples"]) for batch in kept] == [48, 48, 48, 48, 8]


def test_mixtures_and_expressions(text_dataset: MakeDataset, tmp_path: Path) -> None:
    parts = [{"path": str(text_dataset(130)), "weight": 1}, {"path": str(text_dataset(53)), "weight": 2}]
    mixture = write_v2(tmp_path, train={"blend": parts})
    cost = "bytes.txt + 0.5 * bytes.txt ** 2"
    expected = [together(step(one)) for one in [fleet(mixture, 1, balance=None)] for _ in range(6)]
    streams = fleet(mixture, 6, balance=cost)
    for number in range(6):
        batches = step(streams)
        assert together(batches) == expected[number]
        work = [sum(size + size**2 / 2 for *_, size in batch) for batch in batches]
        assert max(work) < 1.05 * np.mean(work)


class Packing(Noted):
    """Packs of samples: keys, random numbers, and bytes of all of them."""

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return (
            sum((keys for keys, *_ in samples), ()),
            int(self.rng.integers(1 << 30)),
            sum(size for *_, size in samples),
        )

    def encode_sample(self, sample: Any) -> Any:
        return (int(sample.__key__),), int(self.rng.integers(1 << 30)), len(sample.text.encode())


def test_planned_packs_are_dealt_out_by_what_their_samples_cost(text_dataset: MakeDataset) -> None:
    plan = PackingPlan("bytes.txt", capacity=700, max_samples=9)
    cost = "bytes.txt + bytes.txt ** 2"
    path = text_dataset(400)
    options: dict[str, Any] = {"packing": plan, "task_encoder": Packing(), "batch_size": 12}
    expected = [together(step(one)) for one in [fleet(path, 1, balance=None, **options)] for _ in range(4)]
    for hosts in (2, 3):
        streams = fleet(path, hosts, balance=cost, **{**options, "batch_size": 12 // hosts})
        told = [streams[0].which(number) for number in range(4)]
        for number in range(4):
            batches = step(streams)
            assert together(batches) == expected[number]
            for host, batch in enumerate(batches):
                own = sorted(int(record.key) for record in told[number] if record.host == host)
                assert own == sorted(key for keys, *_ in batch for key in keys)
    with pytest.raises(ConfigError, match="batches by budget already have equal costs"):
        open_stream(path, balance=cost, batch_size=CostBudget("bytes.txt", 700))


def test_a_changed_column_says_so(tmp_path: Path) -> None:
    path = Path(make_text_dataset(tmp_path / "data", n=60, shards=2))
    measure_dataset(path, attach={"tokens": np.arange(60.0)})
    options: dict[str, Any] = {"split_part": "train", "balance": "tokens", "batch_size": 6}
    stream = open_stream(path, **options)
    next(stream)
    saved = stream.cursor(with_manifest=True)
    with pytest.raises(FingerprintError, match="balance"):
        open_stream(path, **{**options, "balance": None}).restore(saved)
    with pytest.raises(FingerprintError, match="micro_batches"):
        open_stream(path, **{**options, "balance": Balance("tokens", micro_batches=2)}).restore(saved)
    open_stream(path, **options).restore(saved)
    measure_dataset(path, attach={"tokens": np.arange(60.0)[::-1]})
    with pytest.raises(FingerprintError, match=r"columns.*tokens"):
        open_stream(path, **options).restore(saved)
    measure_dataset(path, attach={"tokens": np.where(np.arange(60) % 7, 1.0, np.nan)})
    with pytest.raises(ConfigError, match=r"balance='tokens'.*is nan"):
        next(open_stream(path, **{**options, "balance": Balance("tokens", micro_batches=2), "batch_size": 60}))


def evenly(sample: Any) -> bool:
    return int(sample.__key__) % 2 == 0


class ByKey(TaskEncoder):
    def batch_group_criterion(self, sample: Any) -> Any:
        return evenly(sample), None


def test_what_cannot_be_balanced_is_refused(text_dataset: MakeDataset) -> None:
    path = text_dataset(53)
    with pytest.raises(KeyNotFoundError, match=r"no column 'tokens'.*energon-grain measure .*--column tokens="):
        open_stream(path, balance="tokens")
    with pytest.raises(ConfigError, match="balance='bytes' with batch_size=None"):
        open_stream(path, balance="bytes", batch_size=None)
    with pytest.raises(ConfigError, match="micro_batches=3 does not divide batch_size=4"):
        open_stream(path, balance=Balance("bytes", micro_batches=3))
    with pytest.raises(ConfigError, match="balance=7: expected a column or an expression"):
        open_stream(path, balance=7)
    with pytest.raises(ConfigError, match=r"ByKey\.batch_group_criterion"):
        open_stream(path, balance="bytes", task_encoder=ByKey())
    with pytest.raises(ConfigError, match="balance='bytes'"):
        open_stream(path, balance="bytes", packing_buffer_size=4, task_encoder=Packs())
    samples = get_val_dataset(path, split_part="train", batch_size=None, worker_config=config())
    with pytest.raises(ConfigError, match=r"hosts cannot know their costs in advance.*where="):
        Stream.of(BatchDataset(FilterDataset(samples, evenly), 4, list, balance="bytes"))
    inner = BatchDataset(samples, 2, list, balance="bytes")
    with pytest.raises(ConfigError, match="only on the outermost"):
        Stream.of(BatchDataset(BlendDataset((inner, 1)), 2, list))


class Packs(TaskEncoder):
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples]

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return samples[0]


def test_validation_is_balanced_too(text_dataset: MakeDataset) -> None:
    def run(hosts: int, balance: Any) -> list[list[Any]]:
        streams = [
            Stream.of(
                get_val_dataset(
                    text_dataset(53),
                    split_part="train",
                    batch_size=12 // hosts,
                    balance=balance,
                    task_encoder=Noted(),
                    last_batch="pad",
                    worker_config=config(host, hosts),
                )
            )
            for host in range(hosts)
        ]
        return [together(step(streams)) for _ in range(8)]

    assert run(1, None) == run(1, "bytes") == run(4, "bytes") == run(6, "bytes")


def test_a_plan_of_all_hosts_items_stays_small(text_dataset: MakeDataset) -> None:
    """With 1,000 hosts of 8, a host looks at 8,000 items a step: its plans are of few steps, and come quickly."""
    stream = train_on(text_dataset(200), batch_size=8, balance="bytes", worker_config=config(937, 1000))
    assert sum(len(batch.__key__) for batch, _ in zip(Stream.of(stream), range(5), strict=False)) == 40


def test_which_makes_again_what_was_jumped_over(text_dataset: MakeDataset) -> None:
    """Nothing that lies before a step has a part in it."""
    path = text_dataset(130, broken=range(0, 130, 9))
    expected = together(step(fleet(path, 2)))
    streams = fleet(path, 2)
    for stream in streams:
        stream.skip(1)
    step(streams)
    for stream in streams:
        told = stream.which(0)
        assert told.read
        assert sorted(record.key for record in told) == [key for key, *_ in expected]
