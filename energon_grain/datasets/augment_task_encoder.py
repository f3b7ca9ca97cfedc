"""Changing a task encoder from outside."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from energon_grain.datasets.cooker import Cooker
from energon_grain.datasets.hooks import forwarding
from energon_grain.datasets.task_encoder import TaskEncoder
from energon_grain.errors import ConfigError
from energon_grain.samples.subscripts import EncodedBatch, EncodedSample, RawBatch, RawSample
from energon_grain.transforms.decode import SampleDecoder

_BUILDERS = ("build_train_datasets", "build_val_datasets", "build_encode_sample", "build_batch")


class AugmentTaskEncoder(TaskEncoder[RawSample, EncodedSample, RawBatch, EncodedBatch]):
    """A task encoder that does what another one does, but for the hooks that a subclass overrides.

    A hook that is merely handed on costs nothing: the inner encoder's own is called, under its own `thread_safe` and
    failure tolerance. Random numbers in both are those of the sample.

    Attributes:
        inner: The encoder that hooks are handed on to.

    Args:
        task_encoder: The inner encoder.

    Raises:
        ConfigError: The inner encoder overrides a builder and this class does not: its graph would be made of its
            own hooks, or lost.
    """

    def __init__(self, task_encoder: TaskEncoder[RawSample, EncodedSample, RawBatch, EncodedBatch]) -> None:
        self.inner = task_encoder
        for name in _BUILDERS:
            plain = getattr(TaskEncoder, name)
            theirs = getattr(getattr(task_encoder, name), "__func__", None)
            if theirs is not plain and getattr(type(self), name) is plain:
                raise ConfigError(
                    f"{type(task_encoder).__name__} overrides {name}, which {type(self).__name__} cannot hand on: "
                    f"the graph would be made of the inner encoder's hooks; override {name} here too"
                )

    @property
    def decoder(self) -> SampleDecoder | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The inner encoder's; a subclass may set its own as an attribute of the class."""
        return self.inner.decoder

    @decoder.setter
    def decoder(self, decoder: SampleDecoder | None) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self.inner.decoder = decoder

    @property
    def decoder_type(self) -> type[SampleDecoder]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The inner encoder's."""
        return self.inner.decoder_type

    @property
    def cookers(self) -> Sequence[Cooker]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The inner encoder's; a subclass may set its own as an attribute of the class."""
        return self.inner.cookers

    @forwarding
    def cook_crude_sample(self, sample: Any, cooker: Cooker, aux: dict[str, Any]) -> Any:
        """As the inner encoder does. So are all hooks below."""
        return self.inner.cook_crude_sample(sample, cooker, aux)

    @forwarding
    def encode_sample(self, sample: Any) -> Any:
        """As the inner encoder does."""
        return self.inner.encode_sample(sample)

    @forwarding
    def preencode_sample(self, sample: Any) -> Any:
        """As the inner encoder does."""
        return self.inner.preencode_sample(sample)

    @forwarding
    def postencode_sample(self, sample: Any) -> Any:
        """As the inner encoder does."""
        return self.inner.postencode_sample(sample)

    @forwarding
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        """As the inner encoder does."""
        return self.inner.select_samples_to_pack(samples)

    @forwarding
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        """As the inner encoder does."""
        return self.inner.pack_selected_samples(samples)

    @forwarding
    def batch_group_criterion(self, sample: Any) -> tuple[Hashable, int | None]:
        """As the inner encoder does."""
        return self.inner.batch_group_criterion(sample)

    @forwarding
    def batch(self, samples: list[Any]) -> Any:
        """As the inner encoder does."""
        return self.inner.batch(samples)

    @forwarding
    def encode_batch(self, batch: Any) -> Any:
        """As the inner encoder does."""
        return self.inner.encode_batch(batch)
