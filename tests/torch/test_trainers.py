"""`energon_grain_torch.trainers` in one process: positions, epochs, evaluation, and mistakes. Kills: tests/examples."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import trainer_programs as programs
from replica_loaders import Tokens, alone, of_torch, on_replicas, rows
from torch_ranks import on_ranks

from energon_grain.testing import make_classification_dataset
from energon_grain_torch import ConfigError, StateError, WorkerConfig, get_savable_loader

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of the trainers
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("transformers", "accelerate", "lightning")),
        reason="trainers are not installed",
    ),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_classification_dataset(tmp_path_factory.mktemp("data") / "images", n=50)


SAMPLES = 37
"""Of the training split of the data: neither 4 nor 8 divides it."""


def numbers(data: Path) -> list[int]:
    """The numbers of all samples of the training split."""
    dataset = programs.validation(data, batch_size=SAMPLES)
    with get_savable_loader(dataset) as loader:
        (batch,) = loader
    return sorted(batch["number"].tolist())


def stream(data: Path, steps: int, **options: Any) -> list[list[int]]:
    """The numbers of the samples in the first steps."""
    with get_savable_loader(programs.train(data, **options)) as loader:
        found: list[list[int]] = []
        while len(found) < steps:
            # `zip` takes from the range first, so that no batch is lost.
            found += [batch["number"].tolist() for _, batch in zip(range(steps - len(found)), loader, strict=False)]
    return found


# Epochs of 7 batches in steps of 2: the last step of an epoch has one.
@pytest.mark.parametrize("step", [2, 4, 5])
def test_hugging_face_goes_on_where_it_was(step: int, data: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"gradient_accumulation_steps": 2, "num_train_epochs": 3}
    whole = programs.trainer(data, tmp_path / "runs", **options)
    whole.train()
    assert whole.model.seen == stream(data, 21)
    assert whole.state.global_step == 12
    assert whole.energon_loader.stats().batches == 21

    resumed = programs.trainer(data, tmp_path / "elsewhere", **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "runs" / f"checkpoint-{step}"))
    batches = {2: 4, 4: 7, 5: 9}[step]
    assert resumed.model.seen == whole.model.seen[batches:]
    assert resumed.state.global_step == 12
    assert resumed.state.epoch == whole.state.epoch == 3
    assert torch.allclose(resumed.model.layer.weight, whole.model.layer.weight)


def test_hugging_face_resumes_the_last_checkpoint_and_a_fresh_run_begins_again(data: Path, tmp_path: Path) -> None:
    trainer = programs.trainer(data, tmp_path, max_steps=4)
    trainer.train()
    trainer.args.max_steps = 6
    trainer.train(resume_from_checkpoint=True)
    assert trainer.model.seen == stream(data, 6)
    trainer.train()
    assert trainer.model.seen[6:] == stream(data, 6)


def test_an_endless_stream_has_epochs_of_one_pass(data: Path, tmp_path: Path) -> None:
    trainer = programs.trainer(data, tmp_path, virtual_epoch_length=0, num_train_epochs=2)
    trainer.train()
    assert trainer.state.global_step == 2 * (SAMPLES // 4)
    assert trainer.model.seen == stream(data, trainer.state.global_step, virtual_epoch_length=0)


def test_hugging_face_evaluates(data: Path, tmp_path: Path) -> None:
    assert programs.evaluate(data, tmp_path) == (SAMPLES, numbers(data), SAMPLES)


def test_hugging_face_evaluates_each_sample_once_on_two_ranks(data: Path, tmp_path: Path) -> None:
    assert on_ranks(2, programs.evaluate, data, tmp_path) == [(SAMPLES, numbers(data), SAMPLES)] * 2


def test_hugging_face_gets_typed_batches_as_dictionaries(data: Path, tmp_path: Path) -> None:
    trainer = programs.trainer(data, tmp_path, max_steps=1, encoder=programs.Typed())
    trainer.train()
    assert set(trainer.model.got) == {"pixels", "labels"}  # without those that the model does not take
    trainer.args.remove_unused_columns = False
    with pytest.raises(TypeError, match="extra"):
        trainer.train()


def test_hugging_face_s_arguments_must_fit(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"batches of 4 and .* batches of 8.*batch_size=args\.per_device_train"):
        programs.trainer(data, tmp_path, per_device_train_batch_size=8, max_steps=1)
    with pytest.raises(ConfigError, match="auto_find_batch_size"):
        programs.trainer(data, tmp_path, auto_find_batch_size=True, max_steps=1)
    trainer = programs.trainer(data, tmp_path, max_steps=3)
    trainer.train()
    trainer.args.per_device_eval_batch_size = 5
    with pytest.raises(ConfigError, match="per_device_eval_batch_size"):
        trainer.evaluate(programs.validation(data))
    (tmp_path / "checkpoint-3" / "energon_loader.json").unlink()
    with pytest.raises(StateError, match=r"energon_loader\.json does not exist.*not saved by EnergonTrainer"):
        trainer.train(resume_from_checkpoint=True)


def test_datasets_for_one_rank_are_refused_on_two(data: Path, tmp_path: Path) -> None:
    for errors in on_ranks(2, programs.for_one_rank, data, tmp_path):
        assert [*errors] == ["hf", "accelerate"]
        for error in errors.values():
            assert "made for 1 rank and 2 processes train" in error


def test_lightning_refuses_datasets_for_one_rank_on_two(data: Path) -> None:
    from energon_grain_torch.trainers.lightning import EnergonDataModule

    module = EnergonDataModule(lambda: programs.train(data))
    strategy = SimpleNamespace(distributed_sampler_kwargs={"num_replicas": 2, "rank": 1})  # as that of DDP
    module.trainer = SimpleNamespace(strategy=strategy)  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="made for 1 rank and 2 processes train"):
        module.train_dataloader()


@pytest.mark.parametrize("step", [3, 5, 10, 12])  # epochs have 5 batches
def test_lightning_goes_on_where_it_was(step: int, data: Path, tmp_path: Path) -> None:
    module = programs.fit(data, tmp_path, max_steps=12)
    assert module.seen == stream(data, 12, virtual_epoch_length=5)
    checkpoint = tmp_path / f"step={step}.ckpt"
    resumed = programs.fit(data, tmp_path / "more", max_steps=15, ckpt_path=checkpoint)
    assert resumed.seen == stream(data, 15, virtual_epoch_length=5)[step:]


def test_lightning_validates_from_the_first_sample_and_saves_after_training(data: Path, tmp_path: Path) -> None:
    module = programs.fit(data, tmp_path, validated=True, max_steps=10, num_sanity_val_steps=2, limit_val_batches=4)
    with get_savable_loader(programs.validation(data)) as loader:
        passes = [next(loader)["number"].tolist() for _ in range(4)]
    assert module.validated == [*passes[:2], *passes, *passes]
    module.trainer.save_checkpoint(tmp_path / "last.ckpt")
    resumed = programs.fit(data, tmp_path / "more", max_steps=12, ckpt_path=tmp_path / "last.ckpt")
    assert resumed.seen == stream(data, 12, virtual_epoch_length=5)[10:]


def test_lightning_s_module_takes_functions_and_follows_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    import lightning.pytorch

    from energon_grain_torch.trainers import lightning as ours

    dataset: Any = "images"
    with pytest.raises(ConfigError, match="train='images': expected a function"):
        ours.EnergonDataModule(dataset)
    with pytest.raises(ConfigError, match="no training dataset"):
        ours.EnergonDataModule().train_dataloader()
    assert ours.EnergonDataModule().val_dataloader() == []

    for name in [name for name in sys.modules if name.partition(".")[0] == "lightning"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pytorch_lightning", lightning.pytorch)
    monkeypatch.delitem(sys.modules, ours.__name__)
    again = importlib.import_module(ours.__name__)
    assert issubclass(again.EnergonDataModule, lightning.pytorch.LightningDataModule)
    assert "lightning.pytorch" not in sys.modules


def test_accelerate_goes_on_where_it_was(data: Path, tmp_path: Path) -> None:
    from accelerate import Accelerator

    from energon_grain_torch.trainers.accelerate import prepare

    def steps(first: int, last: int) -> list[list[int]]:
        accelerator = Accelerator(cpu=True)
        loader = prepare(accelerator, programs.train(data), prefetch_factor=1)
        assert len(loader) == 7
        if first:
            accelerator.load_state(str(tmp_path / str(first)))
        seen: list[list[int]] = []
        while len(seen) < last - first:
            for batch in loader:
                assert batch["number"].device == accelerator.device
                seen.append(batch["number"].tolist())
                if first + len(seen) in (3, 7):
                    accelerator.save_state(str(tmp_path / str(first + len(seen))))
                if len(seen) == last - first:
                    break
        assert loader.loader.stats().batches == last - first
        loader.close()
        accelerator.free_memory()
        return seen

    whole = steps(0, 9)
    assert whole == stream(data, 9)
    assert steps(3, 9) == whole[3:]
    assert steps(7, 9) == whole[7:]


@pytest.mark.parametrize(
    ("module", "missing", "command"),
    [
        ("hf", "transformers", "pip install 'transformers>=5' 'accelerate>=1.10'"),
        ("hf", "accelerate", "pip install 'transformers>=5' 'accelerate>=1.10'"),
        ("accelerate", "accelerate", "pip install 'accelerate>=1.10'"),
        ("lightning", "lightning", "pip install 'lightning>=2.5'"),
    ],
)
def test_a_missing_trainer_is_named(module: str, missing: str, command: str, run_script: Callable[..., Any]) -> None:
    done = run_script(
        "import sys\n"
        f"sys.modules[{missing!r}] = sys.modules['pytorch_lightning'] = None\n"
        "import energon_grain_torch.trainers\n"
        "from energon_grain_torch import MissingPackageError\n"
        "try:\n"
        f"    import energon_grain_torch.trainers.{module}\n"
        "except MissingPackageError as error:\n"
        "    print(error)\n"
    )
    said = f"energon_grain_torch.trainers.{module} needs the package {missing}, which is not installed: {command}\n"
    assert (done.stdout, done.stderr) == (said, "")


def test_a_checkpoint_s_state_is_one_of_the_command_line(data: Path, tmp_path: Path) -> None:
    programs.trainer(data, tmp_path, max_steps=3).train()
    state = json.loads((tmp_path / "checkpoint-3" / "energon_loader.json").read_text())
    with get_savable_loader(programs.train(data)) as loader:
        loader.restore_state_global(state)
        assert next(iter(loader))["number"].tolist() == stream(data, 4)[3]


def test_datasets_of_others_stay_those_of_the_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A folder of the tests is called `datasets`, too.
    monkeypatch.setattr("transformers.trainer.is_datasets_available", lambda: False)
    rows = [{"number": n, "pixels": torch.ones(768), "labels": n % 10} for n in range(8)]
    trainer = programs.trainer_of(rows, tmp_path, max_steps=2, evaluated=rows)
    trainer.train()
    assert sorted(sum(trainer.model.seen, [])) == [*range(8)]
    assert trainer.evaluate()["eval_samples_per_second"] > 0
    assert not (tmp_path / "checkpoint-2" / "energon_loader.json").exists()


def test_a_dataset_for_some_ranks_may_train_on_more() -> None:
    """With tensor parallelism several processes get the same batches."""
    from energon_grain_torch.trainers.checks import check_ranks

    check_ranks(WorkerConfig(rank=1, world_size=2), 8, "")
    with pytest.raises(ConfigError, match="made for 1 rank and 8 processes train"):
        check_ranks(WorkerConfig(rank=0, world_size=1), 8, "")


def test_lightning_reads_once_for_replicas(data: Path) -> None:
    from energon_grain_torch.trainers.lightning import EnergonDataModule

    def opened(config: WorkerConfig, encoder: Tokens, processes: int) -> Any:
        module: Any = EnergonDataModule(train=lambda: of_torch(data, config, encoder))
        sizes = {"num_replicas": processes}
        module.trainer = SimpleNamespace(strategy=SimpleNamespace(distributed_sampler_kwargs=sizes))
        return module.train_dataloader()

    def read(config: WorkerConfig, encoder: Tokens) -> Any:
        with opened(config, encoder, 1) as loader:
            return [rows(next(loader)) for _ in range(4)]

    assert on_replicas(read, WorkerConfig) == ([alone(data, 4)] * 2, 1)

    def refused(config: WorkerConfig, encoder: Tokens) -> None:
        with pytest.raises(ConfigError, match="2 processes train with data parallelism"):
            opened(config, encoder, 2)

    on_replicas(refused, WorkerConfig)


def test_hugging_face_reads_once_for_replicas(data: Path) -> None:
    from energon_grain_torch.trainers.hf import EnergonTrainer

    def opened(config: WorkerConfig, encoder: Tokens, parallelism: Any) -> Any:
        trainer: Any = object.__new__(EnergonTrainer)  # a whole one needs a model with tensor parallelism
        trainer.accelerator = SimpleNamespace(parallelism_config=parallelism)
        trainer.args = SimpleNamespace(world_size=2)
        return trainer._open(of_torch(data, config, encoder))

    def read(config: WorkerConfig, encoder: Tokens) -> Any:
        with opened(config, encoder, SimpleNamespace(data_parallel_size=1)) as loader:
            return [rows(next(loader)) for _ in range(4)]

    assert on_replicas(read, WorkerConfig) == ([alone(data, 4)] * 2, 1)

    def refused(config: WorkerConfig, encoder: Tokens) -> None:
        with pytest.raises(ConfigError, match="2 processes train with data parallelism"):
            opened(config, encoder, None)

    on_replicas(refused, WorkerConfig)
