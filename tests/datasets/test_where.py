"""Views by columns: what `where` keeps is all there is, on every road to a leaf."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from cli_runs import run
from metadatasets import write_v2

from energon_grain import (
    ConfigError,
    DatasetLoader,
    EmptyDatasetError,
    FingerprintError,
    MetadatasetV2,
    WorkerConfig,
    get_dataset_from_config,
    get_loader,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
    measure_dataset,
)
from energon_grain.errors import IndexFileError, KeyNotFoundError
from energon_grain.kinds.tar.source import WebDatasetSource
from energon_grain.loader.data_source import EnergonDataSource
from energon_grain.prepare.columnar_build import open_columnar
from energon_grain.samplers.expression import Expression
from energon_grain.testing import make_text_dataset

N = 160
TRAIN = 120
"""Samples of the split part: those of three shards out of four."""
HOST = WorkerConfig(rank=0, world_size=1, num_workers=0)
NAN = float("nan")


def measure(root: Path, **columns: Any) -> None:
    """Write columns, as measuring does."""
    measure_dataset(root, attach={name: np.asarray(numbers, np.float64) for name, numbers in columns.items()})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = Path(make_text_dataset(tmp_path / "texts", n=N, shards=4))
    number = np.arange(N)
    measure(root, number=number, tokens=number * 7 % 100, score=np.where(number % 10 == 3, NAN, number / N))
    return root


def numbers(dataset: Any) -> list[int]:
    """Numbers of the samples of one pass, by their keys."""
    return [int(sample.__key__.rsplit("/", 1)[-1]) for sample in get_loader(dataset)]


def val(path: Any, **options: Any) -> list[int]:
    options = {"split_part": "train", "worker_config": HOST, "batch_size": None, **options}
    return numbers(get_val_dataset(path, **options))


def train(path: Any, **options: Any) -> Any:
    shuffling = {"shuffle_buffer_size": None, "max_samples_per_sequence": None}
    return get_train_dataset(path, **{"worker_config": HOST, "batch_size": None, **shuffling, **options})


def kept(condition: Callable[[int, int], bool]) -> list[int]:
    return [n for n in range(TRAIN) if condition(n, n * 7 % 100)]


def test_what_is_rejected_is_not_there(root: Path) -> None:
    expected = kept(lambda n, tokens: tokens >= 50)
    where = "tokens >= 50"
    assert val(root, where=where) == expected
    one_pass = train(root, where=where, repeat=False)
    assert len(get_loader(one_pass)) == len(expected)
    assert sorted(numbers(one_pass)) == expected
    loader = get_loader(train(root, where=where))
    epochs = [[int(next(loader).__key__) for _ in expected] for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [expected, expected]
    assert epochs[0] != epochs[1]
    [loaded] = (
        DatasetLoader(path=str(root))
        .get_datasets(training=False, split_part="train", worker_config=HOST, where=where)
        .datasets
    )
    assert numbers(loaded.dataset) == expected
    assert numbers(get_dataset_from_config(root, worker_config=HOST, training=False, where=where)) == expected
    [(dataset, leaf)] = get_val_datasets(
        root, split_part="train", batch_size=None, worker_config=HOST, where="tokens>=50"
    )
    assert numbers(dataset) == expected
    assert str(leaf.where) == where
    source = EnergonDataSource(root, where=where)
    for each in (source, pickle.loads(pickle.dumps(source))):
        assert [int(sample.__key__) for sample in each] == expected


def test_what_is_rejected_is_never_read(root: Path) -> None:
    """Not even when its shard is damaged: a shard whose samples are all rejected may be gone."""
    index = open_columnar(root)
    first = index.shard_first.tolist()
    (root / index.shards[1]).unlink()
    outside = [n for n in range(TRAIN) if not first[1] <= n < first[2]]
    assert val(root, where=f"number < {first[1]} or number >= {first[2]}") == outside


def test_order_of_split_subset_excludes_and_where(root: Path) -> None:
    split = root / ".nv-meta" / "split.yaml"
    said = yaml.safe_load(split.read_text())
    index = open_columnar(root)
    shards = said["split_parts"]["train"]
    key = {n: f"{index.shards[int(index.shard_of(np.array([n]))[0])]}/{index.key(n)}" for n in (7, 21, 45)}
    split.write_text(yaml.safe_dump({"split_parts": {"train": shards}, "exclude": list(key.values())}))
    expected = [n for n in range(5, 60) if n not in key and n * 7 % 100 < 50]
    assert val(root, subset=[5, 60], where="tokens < 50") == expected
    assert val(root, subset=["0%", "50%"], where="number >= 20") == [n for n in range(20, 60) if n not in key]
    assert val(root, where="number < 1000") == [n for n in range(TRAIN) if n not in key]


def test_wheres_of_all_levels_are_joined(root: Path, tmp_path: Path) -> None:
    write_v2(tmp_path, "inner.yaml", train={"path": "texts", "where": "number < 100 or number == 110"})
    path = write_v2(
        tmp_path,
        train={
            "concat": [
                {"path": "inner.yaml", "where": "tokens < 50"},
                {"path": "texts", "where": "tokens >= 50", "subset": {"range": ["0%", "50%"]}},
            ],
            "where": "not number % 2",
        },
    )
    expected = kept(lambda n, tokens: n % 2 == 0 and tokens < 50 and (n < 100 or n == 110) and n > 20)
    expected += kept(lambda n, tokens: n % 2 == 0 and tokens >= 50 and 20 < n < 60)
    assert val(path, where="number > 20") == expected
    leaves = get_val_datasets(path, split_part="train", batch_size=None, worker_config=HOST, where="number > 20")
    joined = "(number < 100 or number == 110) and tokens < 50 and not number % 2 and number > 20"
    assert str(leaves[0][1].where) == joined
    made = MetadatasetV2(splits={"train": {"path": str(root), "where": "tokens < 50"}})
    assert val(made) == kept(lambda n, tokens: tokens < 50)


def test_shares_and_repetitions_count_what_is_left(root: Path, tmp_path: Path) -> None:
    short, long = kept(lambda n, tokens: tokens < 30), kept(lambda n, tokens: tokens >= 30)
    parts = [{"path": "texts", "where": "tokens < 30"}, {"path": "texts", "where": "tokens >= 30"}]
    path = write_v2(tmp_path, train={"blend": [{**parts[0], "weight": 3}, {**parts[1], "weight": 1}]})
    loader = get_loader(train(path))
    drawn = [int(next(loader).__key__) for _ in range(4800)]
    assert abs(sum(n in short for n in drawn) - 3600) <= 17
    path = write_v2(
        tmp_path, train={"blend_epochized": [{**parts[0], "repetitions": 2}, {**parts[1], "repetitions": 1}]}
    )
    assert sorted(numbers(train(path, repeat=False))) == sorted([*short, *short, *long])


def test_leaves_with_other_conditions_have_other_orders(root: Path, tmp_path: Path) -> None:
    orders = [numbers(train(root, repeat=False, where=where)) for where in ("number < 60", "number <= 59", "number<60")]
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders[0] == orders[2] != orders[1]
    for where in ("number < 60", "number <= 59"):
        write_v2(tmp_path, f"{len(where)}.yaml", train={"path": "texts", "where": where, "name": "same"})
    assert numbers(train(tmp_path / "11.yaml", repeat=False)) == numbers(train(tmp_path / "12.yaml", repeat=False))


def test_columns_of_joins(root: Path, tmp_path: Path) -> None:
    other = Path(make_text_dataset(tmp_path / "other", n=N, shards=4))
    measure(other, tokens=np.arange(N) % 3)
    path = write_v2(
        tmp_path,
        train={"join": [{"path": "texts"}, {"path": "other"}], "where": "tokens >= 50 and other.tokens == 1"},
    )
    assert val(path) == kept(lambda n, tokens: tokens >= 50 and n % 3 == 1)


@pytest.mark.parametrize(
    ("where", "names"),
    [
        ("score > 2", ["three"]),
        ("score * 1 > 2", ["three"]),
        ("score + 0 > 2", ["three"]),
        ("abs(score) > 2", ["three"]),
        ("max(score, 0) > 2", ["three"]),
        ("floor(score) > 2", ["three"]),
        ("not score <= 2", ["three"]),
        ("isnan(score)", ["inf", "-inf", "nan"]),
        ("isnan(score * 1)", ["inf", "-inf", "nan"]),
        ("score", ["three", "one"]),
        ("score ** 0 == 1 or 1 ** score == 1", ["three", "one"]),
    ],
)
def test_what_is_not_finite_is_missing_however_it_is_written(tmp_path: Path, where: str, names: list[str]) -> None:
    scores = [float("inf"), float("-inf"), 3.0, 1.0, float("nan")]
    pq.write_table(pa.table({"score": scores, "name": ["inf", "-inf", "three", "one", "nan"]}), tmp_path / "x.parquet")
    rows = get_val_dataset(tmp_path / "x.parquet", worker_config=HOST, batch_size=None, where=where)
    assert [row["name"] for row in get_loader(rows)] == names


def test_which_and_restored_samples(root: Path) -> None:
    loader = get_loader(train(root, where="tokens >= 50", batch_size=4))
    expected = set(kept(lambda n, tokens: tokens >= 50))
    told = [[int(record.key) for record in loader.which(step)] for step in range(3)]
    batches = [next(loader) for _ in range(3)]
    assert told == [[int(key) for key in batch.__key__] for batch in batches]
    assert {n for step in told for n in step} <= expected
    again = loader.restore_sample(batches[1].__restore_key__)
    assert again.__key__ == batches[1].__key__


def test_workers_get_the_selection_and_evaluate_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = numbers(train(root, where="tokens >= 50", repeat=False))
    two = WorkerConfig(rank=0, world_size=1, num_workers=2, worker_type="process")
    assert numbers(train(root, where="tokens >= 50", repeat=False, worker_config=two)) == expected
    source = WebDatasetSource(root, where=Expression.parse("tokens >= 50", where="here"))
    monkeypatch.setattr(Expression, "holds", None)
    copy = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(source))))
    assert copy.content_id == source.content_id != WebDatasetSource(root).content_id
    assert copy.read(np.arange(len(copy))).keys == source.read(np.arange(len(source))).keys


def test_a_changed_column_changes_the_fingerprint(root: Path) -> None:
    loader = get_loader(train(root, where="tokens >= 50"))
    next(loader)
    state = loader.save_state_rank()
    same = get_loader(train(root, where="tokens>=50"))
    same.restore_state_rank(state)
    assert next(same).__key__ == next(loader).__key__
    measure(root, tokens=np.where(np.arange(N) == 7, 99, np.arange(N) * 7 % 100), number=np.arange(N))
    changed = get_loader(train(root, where="tokens >= 50"))
    with pytest.raises(FingerprintError, match=r"(?s)where\.columns\.tokens: saved.*now.*allow_changes=True"):
        changed.restore_state_rank(state)
    other = get_loader(train(root, where="number >= 0"))
    with pytest.raises(FingerprintError, match="where tokens >= 50"):
        other.restore_state_rank(state)


def refused(error: type[Exception], split: Mapping[str, Any], folder: Path, **options: Any) -> str:
    path = write_v2(folder, train=dict(split))
    with pytest.raises(error) as found:
        val(path, **options)
    return str(found.value).replace(str(folder), "F")


def test_errors_say_what_to_do(root: Path, tmp_path: Path) -> None:
    here = {"path": "texts"}
    assert refused(ConfigError, {**here, "where": "tokens > "}, tmp_path).startswith(
        "F/meta.yaml: $.splits.train.where: the expression 'tokens >', at its end: invalid syntax"
    )
    assert "expected the text of an expression, such as" in refused(ConfigError, {**here, "where": 3}, tmp_path)
    assert refused(ConfigError, here, tmp_path, where="tokens >> 1").startswith("where: the expression 'tokens >> 1'")
    missing = refused(KeyNotFoundError, {**here, "where": "clip > 1"}, tmp_path)
    assert missing.startswith("F/meta.yaml: $.splits.train: ")
    assert "energon-grain measure F/texts --column clip=module:function" in missing
    empty = refused(EmptyDatasetError, {**here, "where": "tokens > 1000", "subset": {"range": [5, 25]}}, tmp_path)
    nothing = "where 'tokens > 1000' matches none of the 20 samples; relax the condition"
    assert empty == f"F/meta.yaml: $.splits.train: F/texts: {nothing}"
    assert "reaches" in refused(ConfigError, {**here, "where": "bytes * 2**61 > 1"}, tmp_path)
    either = " or ".join(f"tokens == {n}" for n in range(590))
    both = refused(ConfigError, {**here, "where": either}, tmp_path, where=either.replace("==", "!="))
    assert both.startswith("F/meta.yaml: $.splits.train: where, joined with that of the dataset around it: the expres")
    [column] = (root / ".nv-meta/columnar/columns").glob("tokens-*.npy")
    data = bytearray(column.read_bytes())
    data[-100] ^= 1
    column.write_bytes(data)
    assert "checksum mismatch" in refused(IndexFileError, {**here, "where": "tokens > 1"}, tmp_path)


def test_a_column_that_is_not_there_is_missed_where_it_is_written(root: Path) -> None:
    with pytest.raises(
        KeyNotFoundError, match=r"no column 'scor'; the columns are bytes, number, tokens, score; .*measure"
    ):
        train(root, where="scor > 1")


def test_stale_columns_are_refused(root: Path, tmp_path: Path) -> None:
    other = Path(make_text_dataset(tmp_path / "new", n=N - 1, shards=4))
    (other / ".nv-meta/columnar/columns.json").write_bytes((root / ".nv-meta/columnar/columns.json").read_bytes())
    with pytest.raises(KeyNotFoundError, match=r"create it again: `energon-grain measure .*new --attach tokens=FILE`"):
        val(other, where="tokens > 1")


def test_info_says_how_many_are_left(root: Path, tmp_path: Path) -> None:
    path = write_v2(tmp_path, train={"blend": [{"path": "texts", "where": "tokens >= 50"}, {"path": "texts"}]})
    told = run("info", str(path)).stdout
    left = len(kept(lambda n, tokens: tokens >= 50))
    assert "Kept by `where`" in told
    assert f"texts where tokens >= 50: {left} of {TRAIN} samples ({left / TRAIN:.3%})" in told
