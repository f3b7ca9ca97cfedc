"""Classes that take type arguments, as in `SavableDataset[TextSample]` or `TaskEncoder[A, B, C, D]`.

Arguments are for readers and type checkers alone; any that is left out is `Any`.
"""

from __future__ import annotations

from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Item = TypeVar("Item", default=Any)
    RawSample = TypeVar("RawSample", default=Any)
    EncodedSample = TypeVar("EncodedSample", default=Any)
    RawBatch = TypeVar("RawBatch", default=Any)
    EncodedBatch = TypeVar("EncodedBatch", default=Any)

    class OneSubscript(Generic[Item]):
        """Takes one type argument: what the dataset yields."""

        __slots__ = ()

    class FourSubscripts(Generic[RawSample, EncodedSample, RawBatch, EncodedBatch]):
        """Takes four: raw sample, encoded sample, raw batch, encoded batch."""

else:
    from typing import TypeVar

    RawSample = TypeVar("RawSample")
    EncodedSample = TypeVar("EncodedSample")
    RawBatch = TypeVar("RawBatch")
    EncodedBatch = TypeVar("EncodedBatch")

    class OneSubscript:
        """Takes one type argument: what the dataset yields."""

        __slots__ = ()
        __class_getitem__ = classmethod(GenericAlias)

    class FourSubscripts:
        """Takes four: raw sample, encoded sample, raw batch, encoded batch."""

        __class_getitem__ = classmethod(GenericAlias)
