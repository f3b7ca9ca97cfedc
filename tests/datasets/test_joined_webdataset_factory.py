"""A join by class."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from stream_hosts import quiet

from energon_grain import (
    ConfigError,
    DefaultDecoderWebdatasetFactory,
    JoinedWebdatasetFactory,
    Sample,
    Stream,
    TextSample,
    TextWebdataset,
    WorkerConfig,
)
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import write_tars

CONFIG = WorkerConfig(0, 1, global_error_handler=quiet)


@dataclass(kw_only=True)
class Pair(Sample):
    """What two datasets have for a key."""

    first: str
    second: str | None

    @classmethod
    def from_joined(cls, left: Any, right: Any) -> Pair:  # pyright: ignore[reportIncompatibleMethodOverride]
        return cls.derive_from(left, first=left.text, second=right and right.text)


class Loud(DefaultDecoderWebdatasetFactory[TextSample]):
    """Loads samples by itself."""

    __sample_type__ = TextSample

    def load_sample(self, sample: Any) -> TextSample:
        made = super().load_sample(sample)
        made.text = made.text.upper()
        return made


def inner(root: Path, keys: str, kind: type[Any] = TextWebdataset) -> Any:
    if not root.exists():
        write_tars(root, [{"__key__": key, "txt": f"{root.name} {key}"} for key in keys.split()], shards=1)
        prepare_dataset(root, split_ratio={"train": 1}, crude=True, num_workers=0, sqlite=False)
    return kind(root, split_part="train", training=True, worker_config=CONFIG, field_map={"text": "txt"})


def joined(datasets: Any, **options: Any) -> JoinedWebdatasetFactory[Pair]:
    arguments: dict[str, Any] = {"training": False, "worker_config": CONFIG, "joiner": Pair}
    return JoinedWebdatasetFactory(datasets, **{**arguments, **options})


def read(factory: Any) -> list[tuple[str, str, str | None]]:
    return [(sample.__key__, sample.first, sample.second) for sample in Stream.of(factory.build())]


def test_samples_of_equal_keys_by_position_and_by_name(tmp_path: Path) -> None:
    a, b = inner(tmp_path / "a", "x y z"), inner(tmp_path / "b", "z w y x", Loud)
    rows = [(key, f"a {key}", f"B {key.upper()}") for key in "xyz"]
    assert read(joined([a, b], join_index=tmp_path / "anything.bin")) == rows
    assert read(joined({"left": a, "right": b})) == rows
    assert read(joined({"right": a, "left": b}, nonmatch="skip"))[0][1:] == ("B X", "a x")
    function = joined([a, b], joiner=lambda left, right: Pair.from_joined(left, right))
    assert read(function) == rows
    assert len(function) == 3
    assert function
    assert function.paths == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert json.loads(json.dumps(function.config()))["joined_datasets"][1]["type"] == "Loud"
    assert str(tmp_path / "a") in str(function)


def test_keys_that_are_missing(tmp_path: Path) -> None:
    a, b = inner(tmp_path / "a", "x y z"), inner(tmp_path / "b", "z x")
    with pytest.raises(ConfigError, match="nonmatch"):
        len(joined([a, b]))
    assert [key for key, _, _ in read(joined([a, b], nonmatch="skip"))] == ["x", "z"]
    assert [second for _, _, second in read(joined([a, b], nonmatch="none"))] == ["b x", None, "b z"]


def test_order_and_subset(tmp_path: Path) -> None:
    keys = " ".join(f"{i:02d}" for i in range(40))
    a, b = inner(tmp_path / "a", keys), inner(tmp_path / "b", keys)
    assert [key for key, _, _ in read(joined([a, b], subset=[10, 20]))] == keys.split()[10:20]
    shuffled = [key for key, _, _ in read(joined([a, b], training=True))]
    assert shuffled != keys.split()
    assert sorted(shuffled) == keys.split()
    assert len(joined([a, b], subset=["0%", "50%"])) == 20


def test_one_dataset_is_no_join(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least two datasets are joined, not 1"):
        joined([inner(tmp_path / "a", "x")])
