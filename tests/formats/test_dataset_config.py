"""`dataset.yaml`, the classes that it names, and the dialect of YAML that all files of Energon have."""

from __future__ import annotations

import math
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st

from energon_grain import Sample
from energon_grain.errors import ConfigError, DatasetNotFoundError, UntrustedCodeError
from energon_grain.formats.class_ref import ClassRef, resolve_class
from energon_grain.formats.dataset_config import DatasetConfig, read_dataset_config, write_dataset_config
from energon_grain.formats.yaml_dialect import WrittenFloat, cast_scalar, dump_yaml, parse_yaml

STANDARD = """
sample_type: {__module__: megatron.energon, __class__: CaptioningSample}
field_map: {image: "jpg,png", caption: "json[captions][0]"}
"""
CRUDE = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"


def read(root: Path, text: str) -> DatasetConfig:
    (root / ".nv-meta").mkdir(exist_ok=True)
    (root / ".nv-meta" / "dataset.yaml").write_text(text)
    return read_dataset_config(root)


def test_standard(tmp_path: Path) -> None:
    assert read(tmp_path, STANDARD) == DatasetConfig(
        kind="standard",
        sample_type=ClassRef(module="megatron.energon", name="CaptioningSample"),
        field_map={"image": "jpg,png", "caption": "json[captions][0]"},
    )


def test_scalars_are_typed_as_energon_types_them(tmp_path: Path) -> None:
    text = "subflavors: {fold: 012, mode: on, day: 2024-01-31, lr: 1e3, at: 12:30}\n"
    flavors = {"fold": 12, "mode": "on", "day": "2024-01-31", "lr": 1000.0, "at": "12:30"}
    assert read(tmp_path, CRUDE + text).subflavors == flavors


def test_crude_with_everything(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        CRUDE
        + """
subflavors: {source: web, nested: {a: [1, 2]}}
part_filter: [jpg, json]
split_config: other.yaml
split_part: test
decoder: {__module__: megatron.energon, __class__: SampleDecoder, image_decode: rgb8}
shuffle_over_epochs: null
parallel_shard_iters: 4
subset: {range: [10%, 50%]}
""",
    )
    assert config == DatasetConfig(
        kind="crude",
        class_ref=ClassRef(module="megatron.energon", name="CrudeWebdataset"),
        subflavors={"source": "web", "nested": {"a": [1, 2]}},
        part_filter=("jpg", "json"),
        split_config="other.yaml",
        split_part="test",
        decoder={"image_decode": "rgb8"},
        parallel_shard_iters=4,
        subset={"range": ["10%", "50%"]},
        overrides=frozenset({"shuffle_over_epochs", "parallel_shard_iters", "subset"}),
    )


def test_null_decoder_means_raw_bytes(tmp_path: Path) -> None:
    assert read(tmp_path, CRUDE).raw_bytes is False
    assert read(tmp_path, CRUDE + "decoder: null").raw_bytes is True


def test_sample_loader(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        "sample_type: {__module__: my.module, __class__: Mine}\nsample_loader: sample_loader.py:load\n"
        "part_filter: sample_loader.py\n",
    )
    assert config.sample_loader == "sample_loader.py:load"
    assert config.part_filter == "sample_loader.py"


@pytest.mark.parametrize("name", ["Captioning", "VQA", "VQAOCR", "SimilarityInterleaved"])
@pytest.mark.parametrize("module", ["megatron.energon", "megatron.energon.flavors.some.old.path"])
def test_legacy_classes_stand_for_their_sample_type(tmp_path: Path, name: str, module: str) -> None:
    text = f"__module__: {module}\n__class__: {name}Webdataset\nfield_map: {{image: jpg}}\n"
    config = read(tmp_path, text)
    assert config.kind == "standard"
    assert config.sample_type == ClassRef(module="megatron.energon", name=f"{name}Sample")


def test_custom_classes_keep_their_options(tmp_path: Path) -> None:
    config = read(tmp_path, "__module__: my.module\n__class__: Mine\nanything: 5\nsubflavors: {a: b}\n")
    assert config.kind == "custom"
    assert config.class_ref == ClassRef(module="my.module", name="Mine")
    assert config.options == {"anything": 5}
    assert config.subflavors == {"a": "b"}
    assert read(tmp_path, "__module__: megatron.energon\n__class__: JoinedWebdatasetFactory\n").kind == "custom"


def test_missing_files_say_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="energon-grain prepare"):
        read_dataset_config(tmp_path)
    (tmp_path / ".nv-meta").mkdir()
    with pytest.raises(ConfigError, match="CrudeWebdataset"):
        read_dataset_config(tmp_path)


def test_nothing_is_imported(tmp_path: Path) -> None:
    read(tmp_path, "sample_type: {__module__: this_module_would_fail, __class__: X}\nfield_map: {a: b}\n")
    assert "this_module_would_fail" not in sys.modules


