"""Writing a dataset anew in files of another kind: tars as ArrayRecord files, and back."""

from __future__ import annotations

from energon_grain.conversion.convert import ConversionProgress, ConversionReport, convert_dataset

__all__ = ["ConversionProgress", "ConversionReport", "convert_dataset"]
