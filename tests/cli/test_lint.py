"""What `energon-grain lint` finds: in samples, indices and settings, and in all that a metadataset names."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import yaml
from arrays import write_array
from cli_runs import run
from metadatasets import write_v2

from energon_grain import Sample
from energon_grain.errors import ConfigError, DatasetNotFoundError, SplitError
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import make_captioning_dataset, make_crude_dataset, make_text_dataset, write_tars

FIXTURES = Path(__file__).parents[1] / "fixtures" / "energon"
CRUDE = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}


@dataclass
class Positive(Sample):
    number: int

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("negative")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_text_dataset(tmp_path / "text", n=8, shards=4)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        make_text_dataset(tmp_path / name, n=100, shards=4)
    make_crude_dataset(tmp_path / "crude", n=8, shards=2)
    return tmp_path


def found(path: Path, *options: str) -> list[dict[str, str]]:
    """The findings; the status says whether one of them is an error."""
    done = run("lint", path, "--json", *options)
    findings = json.loads(done.output)
    assert done.exit_code == any(each["severity"] == "error" for each in findings), done.output
    return findings


def only(path: Path, *options: str) -> dict[str, str]:
    (finding,) = found(path, *options)
    return finding


def of_train(folder: Path, train: object) -> list[dict[str, str]]:
    """What is found of a metadataset, without the note on what was decoded."""
    findings = found(write_v2(folder, train=train))
    return [each for each in findings if "Only the first sample" not in each["what"]]


def configure(root: Path, name: str, content: dict[str, Any]) -> None:
    (root / ".nv-meta" / name).write_text(yaml.safe_dump(content))


def test_nothing_to_say(root: Path) -> None:
    assert found(root) == []


def test_findings_as_text(root: Path) -> None:
    configure(root, "split.yaml", {"split_parts": {"train": ["shard_00{0..2}.tar"], "val": []}})
    split = root / ".nv-meta/split.yaml"
    done = run("lint", root)
    assert done.exit_code == 0
    empty, unused, end = done.output.splitlines()
    assert empty.startswith(f"warning: {split}: ")
    assert "split part 'val' has no shards" in empty
    assert unused.startswith(f"note: {split}: 1 of 4 shards are in no split part, so never read: shard_003.tar; add")
    assert end == "No problems and 1 warning in 8 samples and 4 shards."
    configure(root, "split.yaml", {"split_parts": {"train": ["shard_00{0..3}.tar"], "val": [], "test": []}})
    assert run("lint", root, "--limit", "1").output.splitlines()[1] == "… and 1 more lines (--limit)"


def test_one_mistake_in_all_samples_is_told_once(tmp_path: Path) -> None:
    root = make_captioning_dataset(tmp_path / "data", n=24, shards=4)
    wrong = {"__module__": "megatron.energon", "__class__": "CaptioningSample"}
    configure(root, "dataset.yaml", {"sample_type": wrong, "field_map": {"image": "jpg", "caption": "txt[caption]"}})
    *listed, more, end = run("lint", root, "--parallel", "1").output.splitlines()
    assert [line.split(":")[0] for line in listed] == [f"shard_000.tar/00000{n}" for n in range(3)]
    assert more == "  … the same in 21 more places, up to shard_003.tar/000023"
    assert end.startswith("24 problems in 24 samples")
    assert len(found(root)) == 24


def test_tars_that_were_added_and_not_prepared(root: Path) -> None:
    shutil.copy(root / "shard_000.tar", root / "added.tar")
    finding = only(root)
    assert (finding["severity"], finding["where"]) == ("note", str(root))
    assert finding["what"] == "1 of the tar files in the folder are not in the index, so never read: added.tar"
    assert f"prepare {root} --append" in finding["way_out"]


def test_json_has_all_that_the_text_has(tmp_path: Path) -> None:
    root = make_captioning_dataset(tmp_path / "data", n=24, shards=4, broken={3})
    (root / "shard_001.tar").unlink()
    gone, broken, note = found(root, "--limit", "1")
    assert gone.keys() == {"severity", "where", "what", "way_out"}
    assert (gone["where"], gone["way_out"]) == ("shard_001.tar", "prepare again with --force-overwrite")
    assert (broken["severity"], broken["where"]) == ("error", "shard_000.tar/000003")
    assert note["severity"] == "note"


@pytest.mark.parametrize("name", ["captioning", "excludes", "long_names"])
def test_what_energon_prepared(tmp_path: Path, name: str) -> None:
    shutil.copytree(FIXTURES / name, tmp_path / name)
    assert not [each for each in found(tmp_path / name) if each["severity"] == "error" and "decode" not in each["what"]]


def test_excludes_that_name_nothing(root: Path) -> None:
    parts = {"train": ["shard_00{0..3}.tar"]}
    configure(root, "split.yaml", {"split_parts": parts, "exclude": ["shard_009.tar/x", "shard_000.tar/nobody"]})
    finding = only(root)
    assert finding["severity"] == "warning"
    assert "2 excludes match no sample or shard, for example 'shard_009.tar/x'" in finding["what"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("split.yaml", {"split_parts": {"train": ["other.tar"], "val": ["shard_000.tar"]}}, "not prepared"),
        ("split.yaml", {"split_parts": {}, "more": 1}, "more"),
        ("dataset.yaml", {"colour": "red"}, "there is no such key"),
        ("dataset.yaml", {**CRUDE, "decoder": {"colour": 1}}, "colour"),
        ("dataset.yaml", {**CRUDE, "part_filter": "sample_loader.py:parts"}, "code that is stored beside the data"),
        ("dataset.yaml", {**CRUDE, "__module__": "my.data", "__class__": "Mine"}, "--trust-module my.data"),
    ],
)
def test_settings_that_a_loader_refuses(root: Path, name: str, content: dict[str, Any], said: str) -> None:
    configure(root, name, content)
    first, *_ = found(root)
    assert first["severity"] == "error"
    assert said in f"{first['where']}: {first['what']}"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"sample_loader": "sample_loader.py:load", "part_filter": "sample_loader.py:parts"},
            "--trust-module sample_loader.py",
        ),
        ({"field_map": {"text": "none"}}, "none"),
        ({"field_map": {"text": "txt", "colour": "txt"}}, "colour"),
    ],
)
def test_sample_definitions_that_a_loader_refuses(root: Path, more: dict[str, Any], said: str) -> None:
    text = {"__module__": "megatron.energon", "__class__": "TextSample"}
    configure(root, "dataset.yaml", {"sample_type": text, **more})
    errors = [each for each in found(root) if each["severity"] == "error"]
    assert said in errors[0]["what"]


def test_all_else_is_looked_at_where_a_setting_is_wrong(root: Path) -> None:
    configure(root, "dataset.yaml", {"colour": "red"})
    where = root / ".nv-meta/dataset.yaml"
    (root / "shard_001.tar").unlink()
    assert [each["where"] for each in found(root) if each["severity"] == "error"] == [
        f"{where}: $.colour",
        "shard_001.tar",
    ]


def test_pickles(tmp_path: Path) -> None:
    write_tars(tmp_path, [{"__key__": f"{number}", "pkl": b"N."} for number in range(4)])
    prepare_dataset(tmp_path, split_ratio={"train": 1}, crude=True, num_workers=0)
    finding = only(tmp_path)
    assert (finding["severity"], "allow_pickle=True" in finding["what"]) == ("error", True)
    assert found(tmp_path, "--allow-pickle") == []
    assert "allow_pickle=True" in of_train(tmp_path, {"path": "."})[0]["what"]


def test_options_that_name_nothing_are_mistakes_of_the_user(root: Path) -> None:
    assert isinstance(run("lint", root, "--split-parts", "tset").exception, SplitError)
    assert isinstance(run("lint", root, "--split-config", "none.yaml").exception, SplitError)


def test_a_store_for_cookers_needs_no_settings(root: Path) -> None:
    for name in ("dataset.yaml", "split.yaml"):
        (root / ".nv-meta" / name).unlink()
    assert only(root)["severity"] == "note"


def test_keys_that_come_twice(root: Path) -> None:
    """As Energon before 7.3 prepared it."""
    for name in ("shard_003.tar", "shard_003.tar.idx"):
        shutil.copy(root / name.replace("3", "0"), root / name)
    (root / ".nv-meta/index.sqlite").unlink()
    shutil.rmtree(root / ".nv-meta/columnar")
    finding = only(root)
    assert finding["severity"] == "warning"
    assert finding["what"].startswith("2 samples have the key of another one, such as '000000', '000001'")


def test_keys_that_end_at_a_dot(tmp_path: Path) -> None:
    def write(number: int, parts: str) -> None:
        sample = {"__key__": f"{number}", **{f"{parts}_{i}.txt": b"x" for i in range(20)}}
        write_tars(tmp_path, [sample], name=f"{number}.tar")

    write(0, "5")
    write(1, "5")
    prepare_dataset(tmp_path, split_ratio={"train": 1}, crude=True, num_workers=0)
    assert found(tmp_path) == []  # two samples, and both have all the parts
    write(1, "6")
    prepare_dataset(tmp_path, split_ratio={"train": 1}, crude=True, num_workers=0, force_overwrite=True)
    finding = only(tmp_path)
    assert finding["severity"] == "warning"
    assert "A key ends at the first dot" in finding["what"]


def test_index_of_energon_that_lacks_samples(root: Path) -> None:
    path = root / ".nv-meta/index.sqlite"
    database = sqlite3.connect(path)
    database.execute("DELETE FROM samples WHERE sample_key = '000003'")
    database.commit()
    database.close()
    finding = only(root)
    assert (finding["severity"], finding["where"]) == ("warning", str(path))
    assert finding["what"].startswith("has 7 samples, but the dataset has 8")
    path.write_bytes(b"no database" * 100)
    assert "not a database" in only(root)["what"]
    path.unlink()
    assert found(root) == []


def test_a_metadataset(folder: Path) -> None:
    inner = write_v2(folder, "inner.yaml", train="{path: a, subset: {range: [0%, 50%]}}")
    path = write_v2(
        folder,
        train={"blend": [{"path": inner.name, "weight": 1}, {"path": "b", "weight": 2}]},
        val="{path: crude, split_part: train, aux: {a: b, files: 'filesystem://a'}}",
    )
    note = only(path)
    assert (note["severity"], note["where"]) == ("note", str(path))
    assert run("lint", path).output.splitlines()[-1].startswith("No problems in ")


def test_data_of_other_kinds(tmp_path: Path) -> None:
    write_array(tmp_path / "x.zarr", np.arange(3))
    (tmp_path / "lines.jsonl").write_text("{}\n{}\n")
    blend = [{"weight": 1, "path": "x.zarr"}, {"weight": 1, "path": "lines.jsonl"}]
    assert of_train(tmp_path, {"blend": blend}) == []
    run("prepare", tmp_path / "lines.jsonl")
    (tmp_path / "lines.jsonl").write_text("{}\n")
    assert "changed after it was indexed" in of_train(tmp_path, {"blend": blend})[0]["what"]


@pytest.mark.parametrize(
    ("train", "where", "said"),
    [
        ("{path: none}", "", "no such file or folder"),
        ("{path: a, split_part: tset}", "", "no split part 'tset'"),
        ("{path: a, subset: {range: [0, 101]}}", "", "only"),
        ("{path: a, aux: {x: crude}}", ".aux", "auxiliary stores"),
        ("{path: crude, aux: {x: none}}", ".aux.x", "no such file or folder"),
        ("{path: crude, aux: {x: 'filesystem://none'}}", ".aux.x", "no such folder"),
        ("{join: [{path: a}, {path: none}]}", ".join[1]", "none"),
        ("{join: [{path: a}, {path: crude}]}", "", "key"),
        (
            "{join: [{path: a}, {path: b}], joiner: {__module__: my.data, __class__: Both}}",
            "",
            "--trust-module my.data",
        ),
        ("{join: [{path: a, subset: {range: [0%, 50%]}}, {path: b}]}", ".join[0].subset", "subset"),
        ("{path: inner.yaml}", ".path", "inner.yaml"),
        ("{path: a, colour: red}", ".colour", "no such key"),
        ("{blend: [{path: a, weight: 0}]}", ".blend[0].weight", "weight"),
    ],
)
def test_what_is_refused_of_a_metadataset(folder: Path, train: str, where: str, said: str) -> None:
    (finding,) = of_train(folder, train)
    assert finding["severity"] == "error"
    assert said in finding["what"]
    assert finding["where"] == f"{folder / 'meta.yaml'}: $.splits.train{where}"


def test_all_datasets_that_are_missing_are_listed(folder: Path) -> None:
    blend = [{"path": "none"}, {"path": "a"}, {"path": "nothing"}, {"path": "b"}]
    (folder / "b/shard_002.tar").unlink()
    findings = of_train(folder, {"blend": blend})
    assert [each["where"].removeprefix(f"{folder}/") for each in findings] == [
        "meta.yaml: $.splits.train.blend[0]",
        "meta.yaml: $.splits.train.blend[2]",
        "b/shard_002.tar/000050",
    ]


def test_shards_of_other_split_parts_are_not_looked_at(folder: Path) -> None:
    (folder / "a/shard_003.tar").unlink()
    path = write_v2(folder, train="{path: a}", val="{path: a}")
    assert len([each for each in found(path) if each["severity"] == "error"]) == 1
    assert not [each for each in found(path, "--split-parts", "train") if each["severity"] == "error"]


def test_a_shard_that_was_rewritten(folder: Path) -> None:
    shutil.copy(folder / "a/shard_000.tar", folder / "a/shard_001.tar")
    (finding,) = of_train(folder, {"path": "a"})
    assert finding["where"].startswith(f"{folder}/a/shard_001.tar/")
    assert "--tar-index-only" in finding["what"]


def test_keys_of_yaml_that_come_again(folder: Path) -> None:
    (finding,) = of_train(folder, "{path: a, split_part: train, split_part: train}")
    assert (finding["severity"], "is repeated" in finding["what"]) == ("warning", True)


ENCODER = """
from energon_grain import DefaultTaskEncoder

