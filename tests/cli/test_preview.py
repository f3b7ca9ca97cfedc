"""`energon-grain preview` and `energon_grain.preview`: what is shown of samples, and what data cannot do with it."""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import write_group
from cli_runs import run
from metadatasets import write_v2
from preview_data import SCRIPT, make_media, picture, video

import energon_grain
from energon_grain import (
    ConfigError,
    DefaultTaskEncoder,
    SampleDecoder,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
)
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import make_text_dataset, write_tars

_OURS = re.compile(r"\x1b\[38;2;\d+;\d+;\d+;48;2;\d+;\d+;\d+m▀|\x1b\[0m")
"""What the colours of a picture are written with."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_media(tmp_path_factory.mktemp("preview"))


def shown(*arguments: str | Path) -> str:
    done = run("preview", *arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def document(*arguments: str | Path) -> Any:
    return json.loads(shown(*arguments, "--json"))


def fields(path: Path, *arguments: str) -> dict[str, dict[str, Any]]:
    """The parts of each sample of a dataset, by key and name."""
    samples = document(path, "--samples", "100", *arguments)["samples"]
    return {sample["key"]: {field["name"]: field for field in sample["fields"]} for sample in samples}


def test_each_kind_of_part_is_known(folder: Path) -> None:
    found = fields(folder / "media")
    assert len(found) == 12
    kinds = {key[4:6]: {name: field["kind"] for name, field in parts.items()} for key, parts in found.items()}
    assert kinds["00"] == {"txt": "text", "json": "json", "jpg": "picture"}
    assert kinds["01"]["wav"] == "sound"
    assert kinds["02"]["mp4"] == "film"
    assert (kinds["03"]["png"], kinds["03"]["npy"]) == ("picture", "numbers")
    assert kinds["05"] == {
        **dict.fromkeys(("jpg", "wav", "mp4"), "failed"),
        "txt": "text",
        "json": "json",
        "bin": "bytes",
    }
    notes = {name: field["note"] for parts in list(found.values())[:4] for name, field in parts.items()}
    assert notes["jpg"].startswith("64 × 48, jpeg, ")
    assert notes["wav"].startswith("1 s, 16 kHz, mono, pcm_s16le, ")
    assert notes["mp4"].startswith("2 s, 96 × 64, 12 frames/s, h264, ")
    assert notes["npy"].endswith("float32 [20]")


def test_the_terminal_draws(folder: Path) -> None:
    text = shown(folder / "media", "--samples", "100")
    lines = text.splitlines()
    assert lines[0] == "media: 12 of 12 samples"
    assert all(len(line) <= 81 for line in lines)
    assert "  jpg  64 × 48, jpeg" in text
    assert re.search(r"^    [▁▂▃▄▅▆▇█]{40,}$", text, re.MULTILINE)  # the tone swells
    assert "min 0, mean 9.5, max 19" in text
    assert "does not decode: OSError: Truncated File Read" in text
    assert "00 01 02 03" in text


def test_nothing_of_the_data_acts_on_a_terminal(folder: Path) -> None:
    """Of letters that do, only the ends of our lines come out, and the colours of pictures."""
    for path in ("media", "mix.yaml"):
        text = shown(folder / path, "--samples", "100")
        assert "␛[31mred␛]0;taken over␇ \\x9b2J␍␈ \\u202egnp.exe" in text
        assert not [letter for letter in text.replace("\n", "") if not letter.isprintable()]
    coloured = energon_grain.preview(folder / "media", samples=100).text(colours=True, width=100)
    assert len(_OURS.findall(coloured)) > 500
    assert not [letter for letter in _OURS.sub("", coloured).replace("\n", "") if not letter.isprintable()]


def test_parts_are_called_by_the_fields_that_they_become(folder: Path, tmp_path: Path) -> None:
    [first, *_] = fields(folder / "captions").values()
    assert {name: field["field"] for name, field in first.items()} == {"jpg": "image", "txt": "caption"}
    assert "  jpg → image  48 × 32, jpeg" in shown(folder / "captions")
    write_tars(tmp_path / "inside", [{"__key__": "one", "json": {"says": ["this"]}}])
    prepare_dataset(
        tmp_path / "inside", split_ratio={"train": 1}, sample_type="TextSample", field_map={"text": "json[says][0]"}
    )
    assert fields(tmp_path / "inside")["one"]["json"]["field"] == "text = json[says][0]"


def test_a_mixture_shows_each_dataset_and_its_share(folder: Path) -> None:
    found = document(folder / "mix.yaml", "--samples", "6")
    assert [(each["label"], each["samples"], each["share"]) for each in found["datasets"]] == [
        ("<u>media</u>", 12, 0.75),
        ("captions/train", 6, 0.25),
    ]
    assert [sample["dataset"] for sample in found["samples"]] == ["<u>media</u>"] * 3 + ["captions/train"] * 3
    assert "75.0%  <u>media</u>, 12 samples" in shown(folder / "mix.yaml")


@pytest.mark.parametrize(
    "options",
    [
        ["--batch-size", "5"],
        ["--batch-size", "3", "--world-size", "2", "--seed", "7", "--lanes", "4"],
        ["--batch-size", "4", "--subset", "0%,50%", "--max-samples-per-sequence", "2"],
    ],
    ids=["plain", "two hosts", "a subset in blocks"],
)
def test_a_step_shows_what_which_tells(folder: Path, options: list[str]) -> None:
    asked = [folder / "mix.yaml", "--step", "11", *options]
    told = json.loads(run("which", *asked, "--json").stdout)
    found = document(*asked, "--samples", "100")["samples"]
    assert [(each["shard"], each["key"]) for each in found] == [(each["shard"], each["key"]) for each in told]
    assert all(f"epoch {each['epoch']}" in sample["place"] for sample, each in zip(found, told, strict=True))
    fewer = document(*asked, "--samples", "2")["samples"]
    assert fewer == found[:2]


@pytest.fixture
def packs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Arguments of a step whose samples a task encoder packs in twos."""
    make_text_dataset(tmp_path / "text", n=40, shards=2)
    (tmp_path / "packs_to_see.py").write_text(
        "from energon_grain import DefaultTaskEncoder\n"
        "class Twos(DefaultTaskEncoder):\n"
        "    def select_samples_to_pack(self, samples):\n"
        "        return [samples[at : at + 2] for at in range(0, len(samples), 2)]\n"
        "    def pack_selected_samples(self, samples):\n"
        "        samples[0].text = '+'.join(sample.text for sample in samples)\n"
        "        return samples[0]\n"
    )
    monkeypatch.chdir(tmp_path)
    options = "--step 3 --batch-size 2 --packing-buffer-size 4 --lanes 2 --task-encoder packs_to_see:Twos"
    return [tmp_path / "text", *options.split()]


