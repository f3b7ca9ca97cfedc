"""What lint finds, and how far it is."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, Self, TypeVar, get_args

from energon_grain.errors import EmptyDatasetError, EnergonGrainError, ReadError

T = TypeVar("T")
Severity = Literal["error", "warning", "note"]
"""`error`: a loader refuses it, or drops the sample. `warning`: it loads, and probably is not what was meant.
`note`: good to know, such as what was not looked at."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LintFinding:
    """One thing that is wrong, or that one should know.

    Attributes:
        severity: See `Severity`.
        where: Of what a dataset holds, its name there: `shard_000.tar`, `shard_000.tar/<key>`, `x.jsonl:<line>`. Else
            the path of the dataset, or of a file with the place in it: `coco/.nv-meta/dataset.yaml: $.field_map`.
        what: What is wrong there.
        way_out: What to do, where `what` does not say it already.
    """

    severity: Severity = "error"
    where: str
    what: str
    way_out: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" + (f"; {self.way_out}" if self.way_out else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class LintProgress:
    """How far lint is: shards compared with their index, or samples decoded."""

    stage: Literal["index", "samples"]
    done: int
    total: int
    findings: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LintReport:
    """What lint looked at and found.

    Attributes:
        root: The dataset or metadataset, its path or URL.
        shards: Shards that were compared with their indices.
        samples: Samples that were decoded.
        findings: Errors first, then warnings, then notes; each in the order of shards, those about indices first.
    """

    root: str
    shards: int
    samples: int
    findings: tuple[LintFinding, ...]

    @classmethod
    def of(cls, root: str, findings: Iterable[LintFinding], *, shards: int, samples: int) -> Self:
        """Make a report of findings in any order; those that come again are left out."""
        order = get_args(Severity).index
        ordered = sorted(dict.fromkeys(findings), key=lambda finding: order(finding.severity))
        return cls(root=root, shards=shards, samples=samples, findings=tuple(ordered))


def opened(
    where: str,
    findings: list[LintFinding],
    open_it: Callable[[], T],
    *,
    empty: Severity = "error",
    raised: type[Exception] | tuple[type[Exception], ...] = ReadError,
) -> T | None:
    """Open something; where that raises an error, note it and return None. Note the warnings that it logs, too.

    Args:
        where: What is opened: a path or URL, or a place in a document. A message that begins with this file, or one
            below this folder, is a finding of what it names.
        findings: They are added here.
        open_it: Opens it.
        empty: How bad it is that nothing is left of it.
        raised: Errors that are no findings; a store that stays away says nothing of the data in it.
    """
    named = re.compile(rf"({re.escape(where.split(': $')[0])}\S*?(?:: \$\S*?)?): (.*)", re.DOTALL)

    def note(severity: Severity, what: str) -> None:
        said = named.match(what)
        place, what = said.groups() if said else (where, what)
        findings.append(LintFinding(severity=severity, where=place, what=what))

    logger, log = logging.getLogger("energon_grain"), _Log(logging.WARNING)
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(log)
    try:
        return open_it()
    except raised:
        raise
    except EmptyDatasetError as error:
        note(empty, str(error))
    except EnergonGrainError as error:
        note("error", str(error))
    finally:
        logger.removeHandler(log)
        logger.propagate = propagated
        for message in log.messages:
            note("warning", message)
    return None


class _Log(logging.Handler):
    """Keeps messages."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