class Fails(DefaultTaskEncoder):
    def batch(self, samples):
        raise ValueError("cannot batch these")

class Works(DefaultTaskEncoder):
    pass
"""


def test_the_first_batch_of_each_split_part_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_captioning_dataset(tmp_path / "captions", n=24, shards=4)
    (tmp_path / "batch_hooks.py").write_text(ENCODER)
    monkeypatch.chdir(tmp_path)
    for path in (root, write_v2(tmp_path, train={"path": "captions"})):
        assert not any(each["severity"] == "error" for each in found(path, "--batch-size", "4"))
        options = ("--batch-size", "4", "--task-encoder")
        assert not any(each["severity"] == "error" for each in found(path, *options, "batch_hooks:Works"))
        problems = [each for each in found(path, *options, "batch_hooks:Fails") if "cannot batch these" in each["what"]]
        assert problems
    assert isinstance(run("lint", root, "--task-encoder", "batch_hooks:Works").exception, ConfigError)


def test_tars_that_are_not_prepared_are_split_by_a_ratio(tmp_path: Path) -> None:
    """`info` shows the parts and `lint` opens them; both as `get_train_dataset(split_ratio=…)` splits."""
    root = make_captioning_dataset(tmp_path / "bare", n=40, shards=4, prepared=False)
    ratio = ("--split-ratio", "train:0.75,val:0.25")
    splits = json.loads(run("info", root, *ratio, "--json").stdout)["splits"]
    assert (splits["train"]["samples"], splits["val"]["samples"]) == (30, 10)
    assert list(json.loads(run("info", root, *ratio, "--split-part", "val", "--json").stdout)["splits"]) == ["val"]
    assert found(root, *ratio, "--batch-size", "2") == []
    assert found(root, *ratio, "--split-part", "val") == []
    assert "has no split part 'test'" in found(root, *ratio, "--split-part", "test")[0]["what"]
    path = write_v2(tmp_path, train={"path": "bare"}, val={"path": "bare"})
    info = run("info", path, *ratio, "--split", "val")
    assert "1 dataset, 10 samples" in info.output
    assert not any(each["severity"] == "error" for each in found(path, *ratio))
    assert any(each["severity"] == "error" for each in found(path))


def test_a_metadataset_names_the_files_of_its_datasets(folder: Path) -> None:
    path = write_v2(folder, train="{path: a}")
    for option in ("--split-config", "--dataset-config"):
        assert isinstance(run("lint", path, option, "x.yaml").exception, ConfigError)
    assert isinstance(run("lint", folder / "none.yaml").exception, DatasetNotFoundError)


@pytest.fixture
def captions(tmp_path: Path) -> Path:
    return make_captioning_dataset(tmp_path / "captions", n=24, shards=4)


def wrong(root: Path, *options: str) -> list[str]:
    """Where something is wrong."""
    return [each["where"] for each in found(root, *options) if each["severity"] == "error"]


def test_all_samples_are_looked_at(captions: Path) -> None:
    assert run("lint", captions).output == "No problems in 24 samples and 4 shards.\n"


def test_broken_samples_are_found(tmp_path: Path) -> None:
    root = make_captioning_dataset(tmp_path / "data", n=24, shards=4, broken={0, 5, 23})
    findings = found(root)
    broken = ["shard_000.tar/000000", "shard_000.tar/000005", "shard_003.tar/000023"]
    assert [each["where"] for each in findings] == broken
    assert all("jpg" in each["what"] for each in findings)
    assert wrong(root, "--split-parts", "val") == ["shard_003.tar/000023"]
    split = root / ".nv-meta/split.yaml"
    split.write_text(split.read_text().replace("exclude: []", "exclude: [shard_003.tar, shard_000.tar/000000]"))
    assert wrong(root) == wrong(root, "--split-parts", "train") == ["shard_000.tar/000005"]


def test_a_shard_that_was_replaced(captions: Path) -> None:
    shutil.copy(captions / "shard_000.tar", captions / "shard_002.tar")
    *errors, note = found(captions)
    assert {each["where"] for each in errors} == {"shard_002.tar"}
    assert "1 shards were not decoded" in note["what"]
    assert "in 18 samples" in run("lint", captions).output


@pytest.mark.parametrize("damage", [b"", b"1234567", bytes(8 * 7), bytes(8 * 3), None])
def test_a_damaged_or_missing_tar_index(captions: Path, damage: bytes | None) -> None:
    index = captions / "shard_001.tar.idx"
    if damage is None:
        index.unlink()
        assert "--tar-index-only" in found(captions)[0]["way_out"]
    else:
        index.write_bytes(damage)
    assert wrong(captions) == ["shard_001.tar"]
    prepare_dataset(captions, tar_index_only=True, num_workers=0)
    assert wrong(captions) == []


def test_a_shard_that_was_cut(captions: Path) -> None:
    data = (captions / "shard_003.tar").read_bytes()
    (captions / "shard_003.tar").write_bytes(data[: len(data) // 2])
    assert wrong(captions) == ["shard_003.tar"]


def test_a_damaged_columnar_index(captions: Path) -> None:
    (column,) = (captions / ".nv-meta/columnar").glob("*/part_size.npy")
    data = bytearray(column.read_bytes())
    data[-8] ^= 1
    for damaged in (data, data[:-8]):
        column.write_bytes(damaged)
        assert wrong(captions) == [str(column)]


def test_crude_and_without_a_description(tmp_path: Path) -> None:
    root = make_crude_dataset(tmp_path / "crude", n=8, shards=2)
    assert found(root) == []
    (root / ".nv-meta/dataset.yaml").unlink()
    note = only(root)
    assert (note["severity"], "no dataset.yaml" in note["what"]) == ("note", True)


def test_a_sample_type_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tars(tmp_path / "own", [{"__key__": str(i), "json": {"n": 3 - i}} for i in range(5)])
    module = ModuleType("types_of_a_test")
    vars(module)["Positive"] = Positive
    monkeypatch.setitem(sys.modules, module.__name__, module)
    own = {"sample_type": "types_of_a_test:Positive", "field_map": {"number": "json[n]"}}
    prepare_dataset(tmp_path / "own", num_workers=0, split_ratio=[1], **own)
    with monkeypatch.context() as without:
        without.delitem(sys.modules, module.__name__)  # as if the program had not imported it
        assert "trust" in only(tmp_path / "own")["what"]
    negative = only(tmp_path / "own", "--trust-module", module.__name__)
    assert (negative["where"], negative["what"]) == ("shard_000.tar/4", "negative")


def test_a_missing_value_of_a_field(tmp_path: Path) -> None:
    write_tars(tmp_path / "data", [{"__key__": "a", "json": {"text": "x"}}, {"__key__": "b", "json": {}}])
    fields = {"text": "json[text]"}
    prepare_dataset(tmp_path / "data", num_workers=0, split_ratio=[1], sample_type="TextSample", field_map=fields)
    assert wrong(tmp_path / "data") == ["shard_000.tar/b"]