def test_a_step_of_a_run_that_packs_makes_those_before_again(packs: list[Any]) -> None:
    found = document(*packs, "--samples", "100")["samples"]
    told = json.loads(run("which", *packs, "--json").stdout)
    assert [each["key"] for each in found] == [each["key"] for each in told]
    assert len(found) == 4
    assert "computed from the steps before" in shown(*packs)


class Hooks(DefaultTaskEncoder):
    """Makes of a captioned picture what a model takes, with some chance in it."""

    decoder = SampleDecoder(image_decode="rgb8")

    def encode_sample(self, sample: Any) -> Any:
        light = self.rng.uniform(0.2, 1.0)
        image = (sample.image * (light / 255)).astype(np.float32).transpose(2, 0, 1)
        tone = np.sin(np.arange(4000) * light).astype(np.float32)
        film = np.repeat(sample.image[None], 7, axis=0)
        return {"image": image, "film": film, "tone": tone, "tokens": np.arange(5) + len(sample.caption)}

    def encode_batch(self, batch: Any) -> Any:
        return {**batch, "mask": np.ones((7, 3), np.bool_), "name": "a batch", "rows": ["x", "y", "z"]}


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_step_shows_what_hooks_made_of_it(folder: Path, hosts: int) -> None:
    def dataset(host: int) -> Any:
        config = WorkerConfig(rank=host, world_size=hosts, num_workers=0)
        return get_train_dataset(
            folder / "captions",
            batch_size=3,
            shuffle_buffer_size=None,
            max_samples_per_sequence=None,
            worker_config=config,
            task_encoder=Hooks(),
        )

    shown = energon_grain.preview(dataset(0), step=5, encoded=True)
    cards = shown._contents.cards
    assert len(cards) == 3 * hosts
    batches = []
    for host in range(hosts):
        with get_savable_loader(dataset(host)) as loader:
            batches.append([next(loader) for _ in range(6)][5])
    for place, card in enumerate(cards):
        batch, row = batches[place % hosts], place // hosts
        found = {field.name: field for field in card.fields if not field.name.startswith("batch")}
        assert f"[{batch['tokens'][row][0]}, " in found["encoded tokens"].text
        pixels = (batch["image"][row] * 255).astype(np.uint8).transpose(1, 2, 0)
        assert np.abs(np.asarray(found["encoded image"].images[0]).astype(int) - pixels).max() <= 1
        assert (len(found["encoded film"].images), found["encoded tone"].peaks.max()) == (6, pytest.approx(1, abs=0.1))
        assert found["encoded rows"].text == "xyz"[row]
        others = [field.name for field in card.fields if field.name.startswith("batch")]
        assert others == (["batch mask", "batch name"] if place < hosts else [])
    assert "encoded image" in shown.html()
    assert "encoded tone" in shown.text(width=80)


