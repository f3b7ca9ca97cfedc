"""`to_device`: what is delivered and read ahead, and what the state says; two processes with one checkpoint."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grain
import jax
import numpy as np
import orbax.checkpoint as ocp_v0
import pytest
from jax.sharding import SingleDeviceSharding
from orbax.checkpoint import v1 as ocp
from patience import PATIENCE_S

from energon_grain import BlendDataset, ConfigError, DefaultTaskEncoder, StateError, TaskEncoder, get_loader
from energon_grain.loader import EnergonCheckpointRestore, to_device
from energon_grain.testing import make_classification_dataset

Train = Callable[..., Any]
RunScript = Callable[..., Any]
BROKEN = frozenset({3, 11})


def keys(loader: Any, steps: int) -> list[list[str]]:
    return [list(next(loader).__key__) for _ in range(steps)]


def test_hosts_whose_batches_may_differ_in_shape_are_refused(train: Train) -> None:
    def blend(**options: Any) -> Any:
        parts = [train(world_size=2, lanes=8) for _ in range(2)]
        return get_loader(BlendDataset((parts[0], 1), (parts[1], 1), **options))

    sharding = SingleDeviceSharding(jax.devices()[0])
    with blend() as loader, pytest.raises(ConfigError, match="per_step=True"):
        to_device(loader, sharding)
    with blend(per_step=True) as loader:
        assert not to_device(loader, sharding).stats()["batches"]


class Numbers(DefaultTaskEncoder):
    """Dictionaries with arrays, texts and what no device takes."""

    def encode_sample(self, sample: Any) -> dict[str, Any]:
        return {"number": np.int32(sample.__key__), "text": sample.text, "key": sample.__key__}

    def batch(self, samples: list[Any]) -> dict[str, Any]:
        return {
            "number": np.array([sample["number"] for sample in samples]),
            "nested": [{"half": np.full((len(samples), 2), 0.5, np.float32)}],
            "text": [sample["text"] for sample in samples],
            "keys": np.array([sample["key"] for sample in samples]),
        }


def test_dictionaries_keep_their_texts_on_the_host(train: Train) -> None:
    plain = get_loader(train(task_encoder=Numbers()))
    for batch, _ in zip(to_device(get_loader(train(task_encoder=Numbers()))), range(3), strict=False):
        expected = next(plain)
        assert isinstance(batch["number"], jax.Array)
        assert isinstance(batch["nested"][0]["half"], jax.Array)
        assert batch["number"].tolist() == expected["number"].tolist()
        assert batch["text"] == expected["text"]
        assert isinstance(batch["keys"], np.ndarray)
        assert [int(key) for key in batch["keys"]] == batch["number"].tolist()


@dataclasses.dataclass
class Pictures:
    image: np.ndarray[Any, Any]
    keys: list[str]
    scale: float


class ToPictures(TaskEncoder):
    def batch(self, samples: list[Any]) -> Pictures:
        return Pictures(np.stack([s.image for s in samples]), [s.__key__ for s in samples], 0.5)


def test_plain_dataclasses_make_one_trace(tmp_path: Path) -> None:
    from energon_grain import WorkerConfig, get_train_dataset

    make_classification_dataset(tmp_path / "data", n=40, shards=2)
    dataset = get_train_dataset(
        tmp_path / "data",
        worker_config=WorkerConfig(0, 1, 1),
        batch_size=4,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=ToPictures(),
    )
    traces = 0

    @jax.jit
    def total(batch: Pictures) -> Any:
        nonlocal traces
        traces += 1
        return batch.image.sum()

    with to_device(get_loader(dataset)) as loader:
        for _ in range(5):
            batch = next(loader)
            assert type(batch) is Pictures
            assert isinstance(batch.image, jax.Array)
            assert len(batch.keys) == 4
            np.testing.assert_allclose(total(batch), np.asarray(batch.image).sum(), rtol=1e-4)
        assert jax.tree.map(lambda a, b: a + b, batch, batch).image.shape == batch.image.shape
    assert traces == 1


@pytest.mark.parametrize("buffer_size", [1, 2, 3])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_state_is_that_of_the_last_delivered_batch(train: Train, buffer_size: int, num_workers: int) -> None:
    def fresh() -> Any:
        return get_loader(train(broken=BROKEN, num_workers=num_workers))

    plain = fresh()
    states = [plain.get_state()]
    batches: list[list[str]] = []
    for _ in range(30):
        batches += keys(plain, 1)
        states.append(plain.get_state())
    below = fresh()
    loader = to_device(below, buffer_size=buffer_size)
    assert isinstance(loader, grain.DatasetIterator)
    assert loader.get_state() == states[0]
    for step in range(15):
        assert keys(loader, 1) == batches[step : step + 1]
        assert loader.get_state() == below.get_state() == states[step + 1]
        assert loader.save_state_rank() == below.save_state_rank()
    other = to_device(fresh())
    other.set_state(states[10])
    assert keys(other, 5) == batches[10:15]
    # Back in time on the same loader: what was read ahead is forgotten.
    loader.set_state(states[3])
    assert loader.get_state() == states[3]
    assert keys(loader, 5) == batches[3:8]
    plain.close()
    loader.close()
    other.close()


def test_passes_end_and_follow_each_other(train: Train) -> None:
    def fresh() -> Any:
        return get_loader(train(n=24, repeat=False, batch_size=5))

    plain = fresh()
    passes = [[list(batch.__key__) for batch in plain] for _ in range(3)]
    loader = to_device(fresh())
    assert len(loader) == 5
    assert [list(batch.__key__) for batch in loader] == passes[0]
    with pytest.raises(StopIteration):
        next(loader)
    ended = loader.get_state()
    assert ended["ended"]
    seen: list[list[str]] = []
    for batch in loader:
        seen.append(list(batch.__key__))
        if len(seen) == 2:
            break
    seen += [list(batch.__key__) for batch in loader]
    assert seen == passes[1]
    iter(loader)
    assert loader.get_state()["pass"] == 2
    assert keys(loader, 5) == passes[2]
    other = to_device(fresh())
    other.set_state(ended)
    assert [list(batch.__key__) for batch in other] == passes[1]


class FailsFor(TaskEncoder):
    """A program's fault, at one sample, until it is mended."""

    thread_safe = True
    mended = False

    def encode_sample(self, sample: Any) -> Any:
        if sample.__key__ == "000020" and not self.mended:
            raise NameError("no such name")
        return sample


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_waits_for_the_batches_before_it(train: Train, num_workers: int) -> None:
    plain = get_loader(train())
    expected = keys(plain, 20)
    encoder = FailsFor()
    loader = to_device(get_loader(train(task_encoder=encoder, num_workers=num_workers)), buffer_size=3)
    seen: list[list[str]] = []
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no such name"):
            for _ in range(20):
                seen += keys(loader, 1)
        assert seen == expected[: len(seen)]
        assert "000020" in expected[len(seen)]
        assert loader.get_state()["step"] == len(seen)
    encoder.mended = True
    assert seen + keys(loader, 5) == expected[: len(seen) + 5]
    loader.close()


