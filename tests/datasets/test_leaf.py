"""Leaves of every kind: what their configuration says, what is the same for all, and small files that are too much."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from arrays import numbered, write_array, write_group
from metadatasets import write_v2
from parquet_files import write_numbers
from records import msgpack_record, write_shards
from table_forms import write_arrow, write_feather, write_mds, write_tokens

from energon_grain import (
    ConfigError,
    Cooker,
    DefaultTaskEncoder,
    IndexFileError,
    SampleDecoder,
    SavableDataset,
    SplitError,
    Stream,
    UntrustedCodeError,
    WorkerConfig,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import make_captioning_dataset, make_text_dataset, write_tars

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

    class Grey(SampleDecoder):
        def __init__(self, **options: Any) -> None:
            super().__init__(**{"image_decode": "l8", **options})

    class Encoder(DefaultTaskEncoder):
        decoder_type = Grey

    say(root, decoder={**ours, "max_pixels": 10**6})
    assert next(iter(get_val_dataset(root, batch_size=None, task_encoder=Encoder()))).image.shape[-1] == 3


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
        ({"split_part": "tarin"}, r"text/\.nv-meta/split\.yaml: no split part 'tarin'; .* mean 'train'"),
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

    with pytest.raises(
        ConfigError, match=r"loading the trusted `sample_loader.py:load` in .*nv-meta failed: .*No such file"
    ):
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
        ("../sample_loader.py", "must be directly in that folder"),
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
    assert "2 excludes match no sample or shard, for example 'gone.tar'" in record.getMessage()


def test_a_wrong_field_map_is_told_with_its_dataset_and_all_parts(dataset: Path) -> None:
    with pytest.raises(ConfigError, match=rf"^{dataset}: field_map: TextSample has no field 'txet'"):
        keys(train(say(dataset, field_map={"txet": "txt"})))
    with pytest.raises(ConfigError, match=r"no sample has a part 'md'; there are json, txt"):
        keys(train(say(dataset, field_map={"text": "md"})))


COUNT = 60
ENDINGS = (".array_record", ".tar", ".parquet", ".arrow", ".feather", ".zstd", ".bin")
ONE = WorkerConfig(rank=0, world_size=1, num_workers=0)
SAMPLES = [{"__key__": f"{number:03d}", "json": b'{"n": %d}' % number} for number in range(COUNT)]
CRUDE: dict[str, Any] = {"split_ratio": {"train": 1}, "crude": True, "num_workers": 0}


def write_tar_dataset(path: Path) -> None:
    write_tars(path, SAMPLES, shards=3)
    prepare_dataset(path, **CRUDE)


def write_array_records(path: Path) -> None:
    write_shards(path, [msgpack_record(sample) for sample in SAMPLES], 3)
    prepare_dataset(path, records="msgpack", **CRUDE)


WRITERS: dict[str, Callable[[Path], object]] = {
    "bare": lambda path: write_tars(path, SAMPLES, shards=3),
    "group.zarr": lambda path: write_group(path, n=np.arange(COUNT), image=numbered(COUNT, 3, 2)),
    "n": lambda path: write_array(path, np.arange(COUNT)),
    "notes.jsonl": lambda path: path.write_text("".join(f"{json.dumps({'n': n})}\n" for n in range(COUNT))),
    "records": write_array_records,
    "rows.parquet": lambda path: write_numbers(path, COUNT, row_group_size=7),
    "arrow": lambda path: write_arrow(path / "x.arrow", {"n": range(COUNT)}),
    "x.feather": lambda path: write_feather(path, {"n": range(COUNT)}, compression="zstd"),
    "mds": lambda path: write_mds(path, {"n": list(range(COUNT))}, shards=3, compression="zstd"),
    "ids.bin": lambda path: write_tokens(path.with_suffix(""), [[number] for number in range(COUNT)]),
    "files.parquet": lambda path: write_numbers(path, COUNT, files=3, row_group_size=7),
}


@pytest.fixture(params=WRITERS)
def leaf(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A leaf with the numbers up to 60."""
    path = tmp_path / request.param
    WRITERS[request.param](path)
    return path


def every_kind(path: Path, config: WorkerConfig = ONE, **options: Any) -> SavableDataset:
    given = {"batch_size": 4, "shuffle_buffer_size": 20, "max_samples_per_sequence": 5, **options}
    return get_train_dataset(path, worker_config=config, **given)


def numbers(batch: Any) -> list[int]:
    if "tokens" in batch:
        return [int(tokens[0]) for tokens in batch["tokens"]]
    return [int(number) for number in (batch["n"] if "n" in batch else batch["json"]["n"])]


