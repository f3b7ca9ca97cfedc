"""Changing a task encoder from outside."""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import Any

from energon_grain.datasets.cooker import Cooker
from energon_grain.datasets.hooks import forwarding
from energon_grain.datasets.task_encoder import TaskEncoder
from energon_grain.errors import ConfigError
from energon_grain.samples.subscripts import EncodedBatch, EncodedSample, RawBatch, RawSample
from energon_grain.transforms.decode import SampleDecoder

_BUILDERS = ("build_train_datasets", "build_val_datasets", "build_encode_sample", "build_batch")


def _handed_on(name: str) -> Any:
    """The hook of the inner encoder."""

    @forwarding
    @wraps(getattr(TaskEncoder, name))
    def hook(self: AugmentTaskEncoder, *arguments: Any, **named: Any) -> Any:
        return getattr(self.inner, name)(*arguments, **named)

    return hook


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

    cook_crude_sample = _handed_on("cook_crude_sample")
    encode_sample = _handed_on("encode_sample")
    preencode_sample = _handed_on("preencode_sample")
    encode_samples = _handed_on("encode_samples")
    postencode_sample = _handed_on("postencode_sample")
    select_samples_to_pack = _handed_on("select_samples_to_pack")
    pack_selected_samples = _handed_on("pack_selected_samples")
    batch_group_criterion = _handed_on("batch_group_criterion")
    batch = _handed_on("batch")
    encode_batch = _handed_on("encode_batch")
