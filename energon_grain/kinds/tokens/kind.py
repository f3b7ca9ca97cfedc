# SPDX-License-Identifier: Apache-2.0
"""Megatron-LM's indexed datasets as a kind of data."""

from __future__ import annotations

from os.path import isfile

from energon_grain.kinds.tokens.source import PART, TokenRows
from energon_grain.kinds.tokens.summary import summarize_tokens
from energon_grain.sources.kinds import Kind, Listing, Opened
from energon_grain.sources.source import PartFilter


def _open(location: str, parts: PartFilter) -> Opened:
    return Opened(rows=TokenRows(location, parts=parts), part_names=(PART,), decoded="never")


def _are_two_files(at: Listing) -> bool:
    return not at.is_url and isfile(f"{at.location}.idx") and isfile(f"{at.location}.bin")


TOKENS = Kind(
    name="tokens",
    described="a Megatron indexed dataset",
    open=_open,
    endings=(".bin", ".idx"),
    marked=_are_two_files,
    takes_no_columns=", which cannot get additional columns; write the numbers into the dataset",
    summary=summarize_tokens,
)
