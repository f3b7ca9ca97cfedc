"""What a dataset's own configuration says, and what it cannot say."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from metadatasets import write_v2

from energon_grain import (
    ConfigError,
    DefaultTaskEncoder,
    UntrustedCodeError,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    get_val_dataset,
)
from energon_grain.testing import make_captioning_dataset, make_text_dataset

IN_ORDER = [f"{i:06d}" for i in range(12)]


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return make_text_dataset(tmp_path / "text", n=12, shards=1)


def say(root: Path, **content: Any) -> Path:
    path = root / ".nv-meta" / "dataset.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **content}))
    return root


def train(root: Path, **options: Any) -> Any:
    arguments = {"batch_size": 4, "shuffle_buffer_size": None, "max_samples_per_sequence": None, "repeat": False}
    return get_train_dataset(root, **{**arguments, **options})


def keys(dataset: Any) -> list[str]:
    return [key for batch in dataset for key in batch.__key__]


def test_it_overrides_the_order(dataset: Path) -> None:
    assert keys(train(dataset)) != IN_ORDER
    assert keys(train(say(dataset, shuffle_over_epochs=None))) == IN_ORDER
    assert keys(train(say(dataset, shuffle_over_epochs=1))) != IN_ORDER
    assert keys(train(say(dataset, training=False))) == IN_ORDER


def test_it_overrides_blocks(dataset: Path) -> None:
    asked_for = keys(train(dataset, max_samples_per_sequence=3, lanes=2))
    assert asked_for != keys(train(dataset, lanes=2))
    assert keys(train(say(dataset, max_samples_per_sequence=3), lanes=2)) == asked_for
    assert keys(train(dataset, max_samples_per_sequence=1000, lanes=2)) == asked_for


def test_fewer_blocks_than_lanes_are_a_full_shuffle(dataset: Path) -> None:
    assert keys(train(dataset, max_samples_per_sequence=3, lanes=5)) == keys(train(dataset, lanes=5))
    assert keys(train(dataset, max_samples_per_sequence=3, lanes=4)) != keys(train(dataset, lanes=4))
    together = {"max_samples_per_sequence": 3, "shuffle_over_epochs_multiplier": 2, "lanes": 8}
    assert keys(train(dataset, **together)) != keys(train(dataset, **{**together, "max_samples_per_sequence": None}))


def test_it_overrides_the_subset(dataset: Path) -> None:
    say(dataset, subset={"range": ["25%", "75%"]})
    assert keys(get_val_dataset(dataset, split_part="train", batch_size=4)) == IN_ORDER[3:9]
    assert keys(get_val_dataset(dataset, split_part="train", batch_size=4, subset=[0, 1])) == IN_ORDER[3:9]


def test_split_part_and_split_file(dataset: Path) -> None:
    meta = dataset / ".nv-meta"
    (meta / "mine.yaml").write_text("split_parts: {mine: [shard_000.tar]}\nexclude: [shard_000.tar/000002]\n")
    say(dataset, split_config="mine.yaml", split_part="mine")
    assert keys(get_val_dataset(dataset, batch_size=4)) == IN_ORDER[:2] + IN_ORDER[3:]


def test_subflavors(dataset: Path) -> None:
    say(dataset, subflavors={"lang": "en"})
    (batch,) = get_val_dataset(dataset, batch_size=12)
    assert batch.__subflavors__ == [{"lang": "en"}] * 12


@pytest.mark.parametrize("given", [{}, {"lang": "en"}])
def test_each_sample_has_subflavors_of_its_own(dataset: Path, given: dict[str, str]) -> None:
    class Noting(DefaultTaskEncoder):
        def encode_sample(self, sample: Any) -> Any:
            sample.__subflavors__["seen"] = sample.__key__
            return sample

    say(dataset, subflavors=given)
    for _ in range(2):
        (batch,) = get_val_dataset(dataset, batch_size=12, task_encoder=Noting())
        assert batch.__subflavors__ == [{**given, "seen": key} for key in IN_ORDER]


def test_decoders(tmp_path: Path) -> None:
    root = make_captioning_dataset(tmp_path / "captions", n=2, shards=1)

    def image(**content: Any) -> Any:
        return next(iter(get_val_dataset(say(root, **content), batch_size=None))).image

    assert image().dtype == np.float32
    assert type(image(decoder=None)) is bytes
    ours = {"__module__": "megatron.energon", "__class__": "SampleDecoder", "image_decode": "rgb8"}
    assert image(decoder=ours).dtype == np.uint8
    with pytest.raises(ConfigError, match="decoder"):
        image(decoder={**ours, "no_such_option": 1})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"shuffle_over_epochs": 0}, r"text: shuffle_over_epochs_multiplier=0"),
        ({"max_samples_per_sequence": 0}, r"text: max_samples_per_sequence=0"),
        ({"feild_map": {}}, r"dataset\.yaml.*feild_map.*field_map"),
        ({"subset": {"range": [5, 13]}}, r"\[5, 13\]: split part 'train' of .*text has only 12 samples"),
        ({"field_map": {"text": "nowhere"}}, r"text: field_map.*nowhere"),
        ({"field_map": {"txt": "txt"}}, r"txt"),
    ],
)
def test_impossible_configurations(dataset: Path, content: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        len(train(say(dataset, **content)))


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ({"split_part": "tarin"}, r"text/\.nv-meta/split\.yaml: there is no split part 'tarin'; .* mean 'train'"),
        ({"subset": [5, 13]}, r"subset \[5, 13\]: split part 'train' of .*text has only 12 samples"),
        ({"dataset_config": "datset.yaml"}, r"datset\.yaml: no such file"),
    ],
)
def test_what_is_wrong_names_the_place_that_asks_for_it(dataset: Path, reference: dict[str, Any], message: str) -> None:
    concat = [{"path": "text"}, {"path": "text", **reference}]
    path = write_v2(dataset.parent, train={"concat": concat})
    with pytest.raises(ConfigError, match=rf"^{path}: \$\.splits\.train\.concat\[1\]: .*{message}"):
        len(train(path))


BESIDE = """
PREFIX = "loaded "

