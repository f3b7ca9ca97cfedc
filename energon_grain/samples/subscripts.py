# SPDX-License-Identifier: Apache-2.0
"""Classes that take type arguments, as in `SavableDataset[Batch]` or `TaskEncoder[Raw, Encoded, RawBatch, Batch]`.

Arguments are for readers and type checkers alone; any that is left out is `Any`. What a task encoder names last is what
the dataset and the loader yield.
"""

from __future__ import annotations

from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Item = TypeVar("Item", default=Any, covariant=True)
    RawSample = TypeVar("RawSample", default=Any)
    EncodedSample = TypeVar("EncodedSample", default=Any)
    RawBatch = TypeVar("RawBatch", default=Any)
    EncodedBatch = TypeVar("EncodedBatch", default=Any)

    class OneSubscript(Generic[Item]):
        """Takes one type argument: what comes out of it."""

        __slots__ = ()

    class FourSubscripts(Generic[RawSample, EncodedSample, RawBatch, EncodedBatch]):
        """Takes four: raw sample, encoded sample, raw batch, encoded batch."""

else:
    from typing import TypeVar

    Item = TypeVar("Item", covariant=True)
    RawSample = TypeVar("RawSample")
    EncodedSample = TypeVar("EncodedSample")
    RawBatch = TypeVar("RawBatch")
    EncodedBatch = TypeVar("EncodedBatch")

    class OneSubscript:
        """Takes one type argument: what comes out of it."""

        __slots__ = ()
        __class_getitem__ = classmethod(GenericAlias)

    class FourSubscripts:
        """Takes four: raw sample, encoded sample, raw batch, encoded batch."""

        __class_getitem__ = classmethod(GenericAlias)
