"""The state: what it holds, and what it refuses."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest
from metadatasets import write_v2
from stream_hosts import MakeDataset, config, global_batch, open_hosts, open_stream

from energon_grain import BlendDataset, FingerprintError, StateError, Stream, get_train_dataset, merge_cursors
from energon_grain.testing import make_text_dataset


def test_a_changed_configuration_is_named(text_dataset: MakeDataset) -> None:
    path = text_dataset(53)
    [stream] = open_hosts(path, 1, 5)
    next(stream)
    cursor = stream.cursor(with_manifest=True)
    [other] = open_hosts(path, 1, 5, seed=1, max_samples_per_sequence=2)
    with pytest.raises(FingerprintError, match=r"(?s)seed: saved 0, now 1.*block: saved None, now 2.*allow_changes"):
        other.restore(cursor)
    with pytest.raises(
        FingerprintError, match=r"saved \w+, now \w+ \(states of save_state_rank hold what differs, too"
    ):
        other.restore(stream.cursor())
    other.restore(cursor, allow_changes=True)
    assert other.cursor()["item"] == 5
    [larger] = open_hosts(text_dataset(97), 1, 5)
    with pytest.raises(FingerprintError, match="samples: saved 53, now 97"):
        larger.restore(cursor)
    [lanes] = open_hosts(path, 1, 5, lanes=12)
    with pytest.raises(StateError, match="saved with lanes=24, this run has lanes=12"):
        lanes.restore(cursor)


def test_a_moved_dataset_keeps_its_order(text_dataset: MakeDataset, tmp_path: Path) -> None:
    path = text_dataset(53)
    moved = tmp_path / "elsewhere" / path.name
    shutil.copytree(path, moved)
    (moved / ".nv-meta" / "index.uuid").write_text("11111111-2222-4333-8444-555555555555")
    [here], [there] = open_hosts(path, 1, 5), open_hosts(moved, 1, 5)
    next(here)
    there.restore(here.cursor(with_manifest=True))
    assert global_batch([here]) == global_batch([there])


def test_the_cursor_is_small_json(text_dataset: MakeDataset) -> None:
    [stream] = open_hosts(text_dataset(53, broken={1, 2, 3}), 1, 5)
    for _ in range(200):
        next(stream)
    text = json.dumps(stream.cursor())
    assert json.loads(text) == stream.cursor()
    assert len(text) < 1024
    assert stream.cursor()["drops"]


def test_one_hosts_state_with_drops_is_not_for_other_hosts(text_dataset: MakeDataset) -> None:
    path = text_dataset(53, broken=set(range(20)))
    streams = open_hosts(path, 2, 4)
    for _ in range(10):
        global_batch(streams)
    [single] = open_hosts(path, 1, 8)
    with pytest.raises(StateError, match="knows what was dropped in its own lanes only"):
        single.restore(streams[0].cursor())
    with pytest.raises(StateError, match="the states of all hosts are needed"):
        merge_cursors([streams[0].cursor()])
    single.restore(merge_cursors([stream.cursor() for stream in streams]))
    assert global_batch([single]) == global_batch(streams)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 99}, "version 99"),
        ({"item": -1}, "'item' is -1"),
        ({"host": [3, 2]}, "'host' is"),
        ({"history": [[1]]}, "'history' is"),
        ({"drops": "!!", "check": None}, "'drops' is damaged"),
        ({"ended": "no"}, "'ended' is"),
        ({"step": 7}, "'check' is"),
        ({"stop": 7}, "'stop'"),
        ({"check": 7}, "'check' is 7"),
    ],
)
def test_a_malformed_state_is_refused(text_dataset: MakeDataset, change: dict[str, Any], message: str) -> None:
    [stream] = open_hosts(text_dataset(24), 1, 5)
    with pytest.raises(StateError, match=message):
        stream.restore({name: value for name, value in (stream.cursor() | change).items() if value is not None})


def test_swapping_the_parts_of_a_blend_changes_the_fingerprint(text_dataset: MakeDataset) -> None:
    part: Any = get_train_dataset(
        text_dataset(24), batch_size=None, shuffle_buffer_size=None, max_samples_per_sequence=None, repeat=False
    )
    one, other = (dataclasses.replace(part.dataset, name=name) for name in ("one", "other"))

    def fingerprint(*children: Any) -> str:
        blend = BlendDataset(*children)
        return Stream.of(blend, worker_config=config()).cursor()["fingerprint"]

    assert fingerprint(one, other) != fingerprint(other, one)


def test_every_state_has_the_same_keys(text_dataset: MakeDataset) -> None:
    stream = open_stream(text_dataset(53, broken={1, 2, 3}))
    fresh = stream.cursor()
    for _ in range(20):
        next(stream)
    assert fresh["drops"] == ""
    assert stream.cursor()["drops"]
    assert fresh.keys() == stream.cursor().keys() == merge_cursors([stream.cursor()]).keys()
    old = {name: value for name, value in fresh.items() if name not in ("drops", "held", "skipped", "check")}
    stream.restore(old)
    stream.restore(merge_cursors([old]))
    assert stream.cursor() == fresh
    with pytest.raises(StateError, match="'drops' is 5"):
        stream.restore({**fresh, "drops": 5})


def test_a_manifest_of_many_datasets_is_short_and_still_names_what_differs(tmp_path: Path) -> None:
    paths = [make_text_dataset(tmp_path / f"d{i}", n=5 + i, shards=1) for i in range(40)]
    blend = {"blend": [{"path": os.fspath(path), "weight": 1} for path in paths]}
    [stream], [other] = (open_hosts(write_v2(tmp_path, train=blend), 1, 5, seed=seed) for seed in (0, 1))
    state = json.loads(json.dumps(stream.cursor(with_manifest=True)))
    plain = json.dumps(stream.spec.manifest())
    assert len(state["manifest"]) < len(plain) / 2
    with pytest.raises(FingerprintError, match="  seed: saved 0, now 1\n"):
        other.restore(state)
    del state["check"]
    older = state | {"manifest": stream.spec.manifest()}
    with pytest.raises(FingerprintError, match="  seed: saved 0, now 1\n"):
        other.restore(older)
    stream.restore(older)
    for damaged in ("?", "", state["manifest"][:-8], base64.b64encode(zlib.compress(b"[" * 9)).decode()):
        with pytest.raises(StateError, match="the state's 'manifest' is damaged"):
            other.restore(state | {"manifest": damaged})
