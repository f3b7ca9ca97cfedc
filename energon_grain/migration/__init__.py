"""Moving over from Energon: what of a dataset or metadataset will be refused here, or behave differently."""

from __future__ import annotations

from energon_grain.migration.check import migration_findings
from energon_grain.migration.finding import Finding, Severity

__all__ = ["Finding", "Severity", "migration_findings"]