def trained(path: Path, steps: int, *config: WorkerConfig, **options: Any) -> list[list[int]]:
    with Stream.of(every_kind(path, *config, **options)) as stream:
        return [numbers(next(stream)) for _ in range(steps)]


def test_the_order_is_that_of_tars(leaf: Path, tmp_path: Path) -> None:
    """The same samples under the same name come in the same order from any container."""
    write_tar_dataset(tmp_path / "tars")
    here, there = (
        trained(write_v2(tmp_path, train={"path": name, "name": "same"}), 40) for name in (leaf.name, "tars")
    )
    assert here == there
    assert sorted(number for batch in here[:15] for number in batch) == list(range(COUNT))


def test_worker_processes(leaf: Path) -> None:
    """This process has read the leaf before they start: processes come from a fork server, or are spawned."""
    here = trained(leaf, 5)
    config = WorkerConfig(rank=0, world_size=1, num_workers=2, worker_type="process")
    with get_savable_loader(every_kind(leaf, config)) as loader:
        batches = iter(loader)
        assert [numbers(next(batches)) for _ in range(5)] == here


@stateless
def only_keys(sample: Any) -> Any:
    return {name: sample[name] for name in ("__key__", "__restore_key__")}


class KeysOnly(DefaultTaskEncoder):
    cookers = (Cooker(only_keys),)


def test_state_and_which_and_samples_made_again(leaf: Path, tmp_path: Path) -> None:
    """In a blend with tars."""
    write_tar_dataset(tmp_path / "tars")
    blend = [{"weight": 3, "path": leaf.name}, {"weight": 1, "path": "tars"}]
    path = write_v2(tmp_path, train={"blend": blend})

    def opened() -> Stream:
        return Stream.of(
            every_kind(path, shuffle_buffer_size=None, max_samples_per_sequence=None, task_encoder=KeysOnly())
        )

    with opened() as stream:
        for _ in range(3):
            next(stream)
        state = stream.cursor()
        expected = next(stream)
        records = stream.which(3)
    assert [record.key for record in records] == list(expected["__key__"])
    shards = {record.shard for record in records if record.dataset == str(leaf)}
    assert shards
    assert all(shard == leaf.name or Path(shard).suffix in ENDINGS for shard in shards)
    with opened() as stream:
        stream.restore(state)
        again = next(stream)
        assert list(again["__key__"]) == list(expected["__key__"])
        assert list(stream.restore_sample(again["__restore_key__"])["__key__"]) == list(expected["__key__"])


@pytest.mark.parametrize("hosts", [2, 4])
def test_all_forms_in_one_mixture(tmp_path: Path, hosts: int) -> None:
    """Blended, joined and packed, saved on one host and restored on several: the same packs of the same samples."""
    for name, write in WRITERS.items():
        write(tmp_path / name)
    blend: list[Any] = [{"weight": 1, "path": name} for name in WRITERS]
    tables = [{"path": "rows.parquet", "keys": "n"}, {"path": "arrow", "keys": "n"}, {"path": "mds", "keys": "n"}]
    blend.append(
        {"weight": 3, "join": [*tables, {"path": "ids.bin", "by": "row"}, {"path": "notes.jsonl", "by": "row"}]}
    )
    path = write_v2(tmp_path, train={"blend": blend})

    def fleet(count: int) -> list[Stream]:
        given: dict[str, Any] = {"packing_buffer_size": 5, "batch_size": 4 // count, "lanes": 8}
        given |= {"task_encoder": Packs(), "shuffle_buffer_size": None, "max_samples_per_sequence": None}
        configs = [WorkerConfig(rank=rank, world_size=count, num_workers=0) for rank in range(count)]
        return [Stream.of(get_train_dataset(path, worker_config=config, **given)) for config in configs]

    def step(streams: list[Stream]) -> list[Any]:
        return sorted(keys for stream in streams for keys in next(stream))

    (alone,) = fleet(1)
    for _ in range(5):
        next(alone)
    state = alone.cursor()
    expected = [step([alone]) for _ in range(10)]
    alone.close()
    several = fleet(hosts)
    for stream in several:
        stream.restore(state)
    assert [step(several) for _ in range(10)] == expected
    assert len({key for batch in expected for pack in batch for key in pack}) > 20
    for stream in several:
        stream.close()


class Packs(KeysOnly):
    """Three keys to a pack."""

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[at : at + 3] for at in range(0, len(samples), 3)]

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return [sample["__key__"] for sample in samples]

    @stateless
    def batch(self, samples: list[Any]) -> Any:
        return samples


