"""Writing a dataset anew in files of another kind: tars as ArrayRecord files, and back."""

from __future__ import annotations

from energon_grain.conversion.convert import convert_dataset
from energon_grain.conversion.report import ConversionProgress, ConversionReport

__all__ = ["ConversionProgress", "ConversionReport", "convert_dataset"]
