# SPDX-License-Identifier: Apache-2.0
"""`EnergonDataModule`: our loaders in Lightning, with the state in its checkpoints."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from energon_grain.errors import ConfigError, public
from energon_grain_torch.loader import SavableDataLoader, get_savable_loader
from energon_grain_torch.trainers.checks import checked, trainer_packages

MakeDataset = Callable[[], Any]
_NAMES = ("lightning.pytorch", "pytorch_lightning")
_ADVICE = "make it with worker_config=WorkerConfig.default_worker_config(…) in the function that the module gets"


def _package() -> Any:
    """Lightning under the name that the program has imported, or else under one that is installed."""
    names = [name for name in _NAMES if sys.modules.get(name) is not None]
    names += [name for name in _NAMES if find_spec(name.partition(".")[0]) is not None]
    return importlib.import_module([*names, *_NAMES][0])


if TYPE_CHECKING:
    from lightning.pytorch import LightningDataModule
else:
    with trainer_packages("lightning", lightning="lightning>=2.5"):
        LightningDataModule = _package().LightningDataModule


class _Validation:
    """A loader whose iterations all begin with the first batch, also after Lightning left one early."""

    def __init__(self, loader: SavableDataLoader[Any]) -> None:
        self._loader = loader
        self._first = loader.save_state_rank()

    def __iter__(self) -> Iterator[Any]:
        self._loader.restore_state_rank(self._first)
        return iter(self._loader)

    def __len__(self) -> int:
        return len(self._loader)


@public
class EnergonDataModule(LightningDataModule):
    """A `LightningDataModule` on our loader: each checkpoint has the loader's state, and a restart is exact.

    `trainer.fit(model, module, ckpt_path=…)` continues with the next batch, in the middle of an epoch and at its end,
    on any number of ranks. An epoch is one pass: `virtual_epoch_length` batches, or one pass over the data.

    Lightning itself loses two things in the middle of an epoch: averages logged with `on_epoch=True`, and gradients
    that were accumulated and not applied. Save at steps where neither matters.

    It belongs to the package that the program imported, `lightning` or `pytorch_lightning`.

    Args:
        train: Returns the training dataset. It is called on each rank after Lightning has started
            `torch.distributed`, so `WorkerConfig.default_worker_config` knows the rank.
        val: Returns the validation dataset, or a sequence of them.
        **options: Arguments of `get_savable_loader`.

    Attributes:
        loader: The loader of the training dataset, for `stats()` and `which(step)`. None before training.

    Raises:
        ConfigError: `train` or `val` is a dataset and no function.
    """

    def __init__(self, train: MakeDataset | None = None, val: MakeDataset | None = None, **options: Any) -> None:
        super().__init__()
        for name, given in (("train", train), ("val", val)):
            if given is not None and not callable(given):
                raise ConfigError(f"{name}={given!r}: expected a function that returns a dataset: {name}=lambda: …")
        self.loader: SavableDataLoader[Any] | None = None
        self._train, self._val, self._options = train, val, options
        self._validation: list[_Validation] | None = None
        self._state: dict[str, Any] = {}

    def train_dataloader(self) -> SavableDataLoader[Any]:
        """The training loader, at the position of the checkpoint; the same loader in each call."""
        if self.loader is None:
            if self._train is None:
                raise ConfigError("EnergonDataModule has no training dataset: pass train=, a function that returns one")
            self.loader = self._open(self._train())
            if self._state:
                self.loader.load_state_dict(self._state)
        return self.loader

    def val_dataloader(self) -> Any:
        """The validation loaders; each validation begins with the first batch."""
        if self._validation is None:
            made: Any = () if self._val is None else self._val()
            datasets: Sequence[Any] = made if isinstance(made, Sequence) else [made]
            self._validation = [_Validation(self._open(dataset)) for dataset in datasets]
        return self._validation

    def state_dict(self) -> dict[str, Any]:
        """The state of the training loaders of all ranks; collective, as Lightning calls it on all of them."""
        return self._state if self.loader is None else self.loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go to the position of a checkpoint."""
        self._state = state_dict
        if self.loader is not None and state_dict:
            self.loader.load_state_dict(state_dict)

    def _open(self, dataset: Any) -> SavableDataLoader[Any]:
        loader = get_savable_loader(dataset, **self._options)
        strategy: Any = getattr(self.trainer, "strategy", None)
        processes = getattr(strategy, "distributed_sampler_kwargs", None) or {}
        return checked(loader, processes.get("num_replicas", 1), _ADVICE)