def test_a_batch_that_cannot_be_placed_is_named_and_not_lost(train: Train) -> None:
    plain = get_loader(train(task_encoder=Numbers()))
    expected = [next(plain)["number"].tolist() for _ in range(4)]

    def sharding(array: np.ndarray[Any, Any]) -> Any:
        if array.tolist() == expected[1] and not mended:
            raise ValueError("no place")
        return SingleDeviceSharding(jax.devices()[0])

    mended = False
    loader = get_loader(train(task_encoder=Numbers()))
    device = to_device(loader, sharding)
    batches = [next(device)]
    for _ in range(2):
        with pytest.raises(ValueError, match="no place") as info:
            next(device)
        assert info.value.__notes__ == ["while placing ['number'], int32 of shape (4,)"]
        assert loader.get_state()["step"] == 1
    batches.append(next(loader))
    mended = True
    batches += [next(device) for _ in range(2)]
    assert [batch["number"].tolist() for batch in batches] == expected


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_device_loader_in_each_epoch_goes_on_where_the_last_one_was_left(train: Train, num_workers: int) -> None:
    def fresh() -> Any:
        return get_loader(train(n=24, repeat=False, batch_size=5, num_workers=num_workers))

    plain = fresh()
    passes = [[list(batch.__key__) for batch in plain] for _ in range(3)]
    loader = fresh()
    # Left by `break`, collected, closed, used beside the loader: what was read ahead is delivered by whoever is next.
    seen: list[list[str]] = []
    for _, batch in zip(range(2), to_device(loader, buffer_size=3), strict=False):
        seen.append(list(batch.__key__))
    seen += keys(loader, 1)
    with to_device(loader, buffer_size=2) as device:
        seen += keys(device, 1)
    with pytest.raises(ValueError, match="call to_device again"):
        next(device)
    seen += [list(batch.__key__) for batch in to_device(loader)]
    assert seen == passes[0]
    for epoch in (1, 2):
        assert [list(batch.__key__) for batch in to_device(loader, buffer_size=3)] == passes[epoch]
    one, other = to_device(loader, buffer_size=3), to_device(loader, buffer_size=2)
    loader.set_state(fresh().get_state())
    assert keys(one, 1) + keys(other, 2) + keys(one, 1) + keys(loader, 1) == passes[0]
    loader.skip(0)
    iter(other)
    assert keys(one, 1) == passes[1][:1]
    one.skip(2)  # of the pass, not of what is read ahead
    assert keys(other, 1) == passes[1][3:4]
    loader.close()
    with pytest.raises(ValueError, match=r"closed at .*test_device\.py:\d+"):
        next(other)


