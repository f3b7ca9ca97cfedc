"""Every error that energon-grain raises on purpose.

    EnergonGrainError
    ├── ConfigError (ValueError)               an argument or a configuration file asks for something impossible
    │   ├── FieldMapError                      a field map does not fit the sample type or the grammar
    │   ├── SplitError                         a split configuration names what does not exist, or selects nothing
    │   ├── HostsError                         the number of hosts does not fit the lanes of the run
    │   ├── RefusedError                       what lies at a path already does not allow what is asked for
    │   └── MissingPackageError (ImportError)  a package that only an extra installs is not there
    ├── DatasetNotFoundError (FileNotFoundError)   no prepared dataset at a path
    ├── FormatError (ValueError)               bytes on disk are not what their format demands
    │   ├── TarError                           a tar file is damaged, or uses what a dataset may not
    │   ├── IndexFileError                      an index file is damaged
    │   │   └── StaleIndexError                an index no longer fits the files that it describes
    │   └── DuplicateKeyError                  two samples of one dataset have the same key
    ├── KeyNotFoundError (KeyError)            a file store has nothing under a key
    ├── EmptyDatasetError (ValueError)         nothing is left to iterate over
    ├── UntrustedCodeError (PermissionError)   a data file asks to run code that the program did not allow
    ├── DecodingError (ValueError)             the bytes of a part do not decode; the sample is skipped by policy
    ├── ReadError (OSError)                    reading failed after retries; never skipped
    │   ├── RangeError                         a file or object ends before the bytes that were asked for
    │   └── MissingObjectError (FileNotFoundError)  an object store has nothing under a name
    ├── StateError (ValueError)                a saved state cannot be used
    │   └── FingerprintError                   a saved state belongs to another configuration or other data
    ├── FatalSampleError (RuntimeError)        too many failures in a row, or a failure that no policy may skip
    ├── WorkerError (RuntimeError)             a worker process died or cannot start, or is another process's
    └── SkipSample                             raised by user hooks to drop the current sample

A message says what happened, where (shard, member, byte offset), the rule, and the way out.
"""

from __future__ import annotations

from typing import Self


class EnergonGrainError(Exception):
    """Base of every error that this library raises on purpose."""


class ConfigError(EnergonGrainError, ValueError):
    """An argument or a configuration file asks for something impossible."""


class FieldMapError(ConfigError):
    """A field map does not fit the sample type, or breaks the grammar."""


class SplitError(ConfigError):
    """A split configuration names what does not exist, or selects nothing."""


class HostsError(ConfigError):
    """The number of hosts does not fit the lanes of the run."""


class RefusedError(ConfigError):
    """What lies at a path already does not allow what is asked for: it is prepared, being prepared, or not empty."""


class MissingPackageError(ConfigError, ImportError):
    """A package that only an extra of this library installs is not there; the message names the extra."""


class DatasetNotFoundError(EnergonGrainError, FileNotFoundError):
    """There is no prepared dataset at a path."""


class FormatError(EnergonGrainError, ValueError):
    """Bytes on disk are not what their format demands."""


class TarError(FormatError):
    """A tar file is damaged, or uses a feature that a dataset may not use."""


class IndexFileError(FormatError):
    """An index file is damaged."""


class StaleIndexError(IndexFileError):
    """An index no longer fits the files that it describes."""


class DuplicateKeyError(FormatError):
    """Two samples of one dataset have the same key."""


class KeyNotFoundError(EnergonGrainError, KeyError):
    """A file store has nothing under a key."""

    def __str__(self) -> str:
        # A KeyError shows the representation of its argument, which for a sentence is wrong.
        return Exception.__str__(self)


class EmptyDatasetError(EnergonGrainError, ValueError):
    """Nothing is left to iterate over."""


class UntrustedCodeError(EnergonGrainError, PermissionError):
    """A data file asks to run code that the program did not allow."""


class DecodingError(EnergonGrainError, ValueError):
    """The bytes of a part do not decode. The sample is handled by the error policy."""


class ReadError(EnergonGrainError, OSError):
    """Reading failed after retries. Never skipped: a hiccup of a disk must not change the stream."""


class RangeError(ReadError):
    """A file or an object ends before the bytes that were asked for."""


class MissingObjectError(ReadError, FileNotFoundError):
    """An object store has nothing under a name."""


class StateError(EnergonGrainError, ValueError):
    """A saved state cannot be used."""


class FingerprintError(StateError):
    """A saved state belongs to another configuration or to other data."""


class FatalSampleError(EnergonGrainError, RuntimeError):
    """Too many failures in a row, or a failure that no policy may skip. Hooks may raise it to end the iteration."""

    @classmethod
    def from_sample(cls, sample: object, message: str = "") -> Self:
        """An error that names a sample by its key.

        Args:
            sample: A sample, crude or not, or a batch.
            message: What is wrong with it.
        """
        key = sample.get("__key__") if isinstance(sample, dict) else getattr(sample, "__key__", None)
        return cls(f"{type(sample).__name__} {key!r} failed{': ' if message else ''}{message}")


class WorkerError(EnergonGrainError, RuntimeError):
    """A worker process died or could not start; or workers are those of the process that this one was forked from."""


class SkipSample(EnergonGrainError):  # noqa: N818 (Energon's public name)
    """Raised by a user hook to drop the current sample. Counted, never logged as a failure."""
