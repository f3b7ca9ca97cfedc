"""The core's task encoders, which decode to tensors."""

from __future__ import annotations

from energon_grain.datasets import augment_task_encoder, task_encoder
from energon_grain.samples.subscripts import EncodedBatch, EncodedSample, RawBatch, RawSample
from energon_grain.transforms import decode
from energon_grain_torch.decode import SampleDecoder


class TaskEncoder(task_encoder.TaskEncoder[RawSample, EncodedSample, RawBatch, EncodedBatch]):
    """Base of user task encoders, as in the core: hooks may return tensors, and images are tensors by default."""

    decoder: decode.SampleDecoder | None = SampleDecoder()
    decoder_type: type[decode.SampleDecoder] = SampleDecoder


class DefaultTaskEncoder(
    task_encoder.DefaultTaskEncoder[RawSample, EncodedSample, RawBatch, EncodedBatch],
    TaskEncoder[RawSample, EncodedSample, RawBatch, EncodedBatch],
):
    """Converts between types by field name, as in the core."""


class AugmentTaskEncoder(  # pyright: ignore[reportIncompatibleVariableOverride]
    augment_task_encoder.AugmentTaskEncoder[RawSample, EncodedSample, RawBatch, EncodedBatch],
    TaskEncoder[RawSample, EncodedSample, RawBatch, EncodedBatch],
):
    """A task encoder that does what another one does but for what a subclass overrides, as in the core."""
