# SPDX-License-Identifier: Apache-2.0
"""The suspects of `blame` as cards, each beside its neighbour in the same shard."""

from __future__ import annotations

from energon_grain.gallery.cards import gather_named
from energon_grain.gallery.preview import MEDIA_BYTES, Preview
from energon_grain.history.suspects import Blame, Suspect, chance_text
from energon_grain.sources.source import Source
from energon_grain.stream.spec import StreamSpec


def suspects_preview(spec: StreamSpec, blame: Blame, *, title: str, media_bytes: int = MEDIA_BYTES) -> Preview:
    """Read the suspects and their neighbours, to show or save.

    Args:
        spec: The compiled dataset of the run.
        blame: The answer, with at least one sample.
        title: Name of the dataset.
        media_bytes: Largest file in a page.
    """
    suspects = [(each.leaf, each.index, _about(each)) for each in blame.samples]
    neighbours = [
        (each.leaf, _neighbour(spec.leaves[each.leaf].leaf.source, each.index), "neighbour in the same shard")
        for each in blame.samples
    ]
    return Preview(
        gather_named(spec, suspects, title=title, heading="Suspects", most_bytes=media_bytes),
        gather_named(spec, neighbours, title=title, heading="Neighbours", most_bytes=media_bytes),
    )


def _about(suspect: Suspect) -> str:
    steps = ", ".join(f"{step:,}" for step in suspect.steps[:6])
    return f"by chance {chance_text(suspect.chance)}" + (f", steps {steps}" if steps else "")


def _neighbour(source: Source, index: int) -> int:
    """The next sample, or at the end of a shard the one before; the sample itself, if it is alone in its shard."""
    shard = source.locate(index).shard
    near = (index + 1, index - 1)
    return next((at for at in near if 0 <= at < len(source) and source.locate(at).shard == shard), index)
