"""Classes that a configuration names and that the program must declare."""

from __future__ import annotations

from energon_grain.formats.class_ref import ClassRef, is_inside
from energon_grain.migration.finding import Finding
from energon_grain.migration.options import CheckOptions


def untrusted(where: str, ref: ClassRef, options: CheckOptions) -> Finding | None:
    """Make the finding for a class or function of the user's own; None where it is ours or trusted."""
    if ref.is_ours or is_inside(ref.module, options.trusted_modules):
        return None
    return Finding(
        severity="error",
        where=where,
        what=f"`{ref}` is code of yours.",
        energon="imports whatever a data file names",
        here="refused, unless the program says that it trusts the module",
        advice=f"pass trusted_modules=[{ref.module!r}] to get_train_dataset, or import it in the program, if it is a "
        f"sample type; here, --trust-module {ref.module}",
    )