@pytest.mark.parametrize(
    "config",
    [
        DatasetConfig(
            sample_type=ClassRef(module="megatron.energon", name="TextSample"),
            field_map={"text": "txt"},
            subflavors={"a": 1},
        ),
        DatasetConfig(
            kind="crude",
            class_ref=ClassRef(module="megatron.energon", name="CrudeWebdataset"),
            part_filter=("a", "b"),
            decoder={"image_decode": "rgb"},
            shuffle_over_epochs=-1,
            overrides=frozenset({"shuffle_over_epochs"}),
        ),
        DatasetConfig(kind="custom", class_ref=ClassRef(module="my", name="Own"), options={"x": [1]}, raw_bytes=True),
    ],
)
def test_round_trip(tmp_path: Path, config: DatasetConfig) -> None:
    (tmp_path / ".nv-meta").mkdir()
    write_dataset_config(tmp_path, config, "own.yaml")
    assert read_dataset_config(tmp_path, "own.yaml") == config


def test_legacy_round_trip(tmp_path: Path) -> None:
    config = read(tmp_path, "__module__: megatron.energon\n__class__: TextWebdataset\nfield_map: {text: txt}\n")
    write_dataset_config(tmp_path, config)
    assert read_dataset_config(tmp_path) == config


@pytest.mark.parametrize("module", ["megatron.energon", "megatron.energon.flavors.text", "energon_grain"])
def test_energons_classes_are_ours(module: str) -> None:
    import energon_grain

    if "TextSample" not in getattr(energon_grain, "__all__", ()):
        pytest.skip("the public names are not wired yet")
    found = resolve_class(ClassRef(module=module, name="TextSample"))
    assert found is energon_grain.TextSample


def test_unknown_class_of_energon() -> None:
    with pytest.raises(ConfigError, match="no class `TextSmple`"):
        resolve_class(ClassRef(module="megatron.energon", name="TextSmple"))


def test_trusted_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "trusted_pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "types.py").write_text("class Mine: ...\nnot_a_class = 5\n")
    monkeypatch.syspath_prepend(tmp_path)
    ref = ClassRef(module="trusted_pkg.types", name="Mine")
    with pytest.raises(UntrustedCodeError, match=r"trusted_modules=\['trusted_pkg.types'\]"):
        resolve_class(ref)
    with pytest.raises(UntrustedCodeError):
        resolve_class(ref, trusted_modules=["trusted_pk"])
    assert "trusted_pkg" not in sys.modules
    found: Any = resolve_class(ref, trusted_modules=["trusted_pkg"])
    assert found.__name__ == "Mine"
    assert resolve_class(ref, trusted_modules=["trusted_pkg.types"]) is found
    with pytest.raises(ConfigError, match="no class 'not_a_class'"):
        resolve_class(ClassRef(module="trusted_pkg.types", name="not_a_class"), trusted_modules=["trusted_pkg"])
    with pytest.raises(ConfigError, match="cannot be imported"):
        resolve_class(ClassRef(module="trusted_pkg.missing", name="X"), trusted_modules=["trusted_pkg"])


def test_names_must_be_public() -> None:
    with pytest.raises(ConfigError):
        resolve_class(ClassRef(module="megatron.energon", name="__doc__"))


class Known(Sample):
    pass


def test_sample_types_that_the_program_knows_need_no_trust(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_class(ClassRef(module=__name__, name="Known")) is Known
    for name in ("ClassRef", "Path", "pytest", "nothing"):  # no sample types, though they are there
        with pytest.raises(UntrustedCodeError, match="import it in the program"):
            resolve_class(ClassRef(module=__name__, name=name))
    with pytest.raises(UntrustedCodeError, match=r"^a\.yaml names .*is imported, .*Did you mean 'Known'"):
        resolve_class(ClassRef(module=__name__, name="Knwon"), where="a.yaml")

    lazy = types.ModuleType("lazy_module")
    monkeypatch.setattr(lazy, "__getattr__", lambda name: pytest.fail("the module was asked"), raising=False)
    monkeypatch.setitem(sys.modules, "lazy_module", lazy)
    with pytest.raises(UntrustedCodeError):
        resolve_class(ClassRef(module="lazy_module", name="Known"))


def parse(text: str) -> Any:
    return parse_yaml(text, where="meta.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"),
        ("off", "off"),
        ("Yes", True),
        ("TRUE", True),
        ("no", False),
        ("NULL", None),
        ("~", None),
        ("1_000", 1000),
        ("012", 12),
        ("+3", 3),
        ("0x10", "0x10"),
        ("0o17", "0o17"),
        ("1_0.5", 10.5),
        ("1__0", "1__0"),
        ("1.", 1.0),
        ("-.5", -0.5),
        ("1e3", 1000.0),
        ("1e400", math.inf),
        (".inf", ".inf"),
        (".nan", ".nan"),
        ("e", "e"),
        ("5%", "5%"),
        ("end", "end"),
        ("2020-01-01", "2020-01-01"),
        ("1:30", "1:30"),
        ("'12'", "12"),
        ('"true"', "true"),
        ("'~'", "~"),
        ("|\n  12\n", "12\n"),
        (">-\n  true\n", "true"),
        ("12\n  13\n", "12 13"),
        ("", None),
        ("!!str 12", "12"),
        ("!!float 12", 12.0),
        ("!!null ~", None),
        ("[1, 2.5, x]", [1, 2.5, "x"]),
        ("{a: 1, a: 2}", {"a": 2}),
    ],
)
def test_scalars_of_any_file_are_typed_as_energon_types_them(text: str, value: Any) -> None:
    got = parse(f"a: {text}")["a"]
    assert got == value
    assert isinstance(got, float) == isinstance(value, float)
    assert isinstance(got, bool) == isinstance(value, bool)


