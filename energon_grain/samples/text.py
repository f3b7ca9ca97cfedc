"""Text."""

from __future__ import annotations

from energon_grain.samples.edataclass import edataclass
from energon_grain.samples.sample import Sample


@edataclass
class TextSample(Sample):
    """A text."""

    text: str