def test_stats_and_states_do_not_tell_of_what_was_only_read_ahead(train: Train) -> None:
    loader, plain = get_loader(train(broken=BROKEN)), get_loader(train(broken=BROKEN))
    device = to_device(loader, buffer_size=4)
    for _ in range(9):
        keys(device, 1)
        keys(plain, 1)
        counts = [(stats.samples, stats.batches) for stats in (device.stats(), loader.stats(), plain.stats())]
        assert counts[0] == counts[1] == counts[2]
        assert device.get_state() == plain.get_state()


def test_what_a_filter_holds_is_that_behind_the_delivered_batch(train: Train) -> None:
    """Lanes with a program, whose passes end where their data does."""

    class Half(TaskEncoder):
        def encode_sample(self, sample: Any) -> Any:
            yield sample
            if int(sample.__key__) % 3 == 0:
                yield sample

    def fresh() -> Any:
        return get_loader(train(n=30, repeat=False, task_encoder=Half(), lanes=4))

    plain, loader = fresh(), fresh()
    states, passes = [plain.get_state()], []
    for _ in range(2):
        passes.append([])
        for batch in plain:
            passes[-1].append(list(batch.__key__))
            states.append(plain.get_state())
        states.append(plain.get_state())
    found = [loader.get_state()]
    for expected in passes:
        seen = []
        for batch in to_device(loader, buffer_size=4):
            seen.append(list(batch.__key__))
            found.append(loader.get_state())
        assert seen == expected
        found.append(loader.get_state())
    assert found == states


def test_misuse_is_told(train: Train) -> None:
    with pytest.raises(ConfigError, match="buffer_size=0"):
        to_device(get_loader(train()), buffer_size=0)
    loader = to_device(get_loader(train()))
    next(loader)
    loader.close()
    loader.close()
    with pytest.raises(ValueError, match="closed"):
        next(loader)