MakeDataset = Callable[..., Path]
LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 9)
)
DEEP = "[" * 100_000


@pytest.fixture
def bounded(text_dataset: MakeDataset, tmp_path: Path) -> Path:
    return Path(shutil.copytree(text_dataset(12, 3), tmp_path / "data"))


def keys_of(path: Path | str) -> list[str]:
    loader = get_loader(get_val_dataset(path, split_part="train", batch_size=None))
    return [sample.__key__ for sample in loader]


def split(dataset: Path, content: str) -> None:
    (dataset / ".nv-meta" / "split.yaml").write_text(content)


@pytest.mark.parametrize("pattern", ["sh-{0..999999999}.tar", "{a,b}" * 40, "{a,a}" * 40, "{0..9}" * 5000])
def test_a_pattern_for_more_shards_than_there_are_is_refused(bounded: Path, pattern: str) -> None:
    split(bounded, f"split_parts: {{train: ['{pattern}']}}")
    with pytest.raises(SplitError, match=r"split\.yaml: \$\.split_parts\.train: .* expands to .* dataset has 3 shards"):
        keys_of(bounded)


def test_many_patterns_share_one_bound(bounded: Path) -> None:
    split(bounded, "split_parts: {train: [" + ", ".join(["'{0..99999}.tar'"] * 20) + "]}")
    with pytest.raises(SplitError, match=r"all patterns of the file together may expand to 1,000,030"):
        keys_of(bounded)


def test_an_exclude_for_samples_without_end_is_refused(bounded: Path) -> None:
    shards = sorted(path.name for path in bounded.glob("*.tar"))
    split(bounded, f"split_parts: {{train: {shards}}}\nexclude: ['{shards[0]}/{{000000..999999999}}']")
    with pytest.raises(SplitError, match=r"\$\.exclude: .* exclude only existing samples"):
        keys_of(bounded)


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (LAUGHS, "its aliases expand to .* values"),
        (DEEP, "at most 100 levels"),
        ("a: &a [*a]", "an alias inside its own anchor"),
    ],
)
def test_yaml_is_bounded_wherever_it_is_read(
    bounded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, rule: str
) -> None:
    metadataset = tmp_path / "meta.yaml"
    metadataset.write_text(content)
    with pytest.raises(ConfigError, match=rf"meta\.yaml: .*{rule}"):
        keys_of(metadataset)
    with monkeypatch.context() as patched, pytest.raises(ConfigError, match=rf"storage\.yaml: .*{rule}"):
        (tmp_path / "storage.yaml").write_text(content)
        patched.setenv("ENERGON_GRAIN_STORAGE", str(tmp_path / "storage.yaml"))
        keys_of("s3://bucket/dataset")
    meta = bounded / ".nv-meta"
    description = (meta / "dataset.yaml").read_text()
    (meta / "dataset.yaml").write_text(content)
    with pytest.raises(ConfigError, match=rf"dataset\.yaml: .*{rule}"):
        keys_of(bounded)
    (meta / "dataset.yaml").write_text(description)
    (meta / ".info.json").rename(meta / "info")
    (meta / ".info.yaml").write_text(content)
    with pytest.raises(IndexFileError, match=rf"\.info\.yaml: .*{rule}"):
        keys_of(bounded)
    (meta / "info").rename(meta / ".info.json")
    split(bounded, content)
    with pytest.raises(SplitError, match=rf"split\.yaml: .*{rule}"):
        keys_of(bounded)


def test_deep_json_is_refused(bounded: Path) -> None:
    meta = bounded / ".nv-meta"
    (meta / "split.json").write_text(DEEP)
    (meta / "split.yaml").unlink()
    with pytest.raises(SplitError, match=r"split\.json: .*nested too deeply"):
        keys_of(bounded)
    (meta / ".info.json").write_text('{"shard_counts": {}, "x": ' + DEEP)
    with pytest.raises(IndexFileError, match=r"\.info\.json: "):
        keys_of(bounded)


def test_aliases_may_repeat_as_much_as_is_written(bounded: Path, tmp_path: Path) -> None:
    tags = ", ".join(f"tag{number}: {number}" for number in range(50))
    leaves = "".join("    - {weight: 1, path: data, split_part: train, subflavors: *tags}\n" for _ in range(20))
    metadataset = tmp_path / "meta.yaml"
    metadataset.write_text(
        f"__module__: megatron.energon\n__class__: MetadatasetV2\nx-tags: &tags {{{tags}}}\n"
        f"splits:\n  train:\n    concat:\n{leaves.replace('weight: 1, ', '')}"
    )
    assert len(keys_of(metadataset)) == 20 * len(keys_of(bounded))
