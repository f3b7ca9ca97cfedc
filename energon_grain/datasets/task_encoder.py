"""The user's side of the pipeline: hooks from decoded sample to encoded batch.

Hooks run in this order, each on what the one before returned:

1. `decoder` on the parts of a raw sample, before the sample object is made;
2. `cookers`, on crude leaves only;
3. `encode_sample`, sample by sample;
4. `batch`, on the samples of one batch;
5. `encode_batch`, on the batch.

A hook that is not overridden costs nothing. Random numbers come from `self.rng`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from energon_grain.datasets.cooker import Cooker
from energon_grain.datasets.draw_context import current_draw
from energon_grain.datasets.field_conversion import convert_fields
from energon_grain.datasets.stateless import stateless
from energon_grain.transforms.batching import batch_samples, generic_batch
from energon_grain.transforms.decode import SampleDecoder

if TYPE_CHECKING:
    import numpy as np


class TaskEncoder:
    """Base of user task encoders: override what the task needs.

    Attributes:
        decoder: Decodes the parts of each sample; None leaves them bytes. A `decoder:` in the dataset's own
            configuration takes precedence.
        cookers: Turn crude samples into samples; for each leaf the first whose `has_subflavors` fit is taken.
        thread_safe: Whether hooks may run in several threads at once. Unless it is True they run one at a time.

    Any hook may raise `SkipSample`. Other exceptions go to `WorkerConfig.global_error_handler`; after
    `__default_failure_tolerance__` failures of one hook in a row the iteration ends with `FatalSampleError`.
    """

    decoder: SampleDecoder | None = SampleDecoder()
    cookers: Sequence[Cooker] = ()
    thread_safe: ClassVar[bool] = False
    __default_failure_tolerance__: ClassVar[int] = 100

    @stateless
    def cook_crude_sample(self, sample: Any, cooker: Cooker, aux: dict[str, Any]) -> Any:
        """Turn a crude sample into a sample with the cooker chosen for its leaf."""
        return cooker.cook(sample, **aux)

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        """Encode one sample. Default: the sample as it is."""
        return sample

    @stateless
    def batch(self, samples: list[Any]) -> Any:
        """Make a batch of samples. Default: `generic_batch`, which pads and stacks arrays and lists all else."""
        return generic_batch(samples)

    @stateless
    def encode_batch(self, batch: Any) -> Any:
        """Encode a batch. Default: the batch as it is."""
        return batch

    @property
    def rng(self) -> np.random.Generator:
        """Random numbers of the running hook's sample (or batch): equal in every run, on every host and worker."""
        return current_draw().rng


class DefaultTaskEncoder(TaskEncoder):
    """Converts between types by field name; all else as in `TaskEncoder`.

    Types may be dataclasses, NamedTuples or `dict`.

    Args:
        encoded_sample_type: What `encode_sample` returns; default: the sample's own type.
        raw_batch_type: What `batch` returns; default: the type of the first sample, its fields batched.
        batch_type: What `encode_batch` returns; default: the raw batch's type.
    """

    def __init__(
        self,
        *,
        encoded_sample_type: type[Any] | None = None,
        raw_batch_type: type[Any] | None = None,
        batch_type: type[Any] | None = None,
    ) -> None:
        self._encoded_sample_type = encoded_sample_type
        self._raw_batch_type = raw_batch_type
        self._batch_type = batch_type

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        """Convert the sample to `encoded_sample_type`."""
        if self._encoded_sample_type is None:
            return sample
        return convert_fields(sample, self._encoded_sample_type)

    @stateless
    def batch(self, samples: list[Any]) -> Any:
        """Batch field by field into `raw_batch_type`; metadata fields become lists, one value a sample."""
        return batch_samples(samples, self._raw_batch_type)

    @stateless
    def encode_batch(self, batch: Any) -> Any:
        """Convert the batch to `batch_type`."""
        if self._batch_type is None or self._batch_type is self._raw_batch_type:
            return batch
        return convert_fields(batch, self._batch_type)


def overridden_hook(task_encoder: TaskEncoder, name: str) -> Any:
    """The encoder's hook when it does something of its own, else None.

    `DefaultTaskEncoder`'s conversions count only when a type was given: a hook that returns its argument is not worth
    a call for each sample.
    """
    hook = getattr(task_encoder, name)
    function = getattr(hook, "__func__", hook)
    if function is getattr(TaskEncoder, name):
        return None
    if function is DefaultTaskEncoder.encode_sample and getattr(task_encoder, "_encoded_sample_type", None) is None:
        return None
    if function is DefaultTaskEncoder.encode_batch and getattr(task_encoder, "_batch_type", None) is None:
        return None
    return hook