def load(sample):
    assert "json" not in sample
    return {"text": PREFIX + sample["txt"], "__key__": "k" + sample["__key__"]}

def part_filter(name):
    return name == "txt"
"""


def test_code_beside_the_data_is_run_where_the_program_trusts_it(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = dataset / ".nv-meta" / "dataset.yaml"
    typed = yaml.safe_load(path.read_text())
    code = {"sample_loader": "sample_loader.py:load", "part_filter": "sample_loader.py"}
    path.write_text(yaml.safe_dump({"sample_type": typed["sample_type"], **code}))
    wanted = r"beside the data.* pass trusted_modules=\['sample_loader.py'\].*StandardWebdatasetFactory\('.*', sample_"
    with pytest.raises(UntrustedCodeError, match=wanted):
        len(train(dataset))
    path.write_text(yaml.safe_dump(typed))
    plain = next(iter(get_loader(train(dataset))))
    path.write_text(yaml.safe_dump({"sample_type": typed["sample_type"], **code}))

    def trusted() -> Any:
        return train(dataset, trusted_modules=["sample_loader.py"])

    with pytest.raises(ConfigError, match=r"the trusted `sample_loader.py:load` in .*nv-meta: .*No such file"):
        len(trusted())
    (dataset / ".nv-meta" / "sample_loader.py").write_text(BESIDE)
    for worker_type in ("thread", "process"):
        config = WorkerConfig(0, 1, 1, worker_type=worker_type)  # type: ignore[arg-type]
        with get_loader(trusted(), worker_config=config) as loader:
            batch = next(loader)
        assert batch.text == [f"loaded {text}" for text in plain.text]
        assert batch.__key__ == [f"k{key}" for key in plain.__key__]
    monkeypatch.setenv("ENERGON_GRAIN_TRUSTED_MODULES", "sample_loader.py")
    assert next(iter(get_loader(train(dataset)))).text == batch.text
    for wrong, said in (
        ("../sample_loader.py", "must lie in that folder"),
        ("sample_loader.py:none", "KeyError: 'none'"),
    ):
        path.write_text(yaml.safe_dump({"sample_type": typed["sample_type"], **code, "sample_loader": wrong}))
        with pytest.raises(ConfigError, match=said):
            len(train(dataset, trusted_modules=[wrong.partition(":")[0]]))
    path.write_text(yaml.safe_dump(typed))


def test_code_that_a_data_file_names_is_not_run(dataset: Path) -> None:
    own = {"__module__": "my_samples", "__class__": "MySample"}
    with pytest.raises(UntrustedCodeError, match=r"trusted_modules=\['my_samples'\]"):
        len(train(say(dataset, sample_type=own)))


def test_an_interrupted_prepare_is_finished_first(dataset: Path) -> None:
    """The journal is there, half of the renames are done: whoever opens the dataset does the rest."""
    meta, staged = dataset / ".nv-meta", dataset / ".nv-meta/.prepare" / "staged-abc"
    (staged / ".nv-meta").mkdir(parents=True)
    new = {"split_parts": {"train": ["shard_000.tar"], "new": ["shard_000.tar"]}, "exclude": ["shard_000.tar/000000"]}
    (staged / ".nv-meta" / "split.yaml").write_text(json.dumps(new))
    shutil.copy(meta / "dataset.yaml", staged / ".nv-meta" / "dataset.yaml")
    os.unlink(meta / "dataset.yaml")
    journal = {"version": 1, "staged": "staged-abc", "remove": [".nv-meta/old"]}
    journal["put"] = [".nv-meta/dataset.yaml", ".nv-meta/split.yaml"]
    (meta / "old").write_text("obsolete")
    (dataset / ".nv-meta/.prepare/commit.json").write_text(json.dumps(journal))
    assert keys(get_val_dataset(dataset, split_part="new", batch_size=4)) == IN_ORDER[1:]
    assert not (dataset / ".nv-meta/.prepare/commit.json").exists()
    assert not staged.exists()
    assert not (meta / "old").exists()


def test_identities_do_not_depend_on_where_the_data_lies(dataset: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / "text"
    shutil.copytree(dataset, moved)
    assert keys(train(moved)) == keys(train(dataset))
    renamed = tmp_path / "renamed"
    shutil.copytree(dataset, renamed)
    assert keys(train(renamed)) != keys(train(dataset))


def test_excludes_that_name_nothing_are_told(dataset: Path, caplog: pytest.LogCaptureFixture) -> None:
    split = dataset / ".nv-meta" / "split.yaml"
    content = yaml.safe_load(split.read_text())
    split.write_text(yaml.safe_dump({**content, "exclude": ["shard_000.tar/000003"]}))
    assert len(keys(train(dataset))) == 11
    assert not caplog.records
    split.write_text(yaml.safe_dump({**content, "exclude": ["shard_000.tar/3", "gone.tar"]}))
    assert len(keys(train(dataset))) == 12
    (record,) = caplog.records
    assert "excludes that name nothing that is there: 2, such as 'gone.tar'" in record.getMessage()


def test_a_wrong_field_map_is_told_with_its_dataset_and_all_parts(dataset: Path) -> None:
    with pytest.raises(ConfigError, match=rf"^{dataset}: field_map: TextSample has no field 'txet'"):
        keys(train(say(dataset, field_map={"txet": "txt"})))
    with pytest.raises(ConfigError, match=r"no sample has a part 'md'; there are json, txt"):
        keys(train(say(dataset, field_map={"text": "md"})))