SEVERAL_DEVICES = """
import sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from energon_grain import DefaultTaskEncoder, SampleDecoder, WorkerConfig, get_loader, get_train_dataset
from energon_grain.loader import to_device

class Encoder(DefaultTaskEncoder):
    decoder = SampleDecoder(image_decode="torchrgb")

def loader(batch_size=8):
    return get_loader(get_train_dataset(
        sys.argv[1], batch_size=batch_size, shuffle_buffer_size=None, max_samples_per_sequence=None,
        worker_config=WorkerConfig(0, 1, 1), task_encoder=Encoder(),
    ))

mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
sharding = NamedSharding(mesh, P("data"))
placed, plain = to_device(loader(), sharding), loader()
traces = 0

@jax.jit
def total(batch):
    global traces
    traces += 1
    return batch.image.sum()

for _ in range(5):
    batch, expected = next(placed), next(plain)
    assert batch.image.sharding == sharding and batch.image.shape == expected.image.shape
    assert [shard.data.shape[0] for shard in batch.image.addressable_shards] == [4] * 4
    np.testing.assert_array_equal(np.asarray(batch.image), expected.image)
    assert batch.__key__ == expected.__key__
    np.testing.assert_allclose(total(batch), expected.image.sum(), rtol=1e-4)
assert traces == 1

try:
    next(to_device(loader(batch_size=7), sharding))
except ValueError as error:
    assert error.__notes__ == ["while placing .image, float32 of shape (7, 3, 16, 16)"], error
else:
    raise AssertionError("7 rows on 2 devices")
"""


def test_rows_are_spread_over_several_devices(tmp_path: Path, run_script: RunScript) -> None:
    make_classification_dataset(tmp_path / "data", n=40, shards=2)
    done = run_script(SEVERAL_DEVICES, tmp_path / "data", env={"XLA_FLAGS": "--xla_force_host_platform_device_count=4"})
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


PROGRAM = Path(__file__).parent / "two_hosts.py"


def load_program() -> Any:
    spec = importlib.util.spec_from_file_location("two_hosts", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_two_hosts(folder: Path) -> list[dict[str, Any]]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": str(PROGRAM.parents[2]), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    running = [
        subprocess.Popen(
            [sys.executable, "-W", "error", str(PROGRAM), str(folder), str(port), str(rank)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        errors = [process.communicate(timeout=PATIENCE_S)[1] for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert [process.returncode for process in running] == [0, 0], "\n".join(errors)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_two_processes_save_and_one_resumes(tmp_path: Path) -> None:
    make_classification_dataset(tmp_path / "data", n=80, shards=4, broken={2, 9, 33, 47})
    first, second = run_two_hosts(tmp_path)
    packs = [first.pop("packs"), second.pop("packs")]
    assert first == second  # global arrays
    assert first["again"] == first["rest"]

    program = load_program()
    with program.host_loader(tmp_path / "data") as uninterrupted:
        batches = program.global_batches(program.on_all_devices(uninterrupted), 10)
    assert batches == first["first"] + first["rest"]

    # A pass of packs has as many steps on each process, and in each the packs that one process makes.
    together = [sorted(own + others) for own, others in zip(*packs, strict=True)]
    assert together == [sorted(step) for step in program.packed_pass(tmp_path / "data")]

    with program.on_all_devices(program.host_loader(tmp_path / "data")) as loader:
        with ocp_v0.CheckpointManager(tmp_path / "v0") as manager:
            manager.restore(5, args=ocp_v0.args.Composite(data=EnergonCheckpointRestore(loader)))
        assert program.global_batches(loader, 5) == first["rest"]
        ocp.load_checkpointables(tmp_path / "v1", {"data": loader})
        assert program.global_batches(loader, 5) == first["rest"]
    assert "drops" in json.loads((tmp_path / "v0" / "5" / "data" / "energon_grain.json").read_text())


def test_states_of_hosts_that_are_not_processes_of_jax_are_collected_by_hand(train: Callable[..., Any]) -> None:
    loaders = [get_loader(train(broken=BROKEN, rank=rank, world_size=2)) for rank in range(2)]
    for loader in loaders:
        for _ in range(8):
            next(loader)
    with pytest.raises(
        StateError, match=r"2 hosts can be gathered only by .* pass all of them to `restore_state_global`"
    ):
        loaders[0].save_state_global()
    states = [loader.save_state_rank() for loader in loaders]
    resumed = get_loader(train(broken=BROKEN, batch_size=8))
    resumed.restore_state_global(states)
    assert sorted(next(resumed).__key__) == sorted(sum((list(next(loader).__key__) for loader in loaders), []))
    with pytest.raises(StateError, match=r"this host has no state to restore.*src_rank="):
        resumed.restore_state_global(None)
    with pytest.raises(StateError, match=r"the states of all hosts are needed"):
        resumed.restore_state_global(states[:1])
