"""What wrong documents are answered with, word for word: the mistake, its place in the document, the way out.

`python tests/metadataset/test_error_snapshots.py` (with the repository and `tests` on PYTHONPATH) records the answers
anew, in error_snapshots.json. Read the difference before you commit it: a message may only become better.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from metadatasets import FRAME

from energon_grain import get_train_dataset, get_val_dataset, load_dataset, prepare_metadataset
from energon_grain.errors import EnergonGrainError
from energon_grain.testing import make_crude_dataset, make_text_dataset

RECORDED = Path(__file__).with_name("error_snapshots.json")
CRUDE = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
TEXT = "sample_type: {__module__: megatron.energon, __class__: TextSample}\n"
PAIR = "join: [{path: texts}, {path: others"
ONE = "blend: [{path: texts}], schedule: "

NODES = [
    # Keys and types of a dataset
    "{pth: texts}",
    "{path: texts, splt_part: x}",
    "{path: texts, weight: 1}",
    "{path: texts, place: here}",
    "{path: 12}",
    "{path: ''}",
    "{path: }",
    "{path: 'https://user:secret@host/set'}",
    "{path: texts, split_part: 3}",
    "{path: texts, subflavors: [x]}",
    "{path: texts, subflavor: {k: 1}}",
    "{path: texts, name: [a]}",
    "{path: texts, shuffle_over_epochs_multiplier: 0}",
    "{path: texts, shuffle_over_epochs_multiplier: 1.5}",
    "{path: texts, shuffle_over_epochs_multiplier: yes}",
    # Subsets
    "{path: texts, subset: {range: [0, 50%]}}",
    "{path: texts, subset: {rang: [0, 5]}}",
    "{path: texts, subset: [5, 2]}",
    "{path: texts, subset: [0%, 101%]}",
    "{path: texts, subset: [0, 1000]}",
    "{blend: [{path: texts}], subset: [0, 5]}",
    "{path: inner.yaml, subset: [0, 5]}",
    # Auxiliary stores
    "{path: crude, aux: {x: 3}}",
    "{path: crude, aux: [texts]}",
    "{path: crude, aux: {x: {fs_pth: b}}}",
    "{path: crude, aux: {x: {path: texts, fs_path: plain}}}",
    "{path: crude, aux: {x: a+msc://b}}",
    "{path: crude, aux: {x: 'filesystem://'}}",
    "{path: crude, aux: {x: nothing}}",
    "{path: crude, aux: {x: plain}}",
    "{path: crude, aux: {x: lines.jsonl}}",
    "{path: crude, aux: {x: 'filesystem://nothing'}}",
    "{path: texts, aux: {x: others}}",
    # Blends
    "{blend: [{path: texts, wieght: 1}]}",
    "{blend: [{path: texts}, {path: others, weight: '1'}]}",
    "{blend: [{path: texts, weight: 0}]}",
    "{blend: [{path: texts, weight: -0.5}]}",
    "{blend: [{path: texts, weight: }]}",
    "{blend: [{path: texts, weight: true}]}",
    "{blend: [{path: texts, weight: 1e999}]}",
    "{blend: [{path: texts, weight: 1e-999999999}]}",
    "{blend: [{path: texts, weight: 1e-99999999999999999999}]}",
    "{blend: [{path: texts, repetitions: 1}]}",
    "{blend: []}",
    "{blend: }",
    "{blend: texts}",
    "{blend: [texts]}",
    "{blend: [{weight: 2}]}",
    "{blend: [{path: texts}], concat: [{path: texts}]}",
    "{blend: [{path: texts}], subflavors: {}}",
    "{subset: {range: [0, 1]}}",
    "[]",
    "texts",
    "{blend_epochized: [{path: texts, repetitions: 0}]}",
    "{blend_epochized: [{path: texts, weight: 1}]}",
    "{blend_epochized: [{blend: [{path: texts}]}]}",
    "{blend: [{concat: [{blend_epochized: [{path: texts}]}]}]}",
    "{concat: [{path: texts, weight: 1}]}",
    "{concat: [{path: texts}, {blend: [{path: others}]}]}",
    # Schedules
    "{" + ONE + "[]}",
    "{" + ONE + "[3]}",
    "{" + ONE + "[{from_position: 0, weight: [1]}]}",
    "{" + ONE + "[{from_position: 1, weights: [1]}]}",
    "{" + ONE + "[{from_position: -1, weights: [1]}]}",
    "{" + ONE + "[{from_position: 0.5, weights: [1]}]}",
    "{" + ONE + "[{from_position: 0, weights: [1]}, {from_position: 9999999999999999999, weights: [1]}]}",
    "{" + ONE + "[{from_position: 0, weights: 1}]}",
    "{" + ONE + "[{from_position: 0, weights: [x]}]}",
    "{" + ONE + "[{from_position: 0, weights: [1, 2]}]}",
    "{" + ONE + "[{from_position: 0, weights: [0]}]}",
    "{" + ONE + "[{from_position: 0, weights: [1]}, {from_position: 0, weights: [1]}]}",
    "{blend: [{path: texts}, {path: others}], schedule: [{from_position: 0, weights: [1, 0]}]}",
    "{blend: [{path: texts, weight: 2}], schedule: [{from_position: 0, weights: [1]}]}",
    # Joins
    "{join: [], joiner: {__module__: a, __class__: B}}",
    "{join: 3}",
    "{join: [{path: texts}], joiners: {}}",
    "{join: [{array: rows.zarr}]}",
    "{join: {x: {array: rows.zarr}, y: {path: texts}}}",
    "{join: [{path: texts}, {array: rows.zarr, path: texts}]}",
    "{join: [{path: texts}, {array: nothing.zarr}]}",
    "{join: [{path: texts}, {array: plain, by: key}]}",
    "{join: [{path: texts}, {array: plain, by: row, keys: k}]}",
    "{join: [{path: texts}, {array: plain, by: column}]}",
    "{join: [{path: texts}, {path: lines.jsonl}]}",
    "{join: [{path: texts}, {path: inner.yaml}]}",
    "{join: {x: {path: texts}, y: {path: nothing}}}",
    "{join: {x: {path: texts}, y: {path: others}}}",
    "{" + PAIR + "}], joiner: B}",
    "{" + PAIR + "}], joiner: {__class__: B}}",
    "{" + PAIR + "}], joiner: {__module__: a, __class__: B, __function__: c}}",
    "{" + PAIR + "}], joiner: {__module__: a, __class__: 3}}",
    "{" + PAIR + "}], joiner: {__module__: a, __klass__: B}}",
    "{" + PAIR + "}], joiner: {__module__: mine, __class__: B}}",
    "{" + PAIR + "}], joiner: {__module__: megatron.energon, __class__: TextSampl}}",
    "{" + PAIR + ", nonmatch: drop}]}",
    "{" + PAIR + ", subset: [0, 1]}]}",
    "{" + PAIR + ", shuffle_over_epochs_multiplier: }]}",
    "{" + PAIR + ", aux: {k: v}}]}",
    "{" + PAIR + ", nam: v}]}",
    "{" + PAIR + "}]}",
    "{join: [{path: texts, nonmatch: skip}, {path: others}]}",
    # What lies at paths
    "{path: nothing}",
    "{path: 's3:/bucket/set'}",
    "{path: 'nothing.yaml'}",
    "{path: plain}",
    "{path: store}",
    "{path: texts/.nv-meta}",
    "{path: texts, split_part: valid}",
    "{path: texts, split_part: trian}",
    "{path: lines.jsonl, split_config: s.yaml}",
    "{path: lines.jsonl, dataset_config: s.yaml}",
    "{path: texts, split_config: nothing.yaml}",
    "{path: texts, dataset_config: nothing.yaml}",
    "{path: inner.yaml, dataset_config: d.yaml}",
    "{path: inner.yaml, aux: {x: others}}",
    "{path: inner.yaml, name: n}",
    "{path: inner.yaml, split_part: val}",
    "{path: circle.yaml}",
    "{path: broken.yaml}",
]
"""Nodes of `MetadatasetV2`, as the split `train`."""

FILES = {
    "inner.yaml": FRAME + "splits: {train: {path: texts}}",
    "circle.yaml": FRAME + "splits: {train: {blend: [{path: others}, {path: meta.yaml}]}}",
    "broken.yaml": FRAME + "splits: {train: {path: texts, splt_config: x}}",
    "lines.jsonl": '{"text": "a"}\n',
}

DOCUMENTS = [
    "",
    "[]",
    "splits: {}",
    "splits: [a]",
    "split: {}",
    "splits: {train: {path: texts}}",
    "splits: {train: {datasets: []}}",
    "splits: {train: {datasets: {path: texts}}}",
    "splits: {train: {dataset: []}}",
    "splits: {train: {datasets: [{path: texts, aux: {}}]}}",
    "splits: {train: {datasets: [{path: texts, weight: -1}]}}",
    "splits: {train: {datasets: [{path: texts, weight: x}]}}",
    "splits: {train: {datasets: [{weight: 1}]}}",
    "splits: {train: {datasets: [{path: texts, subset: [0, 1]}]}}",
    "splits: {train: }",
    "splits: {val: {datasets: [{path: texts}]}}",
    "splits: {trian: {datasets: [{path: texts}]}}",
    "__module__: megatron.energon\n__class__: MetadatasetV3\nsplits: {}",
    "__module__: mine\n__class__: MetadatasetV2\nsplits: {}",
    "__module__: 3\n__class__: MetadatasetV2\nsplits: {}",
    "__module__: megatron.energon\n__class__: 3\nsplits: {}",
    f"{FRAME}__function__: f\nsplits: {{}}",
    f"{FRAME}other: 1\nsplits: {{train: {{path: texts}}}}",
    f"{FRAME}splits: {{my split: {{pth: texts}}}}",
    f"{FRAME}splits: {{train: }}",
    f"{FRAME}splits: {{train: {{datasets: [{{path: texts}}]}}}}",
    "splits: {train: {path: [}",
    "splits: !!python/name:os.system {}",
]
"""Whole files."""

SPLITS = [
    "",
    "[]",
    "split_part: {}",
    "split_parts: {train: [a.tar], more: 3}",
    "split_parts: {train: [3]}",
    "split_parts: {train: [shard_0.tar], val: []}\nexclude: 3",
    "split_parts: {train: [nothing.tar]}",
    "split_parts: {train: ['shard-{0..1.tar']}",
    "split_parts: {train: ['shard-{0..99999999999}.tar']}",
    "split_parts: {train: []}",
    "split_parts: {val: []}",
    "split_parts: {trian: []}",
    "split_parts: {train: []}\nexcludes: []",
    "split_parts: {train: [}",
]
"""split.yaml."""

CONFIGS = [
    "",
    "[]",
    "samle_type: x",
    "sample_type: TextSample",
    "sample_type: {__module__: megatron.energon}",
    "sample_type: {__module__: megatron.energon, __class__: TextSampl}\nfield_map: {text: txt}",
    "sample_type: {__module__: mine, __class__: Mine}\nfield_map: {text: txt}",
    TEXT,
    f"{TEXT}field_map: {{text: txt}}\nsample_loader: a.py",
    f"{TEXT}field_map: [text]",
    f"{TEXT}field_map: {{text: 3}}",
    f"{TEXT}field_map: {{txt: txt}}",
    f"{TEXT}field_map: {{text: 'txt['}}",
    f"{TEXT}field_map: {{text: jpg}}",
    f"{TEXT}field_map: {{}}",
    f"{TEXT}sample_loader: a.py\npart_filter: [txt]",
    f"{TEXT}sample_loader: a.py",
    f"{TEXT}field_map: {{text: txt}}\nfeild_map: {{}}",
    f"{TEXT}field_map: {{text: txt}}\nsubflavors: [a]",
    f"{TEXT}field_map: {{text: txt}}\ndecoder: {{__module__: mine, __class__: D}}",
    f"{TEXT}field_map: {{text: txt}}\ndecoder: {{image_decod: rgb}}",
    f"{TEXT}field_map: {{text: txt}}\nmax_samples_per_sequence: 0",
    f"{TEXT}field_map: {{text: txt}}\nparallel_shard_iters: many",
    f"{TEXT}field_map: {{text: txt}}\nsubset: {{range: [3, 1]}}",
    f"{TEXT}field_map: {{text: txt}}\nsplit_part: nothing",
    f"{CRUDE}field_map: {{text: txt}}",
    f"{CRUDE}part_filter: a.py",
    "__module__: megatron.energon\n__class__: CrudeWebdatasets\n",
    "__module__: mine\n__class__: Mine\n",
    "__module__: mine\n__function__: f\n",
    "__class__: CrudeWebdataset\n",
]
"""dataset.yaml."""

INFOS = ["", "[]", "{}", '{"shard_counts": {"a.tar": -1}}', '{"shard_counts": {"a.tar": "3"}}', '{"shard_count": {}}']
""".info.json."""

VALUES: list[Any] = [
    3,
    {},
    {"splits": {3: {}}},
    {"__class__": "MetadatasetV2", "splits": {"train": {"path": "texts", "subset": [0.5, 1]}}},
    {"__class__": "MetadatasetV2", "splits": {"train": {"path": "texts", "name": b"n"}}},
]
"""What programs give in place of a path."""

TRAINING = {"split_part": "train", "batch_size": 2, "shuffle_buffer_size": None, "max_samples_per_sequence": None}


def _steps(kind: str, text: str) -> None:
    """Do with a wrong text what a user would do."""
    wrong = Path(".nv-meta/wrong.yaml")
    match kind:
        case "node" | "document":
            content = f"{FRAME}splits:\n  train: {text}\n" if kind == "node" else text
            Path("meta.yaml").write_text(content, encoding="utf-8")
            len(get_train_dataset("meta.yaml", **TRAINING))
        case "validation":
            Path("meta.yaml").write_text(f"{FRAME}splits:\n  val: {text}\n", encoding="utf-8")
            len(get_val_dataset("meta.yaml", batch_size=2, last_batch="drop"))
        case "preparation":
            Path("meta.yaml").write_text(f"{FRAME}splits:\n  train: {text}\n", encoding="utf-8")
            prepare_metadataset("meta.yaml")
        case "split":
            ("texts" / wrong).write_text(text, encoding="utf-8")
            len(get_train_dataset("texts", split_config=wrong.name, **TRAINING))
        case "dataset":
            ("texts" / wrong).write_text(text, encoding="utf-8")
            len(get_train_dataset("texts", dataset_config=wrong.name, **TRAINING))
        case "info":
            Path("damaged/.nv-meta/.info.json").write_text(text, encoding="utf-8")
            len(get_train_dataset("damaged", **TRAINING))
        case _:
            raise AssertionError(kind)


def _cases() -> Iterator[tuple[str, str]]:
    yield from (("node", text) for text in NODES)
    yield from (("document", text) for text in DOCUMENTS)
    yield from (("split", text) for text in SPLITS)
    yield from (("dataset", text) for text in CONFIGS)
    yield from (("info", text) for text in INFOS)
    for kind in ("validation", "preparation"):
        yield from ((kind, text) for text in NODES if text.startswith(("{join: [{path: texts}, {", "{" + PAIR)))
        yield kind, "{path: nothing.yaml}"
        yield kind, "{path: texts, splt_part: x}"


def write_data() -> None:
    """Datasets in the current folder."""
    for name in ("texts", "others", "damaged"):
        make_text_dataset(name, n=12, shards=2, seed=len(name))
    make_crude_dataset("crude", n=4, shards=1)
    os.mkdir("plain")
    Path("store/.nv-meta").mkdir(parents=True)
    Path("store/.nv-meta/index.sqlite").write_bytes(b"")
    for name, content in FILES.items():
        Path(name).write_text(content, encoding="utf-8")


def answers() -> dict[str, str]:
    """The error of each case, as a user reads it; data must lie in the current folder."""
    found: dict[str, str] = {}
    for kind, text in _cases():
        found[f"{kind}: {text}"] = _answer(lambda kind=kind, text=text: _steps(kind, text))
    for value in VALUES:
        found[f"value: {value!r}"] = _answer(lambda value=value: len(get_train_dataset(value, **TRAINING)))
    found["load_dataset"] = _answer(lambda: load_dataset("nothing"))
    return found


def _answer(does: Any) -> str:
    try:
        does()
    except (EnergonGrainError, TypeError) as error:
        return f"{type(error).__name__}: {error}".replace(os.getcwd(), ".")
    return "no error"


@pytest.fixture(scope="module")
def now(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("wrong"))
    try:
        write_data()
        yield answers()
    finally:
        os.chdir(before)


def test_wrong_documents_are_answered_as_recorded(now: dict[str, str]) -> None:
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    different = [case for case in {**recorded, **now} if recorded.get(case) != now.get(case)]
    assert not different, "\n".join(f"{case}\n- {recorded.get(case)}\n+ {now.get(case)}" for case in different)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_data()
        RECORDED.write_text(json.dumps(answers(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