def test_keys_are_text() -> None:
    assert parse("12: a\nnull: b\ntrue: c\n'1.5': d") == {"12": "a", "null": "b", "true": "c", "1.5": "d"}


def test_floats_remember_their_text() -> None:
    weight = parse("weight: 0.333333333333333333333")["weight"]
    assert isinstance(weight, WrittenFloat)
    assert weight.text == "0.333333333333333333333"
    assert weight == 1 / 3


def test_anchors_aliases_and_merge_keys_work() -> None:
    text = """
    one: &one {a: 1, b: 1}
    two: &two {b: 2, c: 2}
    same: *one
    own: {b: 9, <<: *one}
    several: {<<: [*one, *two], d: 3}
    list: &list [1, 2]
    lists: [*list, *list]
    """
    got = parse(text)
    assert got["same"] == {"a": 1, "b": 1}
    assert got["own"] == {"a": 1, "b": 9}
    assert got["several"] == {"a": 1, "b": 1, "c": 2, "d": 3}
    assert got["lists"] == [[1, 2], [1, 2]]


def test_a_merge_key_in_quotes_is_a_key() -> None:
    assert parse("{'<<': {a: 1}}") == {"<<": {"a": 1}}


def test_an_empty_document_is_none() -> None:
    assert parse("") is None
    assert parse("# nothing") is None


@pytest.mark.parametrize(
    "text",
    [
        "a: [1",
        "a: *nowhere",
        "a: &a [*a]",
        "a: &a {b: *a}",
        "? [1]\n: 2",
        "a: !!python/name:os.system x",
        "a: !mine 1",
        "a: !!int x",
        "a: !!set {b, c}",
        "<<: 3",
        "a: 1\n---\nb: 2",
        "\tb: 1",
        "[" * 5000,
    ],
)
def test_what_is_not_valid_is_refused_with_the_file(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^meta\.yaml: "):
        parse(text)


@pytest.mark.parametrize("text", ["a: 1\nb: [", "a: 1\nb: !!int x"])
def test_the_place_in_the_file_is_told(text: str) -> None:
    with pytest.raises(ConfigError, match=r"at line [23], column \d") as caught:
        parse(text)
    assert "<" not in str(caught.value)


@given(st.text(alphabet="0123456789_.eE+-", min_size=1, max_size=8))
def test_numbers_follow_python(text: str) -> None:
    got = cast_scalar(text)
    try:
        expected: Any = float(text) if "." in text or "e" in text.lower() else int(text)
    except ValueError:
        expected = text
    assert got == expected
    assert isinstance(got, float) == isinstance(expected, float)


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs", "Cc"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc01.ey~", max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(
    content=st.dictionaries(
        st.text("abc", min_size=1), plain_values | st.sampled_from(["012", "on", "1e3", "~", "0x1"])
    )
)
def test_what_is_written_is_read(content: dict[str, Any]) -> None:
    written = dump_yaml(content)
    assert parse_yaml(written, where="w") == content
    assert yaml.safe_load(written) == content


def test_a_key_that_comes_again_is_told(caplog: pytest.LogCaptureFixture) -> None:
    assert (
        parse("blend:\n- path: a\n  weight: 2\n  path: b\n- &c {path: c}\n- {<<: *c, path: d}")["blend"][0]["path"]
        == "b"
    )
    (record,) = caplog.records
    assert "line 4: the key `path` is repeated" in record.getMessage()


def test_equal_documents_give_values_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    written = b"a: [1, {b: 2}]\nc: .5\n"
    first = parse_yaml(written, where="first.yaml", written_floats=False)
    first["a"][1]["b"] = 3
    assert parse_yaml(written, where="second.yaml", written_floats=False) == {"a": [1, {"b": 2}], "c": 0.5}
    assert isinstance(parse_yaml(written, where="third.yaml")["c"], WrittenFloat)
    for name in ("one.yaml", "two.yaml"):
        parse_yaml(b"a: 1\na: 2\n", where=name, written_floats=False)
        assert name in caplog.records[-1].getMessage()
        with pytest.raises(ConfigError, match=name):
            parse_yaml(b"a: [", where=name, written_floats=False)