def test_a_step_of_packs_shows_each_pack_once(packs: list[Any]) -> None:
    cards = document(*packs, "--encoded")["samples"]
    texts = [{field["name"]: field["text"] for field in card["fields"]} for card in cards]
    assert [each.get("encoded text") for each in texts[1::2]] == [None, None]
    for first, second in zip(texts[::2], texts[1::2], strict=True):
        assert first["encoded text"] == f"{first['txt']}+{second['txt']}"


def test_what_hooks_made_is_of_a_step(folder: Path) -> None:
    done = run("preview", folder / "captions", "--encoded")
    assert isinstance(done.exception, ConfigError)
    with pytest.raises(ConfigError, match="need step"):
        energon_grain.preview(folder / "captions", encoded=True)


def test_a_shard_that_cannot_be_read_leaves_the_others(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    write_tars(broken, [{"__key__": f"{n}", "jpg": picture(seed=n)} for n in range(8)], shards=2)
    prepare_dataset(broken, split_ratio={"train": 1}, crude=True)
    shard = broken / "shard_001.tar"
    shard.write_bytes(shard.read_bytes()[:1024])
    energon_grain.preview(folder / "media")
    found = fields(broken)
    assert [field["kind"] for parts in found.values() for field in parts.values()] == ["picture"] * 4 + ["failed"] * 4
    assert all("shard_001.tar" in parts[""]["error"] for parts in list(found.values())[4:])


def test_a_sample_that_is_too_large_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("energon_grain.gallery.cards._READ_BYTES", 2500)
    monkeypatch.setattr("energon_grain.gallery.cards._SAMPLE_BYTES", 5000)
    letters = (10, 10, 10, 5000, 10, 4000, 2000, 10)  # to which a tar adds some
    write_tars(tmp_path, [{"__key__": f"{n}", "txt": "x" * count} for n, count in enumerate(letters)])
    prepare_dataset(tmp_path, split_ratio={"train": 1}, crude=True)
    found = fields(tmp_path)
    assert [key for key, parts in found.items() if parts.get("", {}).get("kind") == "failed"] == ["3"]
    assert [len(parts["txt"]["text"]) for key, parts in found.items() if key != "3"] == [10, 10, 10, 10, 4000, 2000, 10]
    assert "more than 5000 bytes" in found["3"][""]["error"]


def test_a_page_escapes_what_data_say(folder: Path, tmp_path: Path) -> None:
    """Every tag of the page is of the template: none comes from a text, a key, a file name, JSON or a label."""
    page = tmp_path / "page.html"
    assert shown(folder / "mix.yaml", "--html", page, "--samples", "100") == f"Wrote {page}: 18 of 18 samples.\n"
    written = page.read_text(encoding="utf-8")
    assert written.count("<script>") == written.count("</script>") == 1
    assert html.escape(SCRIPT) in written
    for wrong in ("taken over'</script>", "<img src=x", "<i>key</i>", "k<b>", "sh<a>rd", "<u>media</u>", "\x1b", "‮"):
        assert wrong not in written
    assert "sh&lt;a&gt;rd_000.tar" in written
    assert "k&lt;b&gt;04&amp;" in written
    assert "&lt;i&gt;key&lt;/i&gt;" in written
    assert not re.search(r"(?:src|href|poster)=\"(?!data:)|url\(|https?:|@import", written)


def test_large_files_are_frames_and_small_pictures(folder: Path, tmp_path: Path) -> None:
    whole, bounded = tmp_path / "whole.html", tmp_path / "bounded.html"
    shown(folder / "media", "--html", whole, "--samples", "100")
    shown(folder / "media", "--html", bounded, "--samples", "100", "--media-bytes", "100")
    assert (whole.read_text().count("<video"), bounded.read_text().count("<video")) == (2, 0)
    assert (whole.read_text().count("<audio"), bounded.read_text().count("<audio")) == (2, 0)
    assert bounded.read_text().count("frames only; not in this page: larger than 100 bytes") == 2
    assert whole.read_text().count('class="strip"') == bounded.read_text().count('class="strip"') == 2


def test_videos_that_browsers_do_not_play_are_frames(tmp_path: Path) -> None:
    films = {"avi": video("mpeg4", "avi"), "webm": video("libvpx", "webm"), "mkv": video("libx264", "matroska")}
    write_tars(tmp_path / "films", [{"__key__": "one", **films}])
    prepare_dataset(tmp_path / "films", split_ratio={"train": 1}, crude=True)
    page = energon_grain.preview(tmp_path / "films").html()
    assert page.count("<video") == 1
    assert "frames only; not played by browsers: mpeg4 in avi" in page


def test_very_wide_videos_have_strips(tmp_path: Path) -> None:
    write_tars(tmp_path, [{"__key__": "one", "avi": video("mpeg4", "avi", 6, (6400, 16))}])
    prepare_dataset(tmp_path, split_ratio={"train": 1}, crude=True)
    assert 'class="strip" src="data:image/jpeg;base64,' in energon_grain.preview(tmp_path).html()


def test_the_function_takes_paths_and_datasets(folder: Path, tmp_path: Path) -> None:
    of_path = energon_grain.preview(folder / "mix.yaml", samples=4, seed=3)
    assert len(of_path) == 4
    dataset = get_train_dataset(
        folder / "mix.yaml",
        batch_size=4,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
    )
    assert energon_grain.preview(dataset, samples=4).text().splitlines()[1:] == of_path.text().splitlines()[1:]
    step = energon_grain.preview(dataset, step=2)
    with energon_grain.Stream.of(dataset) as stream:
        keys = [record.key for record in stream.which(2)]
    assert all(key in step.text() for key in keys)
    step.save(tmp_path / "step.html")
    assert (tmp_path / "step.html").read_text(encoding="utf-8") == step.html()
    assert "step 2" in repr(step)
    assert str(step) == step.text()


def test_a_notebook_shows_the_page_in_a_frame_of_its_own(folder: Path) -> None:
    found = energon_grain.preview(folder / "media", samples=6)
    frame = found._repr_html_()
    [inside] = re.findall(r'srcdoc="([^"]*)"', frame)
    assert html.unescape(inside) == found.html()
    assert 'sandbox="allow-scripts"' in frame
    assert frame.count("<") == 2  # the frame is one tag, and its end


def test_lines_arrays_and_joins(tmp_path: Path) -> None:
    (tmp_path / "lines.jsonl").write_text('{"a": "<b>"}\n{"a": [1, 2]}\n')
    assert run("prepare", tmp_path / "lines.jsonl").exit_code == 0
    assert [list(parts) for parts in fields(tmp_path / "lines.jsonl").values()] == [["json"], ["json"]]

    images = np.arange(3 * 16 * 16 * 3, dtype=np.uint8).reshape(3, 16, 16, 3)
    arrays = write_group(tmp_path / "x.zarr", "zarr3", label=np.arange(3), image=images)
    kinds = [{name: field["kind"] for name, field in parts.items()} for parts in fields(arrays).values()]
    assert kinds == [{"label": "numbers", "image": "picture"}] * 3

    make_text_dataset(tmp_path / "left", n=8, shards=2)
    make_text_dataset(tmp_path / "right", n=8, shards=2, seed=1)
    join = write_v2(tmp_path, train={"join": [{"path": "left"}, {"path": "right"}]})
    assert run("prepare", join).exit_code == 0
    texts = [{name: field["text"] for name, field in parts.items()} for parts in fields(join).values()]
    assert [list(each) for each in texts] == [["txt", "right/txt"]] * 4
    assert all(each["txt"] != each["right/txt"] for each in texts)


def test_mistakes_in_options(folder: Path, tmp_path: Path) -> None:
    wrong = {
        ("--step", "3"): "add --batch-size",
        ("--batch-size", "3"): "add --step",
        ("--beside", "3"): "add --step",
        ("--html", str(tmp_path / "no" / "page.html")): "there is no folder",
        ("--limit", "3"): "add --validation",
        ("--validation", "--no-repeat"): "--repeat applies to training only",
        ("--shuffle-over-epochs-multiplier", "x"): "expected a number of passes, -1 or none",
        ("--subset", "5"): "a range [start, end]",
    }
    for options, said in wrong.items():
        done = run("preview", folder / "media", *options)
        assert isinstance(done.exception, ConfigError), options
        assert said in str(done.exception)
    for arguments, said in {"samples": 0, "step": 1, "state": {}}.items():
        with pytest.raises(ConfigError, match=arguments):
            energon_grain.preview(folder / "media", **{arguments: said})


def test_columns_are_charts(tmp_path: Path) -> None:
    """Of the samples of the split part alone, those without a value left out; every bar says what it counts."""
    pictures = [{"__key__": f"{n}", "jpg": picture((20 + n, 30)), "txt": "x" * (n % 2)} for n in range(10)]
    write_tars(tmp_path / "pictures", pictures, shards=2)
    parts = {"train": "shard_000.tar", "val": "shard_001.tar"}
    prepare_dataset(tmp_path / "pictures", split_patterns=parts, crude=True)
    assert run("prepare-media", tmp_path / "pictures", "--media-metadata-by-extension").exit_code == 0
    page = energon_grain.preview(tmp_path / "pictures").html()
    charts = dict(re.findall(r"<figcaption><bdi>([^<]*)</bdi><span>([^<]*)<", page))
    assert {name: said.split(",")[0] for name, said in charts.items()} == {
        **dict.fromkeys(("bytes", "bytes.jpg", "width", "height"), "5 samples"),
        "bytes.txt": "2 samples",
    }
    [width] = re.findall(r"Histogram of width.*?</figure>", page)
    assert sum(map(int, re.findall(r": (\d+)</title>", width))) == 5
    assert re.findall(r"<span>([^<]*)</span>", width) == ["20", "22", "24"]


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ImageFolder of three classes, converted, and a mixture of it with captions."""
    root = tmp_path_factory.mktemp("classes")
    for name, count in (("cat", 8), ("dog", 3), ("<i>eel</i>", 1)):
        for number in range(count):
            path = root / "photos" / name.replace("/", "_") / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(picture(seed=number))
    assert run("convert", root / "photos", "--to", "tars").exit_code == 0
    captions = [
        {"__key__": f"{n}", "jpg": picture(seed=n), "json": {"captions": [f"says {n}", "other"], "n": n}}
        for n in range(8)
    ]
    write_tars(root / "captions", captions)
    field_map = {"image": "jpg", "caption": "json[captions][0]"}
    prepare_dataset(root / "captions", split_ratio={"train": 1}, sample_type="CaptioningSample", field_map=field_map)
    write_v2(root, "mix.yaml", train={"blend": [{"path": "photos-tars"}, {"path": "captions"}]})
    return root


def test_decoded_fields_are_beside_their_parts(classes: Path) -> None:
    found = fields(classes / "captions")
    assert found["3"]["jpg"]["decoded"] == [
        {"name": "image", "field": "", "kind": "picture", "note": "float32 [3, 48, 64]"}
    ]
    assert found["3"]["json"]["decoded"] == [
        {"name": "caption", "field": "", "kind": "text", "note": "str", "text": "says 3"}
    ]
    text = energon_grain.preview(classes / "captions", samples=8).text(width=80)
    assert re.search(r'^    \{"captions": \["says 3", "other"\], +│ caption: str$', text, re.MULTILINE)
    assert re.search(r"^    .{30,}│ image: float32 \[3, 48, 64\]$", text, re.MULTILINE)
    assert all(len(line) <= 80 for line in text.splitlines())
    narrow = energon_grain.preview(classes / "captions", samples=8).text(width=50)
    assert "\n    caption: str\n    says 3\n" in narrow
    page = energon_grain.preview(classes / "captions", samples=8).html()
    assert '<div class="decoded"><h4><bdi>caption</bdi> <small>str</small></h4><p dir="auto">says 3</p></div>' in page


def test_a_field_that_is_not_found_is_shown(tmp_path: Path) -> None:
    samples = [{"__key__": "a", "json": {"x": 1}}, {"__key__": "b", "json": {"text": "it"}}]
    write_tars(tmp_path, samples)
    prepare_dataset(tmp_path, split_ratio={"train": 1}, sample_type="TextSample", field_map={"text": "json[text]"})
    found = fields(tmp_path)
    assert found["a"]["json"]["decoded"][0]["error"] == "KeyError: 'text'"
    assert found["b"]["json"]["decoded"][0]["text"] == "it"
    assert "text: does not decode: KeyError" in shown(tmp_path, "--samples", "2")


def test_samples_are_counted_by_class(classes: Path) -> None:
    """With the names of a converted ImageFolder; also if a field map names the class part."""
    found = document(classes / "photos-tars", "--samples", "1")
    assert found["classes"] == {"classes": {"cat": 8, "dog": 3, "<i>eel<_i>": 1}, "of": 12}
    text = shown(classes / "photos-tars", "--samples", "1")
    assert "  Samples by class  of 12" in text
    assert re.search(r"^    cat +8  █{20}$", text, re.MULTILINE)
    assert re.search(r"^    dog +3  █{8}$", text, re.MULTILINE)
    assert document(classes / "captions")["classes"] is None
    page = energon_grain.preview(classes / "photos-tars").html()
    assert "<bdi>&lt;i&gt;eel&lt;_i&gt;</bdi></th><td>1<meter" in page


def test_the_counts_of_a_step_are_those_of_its_samples(classes: Path) -> None:
    asked = [classes / "mix.yaml", "--step", "2", "--batch-size", "7", "--world-size", "2"]
    records = json.loads(run("which", *asked, "--json").stdout)
    found = document(*asked, "--samples", "3")
    by_dataset = [
        sum(Path(record["dataset"]).name == name for record in records) for name in ("photos-tars", "captions")
    ]
    assert [dataset["count"] for dataset in found["datasets"]] == by_dataset
    assert sum(by_dataset) == 14
    by_class = Counter(record["key"].partition("/")[0] for record in records if "/" in record["key"])
    assert found["classes"] == {"classes": dict(by_class), "of": by_dataset[0]}
    assert list(found["classes"]["classes"].values()) == sorted(by_class.values(), reverse=True)


def test_two_steps_side_by_side(classes: Path, tmp_path: Path) -> None:
    asked = [classes / "mix.yaml", "--batch-size", "4"]
    pair = [*asked, "--step", "5", "--beside", "3"]
    found = document(*pair, "--samples", "100")
    for place, step in (({**found}, "5"), (found["beside"], "3")):
        alone = document(*asked, "--step", step, "--samples", "100")
        assert {name: place[name] for name in ("samples", "datasets", "classes")} == {
            name: alone[name] for name in ("samples", "datasets", "classes")
        }
    lines = shown(*pair, "--samples", "2").splitlines()
    assert lines[:2] == [f"mix.yaml, step {step}: 2 of 4 samples of the step" for step in (5, 3)]
    assert "  Samples by dataset   step 5  step 3" in lines
    keys = [[sample["key"] for sample in each["samples"][:2]] for each in (found, found["beside"])]
    titles = [line for line in lines if line.startswith("── ")]
    assert len(titles) == 2
    for title, left, right in zip(titles, *keys, strict=True):
        sides = title.split(" │ ")
        assert [
            side.partition(" · ")[0].endswith((key, "…")) for side, key in zip(sides, (left, right), strict=True)
        ] == [
            True,
            True,
        ]
    text = energon_grain.preview(classes / "mix.yaml", step=5, beside=3, batch_size=4).text(width=120, colours=True)
    assert max(len(_COLOUR.sub("", line)) for line in text.splitlines()) <= 120
    page = tmp_path / "page.html"
    assert shown(*pair, "--html", page, "--samples", "2") == (
        f"Wrote {page}: 2 of 4 samples of the step; 2 of 4 samples of the step.\n"
    )
    written = page.read_text(encoding="utf-8")
    assert "<title>mix.yaml, step 5, beside step 3</title>" in written
    assert written.count('class="card') == written.count(' left" data-of') + written.count(' right" data-of') == 4
    assert '<h2 class="step left">Step 5</h2><h2 class="step right">Step 3</h2>' in written.replace("\n", "")


def test_steps_beside_each_other_of_a_run_that_packs(packs: list[Any]) -> None:
    found = document(*packs, "--samples", "100", "--beside", "1")
    alone = document(*[{"3": "1"}.get(each, each) if each == "3" else each for each in packs], "--samples", "100")
    assert found["beside"]["samples"] == alone["samples"]


def test_quiet_leaves_out_what_was_written(classes: Path, tmp_path: Path) -> None:
    assert shown(classes / "captions", "--html", tmp_path / "page.html", "--quiet") == ""
    assert (tmp_path / "page.html").exists()
