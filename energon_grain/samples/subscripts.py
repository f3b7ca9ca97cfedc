# SPDX-License-Identifier: Apache-2.0
"""Classes that accept type arguments, as in `SavableDataset[Batch]` or `TaskEncoder[Raw, Encoded, RawBatch, Batch]`.

Arguments are only for readers and type checkers. Missing arguments are `Any`. The last argument of a task encoder is
the type of the items of the dataset and the loader.
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
        """Accepts one type argument: the type of its items."""

        __slots__ = ()

    class FourSubscripts(Generic[RawSample, EncodedSample, RawBatch, EncodedBatch]):
        """Accepts four: raw sample, encoded sample, raw batch, encoded batch."""

else:
    from typing import TypeVar

    Item = TypeVar("Item", covariant=True)
    RawSample = TypeVar("RawSample")
    EncodedSample = TypeVar("EncodedSample")
    RawBatch = TypeVar("RawBatch")
    EncodedBatch = TypeVar("EncodedBatch")

    class OneSubscript:
        """Accepts one type argument: the type of its items."""

        __slots__ = ()
        __class_getitem__ = classmethod(GenericAlias)

    class FourSubscripts:
        """Accepts four: raw sample, encoded sample, raw batch, encoded batch."""

        __class_getitem__ = classmethod(GenericAlias)
