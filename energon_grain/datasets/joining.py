"""Making one sample of the samples of a join."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from energon_grain.errors import ConfigError
from energon_grain.formats.class_ref import resolve_class, resolve_function
from energon_grain.metadataset.joins import Joiner
from energon_grain.samples.sample import Sample
from energon_grain.samples.types import CrudeSample

_METADATA = ("__key__", "__restore_key__", "__subflavors__", "__sources__", "__shard__")


@dataclass(frozen=True, slots=True)
class JoinRow:
    """A joiner, as a function of a row.

    Attributes:
        function: The user's, or a sample type's `from_joined`.
        names: Keywords that it gets its samples by; None: by position.
        sample_type: What it makes, as far as is known; None: crude samples.
        merges: Whether it is the default merge, of fields by name into `sample_type` or of the parts of crude samples.
    """

    function: Callable[..., Any]
    names: tuple[str, ...] | None
    sample_type: type[Any] | None
    merges: bool = False

    def __call__(self, row: tuple[Any, ...]) -> Any:
        """The sample of a row, whose missing samples are None."""
        if self.names is None:
            return self.function(*row)
        return self.function(**dict(zip(self.names, row, strict=True)))


def bind_joiner(
    joiner: Joiner | None,
    *,
    types: Sequence[type[Any] | None],
    fields: Sequence[str] = (),
    names: Sequence[str | None],
    trusted_modules: Collection[str],
    where: str,
) -> JoinRow:
    """What makes the sample of a row.

    Args:
        joiner: What the configuration names. None: the default merge, into the primary's own type, or of crude samples
            into one that has the parts of all.
        types: Sample type of each dataset; None for a crude one.
        fields: What the default merge calls the rows of each array.
        names: Under which keyword the joiner gets each dataset and array; None: by position.
        trusted_modules: Modules that may be imported for it.
        where: Place of the join, for messages.

    Raises:
        ConfigError: There is no such class or function, or it cannot join these datasets.
        UntrustedCodeError: Its module is neither ours nor trusted.
    """
    keywords = None if None in names else tuple(str(name) for name in names)
    if joiner is None:
        return _default(types, fields, keywords, where)
    function: Any = joiner.target
    if function is None:
        assert joiner.ref is not None
        resolve = resolve_function if joiner.is_function else resolve_class
        function = resolve(joiner.ref, trusted_modules=trusted_modules, where=f"{where}: the joiner")
    if joiner.is_function:
        return JoinRow(function, keywords, object)
    from_joined = getattr(function, "from_joined", None)
    if from_joined is None:
        raise ConfigError(
            f"{where}: {function.__name__} has no `from_joined`; a joiner is a sample type that has one, or a function "
            f"(`__function__`)"
        )
    if not is_default_merge(from_joined):
        return JoinRow(from_joined, keywords, function)
    if keywords is not None and len(types) > 1:
        raise ConfigError(
            f"{where}: the datasets are joined by name, but {function.__name__} has no `from_joined` of its own that "
            f"takes {', '.join(keywords)}; write one, or list the datasets without names"
        )
    return _merge(function, fields, where)


def is_default_merge(from_joined: Any) -> bool:
    """Whether it is `Sample`'s, which no subclass has replaced."""
    return getattr(from_joined, "__func__", from_joined) is getattr(Sample.from_joined, "__func__", None)


def _default(
    types: Sequence[type[Any] | None], fields: Sequence[str], keywords: tuple[str, ...] | None, where: str
) -> JoinRow:
    if keywords is not None and len(types) > 1:
        raise ConfigError(
            f"{where}: the datasets are joined by name, and no `joiner` takes {', '.join(keywords)}; name one, or list "
            f"the datasets without names"
        )
    primary = types[0]
    if primary is not None:
        if is_default_merge(primary.from_joined):
            return _merge(primary, fields, where)
        return JoinRow(primary.from_joined, keywords, primary)
    if any(each is not None for each in types):
        raise ConfigError(
            f"{where}: the first dataset is crude and others are not, so no type of sample is known; name a `joiner`"
        )
    return JoinRow(merge_crude, None, None, merges=True)


def _merge(sample_type: type[Any], fields: Sequence[str], where: str) -> JoinRow:
    """The default merge into a sample type."""
    known = {field.name for field in dataclasses.fields(sample_type)}
    for name in fields:
        if name not in known:
            raise ConfigError(
                f"{where}: {sample_type.__name__} has no field {name!r} for the rows of the array; say at the array "
                "which `field` they are, or name a `joiner`"
            )
    return JoinRow(sample_type.from_joined, None, sample_type, merges=True)


def merge_crude(*samples: CrudeSample | None) -> CrudeSample:
    """The parts of all crude samples in one; of parts with equal names the last counts. Key and tags are the first's.

    Raises:
        TypeError: The first sample is missing.
    """
    primary = samples[0]
    if primary is None:
        raise TypeError("the primary sample of a join must not be missing")
    merged = CrudeSample(primary)
    for sample in samples[1:]:
        if sample is not None:
            merged.update({name: value for name, value in sample.items() if name not in _METADATA})
    sources = [sample["__sources__"] for sample in samples if sample is not None and sample["__sources__"]]
    for more in sources[1:]:
        sources[0] = sources[0] + more
    merged["__sources__"] = sources[0] if sources else ()
    return merged
