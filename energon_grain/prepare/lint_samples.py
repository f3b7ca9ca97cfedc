# SPDX-License-Identifier: Apache-2.0
"""Check data that are read directly: read and decode every sample, and compare measured columns."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from energon_grain.prepare.lint import LintFinding, LintReport, about_columns, opened
from energon_grain.sources.kinds import Kind, LintAsk, Opened
from energon_grain.sources.remote_runs import ReadInBlocks
from energon_grain.sources.source import Source
from energon_grain.transforms.decode import ColumnDecoder, SampleDecoder

_AT_ONCE = 256


def lint_samples(kind: Kind, path: str, ask: LintAsk) -> LintReport:
    """Read all samples at a path, decode their parts, and compare measured columns."""
    assert kind.open is not None
    findings: list[LintFinding] = []
    found = opened(path, findings, partial(kind.open, path, None))
    if found is None:
        return LintReport.of(path, findings, shards=0, samples=0)
    source = found.source
    decode = _decoder(found, ask)
    for rows in _runs(source):
        for sample in opened(path, findings, partial(source.read, rows)) or ():
            try:
                decode({part: data for part, data in sample.parts.items() if isinstance(data, bytes)})
            except Exception as error:  # decoders may raise any exception
                findings.append(LintFinding(where=source.place_of(sample.index), what=f"{error}"))
        ask.progress(int(rows[0]), len(source), len(findings), "samples")
    if not kind.takes_no_columns:
        opened(path, findings, lambda: findings.extend(about_columns(path, ask.trusted_modules)))
    return LintReport.of(path, findings, shards=len(found.rows.shard_counts), samples=len(source))


def _decoder(found: Opened, ask: LintAsk) -> ColumnDecoder | SampleDecoder:
    decoder = SampleDecoder(image_decode="rgb8", allow_pickle=ask.allow_pickle or None)
    return ColumnDecoder(decoder, found.endings) if found.endings else decoder


def _runs(source: Source) -> Iterator[Any]:
    """Indices of samples to read together; each run is within one block if the source reads blocks."""
    starts = source.block_starts().tolist() if isinstance(source, ReadInBlocks) else [0, len(source)]
    for first, stop in pairwise(starts):
        for begin in range(first, stop, _AT_ONCE):
            yield np.arange(begin, min(begin + _AT_ONCE, stop))
