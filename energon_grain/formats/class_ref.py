"""Classes that a data file names: resolved against our own and what the program declared, never just imported."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import energon_grain
from energon_grain.errors import ConfigError, UntrustedCodeError
from energon_grain.samples.sample import Sample

_OUR_MODULES = ("megatron.energon", "energon_grain")


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassRef:
    """A class by module and name, as `__module__` and `__class__` in a YAML file. Reading one imports nothing."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"

    @property
    def is_ours(self) -> bool:
        """Whether it names something of Energon, or of energon-grain, which has the same names."""
        return is_inside(self.module, _OUR_MODULES)


def is_inside(module: str, packages: Collection[str]) -> bool:
    """Say whether `module` is one of `packages` or lies in one."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def resolve_class(
    ref: ClassRef, *, trusted_modules: Collection[str] = (), where: str = "the configuration"
) -> type[Any]:
    """Return the class that `ref` names.

    Names anywhere below `megatron.energon` are looked up among the public names of energon_grain, by class name alone.
    Modules in `trusted_modules`, and those inside them, are imported. A sample type that the program has defined or
    imported is known without that. `where` names the place of the reference in messages.

    Raises:
        ConfigError: There is no such class.
        UntrustedCodeError: The module is neither Energon's nor trusted.
    """
    if is_inside(ref.module, trusted_modules):
        return _import_class(ref, where)
    if not ref.is_ours:
        known = _known_sample_type(ref)
        if known is None:
            raise UntrustedCodeError(
                f"{where} names the class `{ref}`. Code that a data file names is not imported unless the "
                f"program says so: pass trusted_modules=[{ref.module!r}] (commands: --trust-module {ref.module}), "
                f"or import it there, if it is a sample type{_imported_without(ref)}"
            )
        return known
    public: list[str] = list(getattr(energon_grain, "__all__", ()))
    found: Any = getattr(energon_grain, ref.name, None) if ref.name in public else None
    if not isinstance(found, type):
        close = difflib.get_close_matches(ref.name, public, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ConfigError(
            f"{where}: there is no class `{ref.name}` in energon_grain, which stands for `{ref.module}`.{hint}"
        )
    return found


def resolve_function(
    ref: ClassRef, *, trusted_modules: Collection[str] = (), where: str = "the configuration"
) -> Callable[..., Any]:
    """Return the function that `ref` names: one of ours, or of a module in `trusted_modules` (or inside one).

    Raises:
        ConfigError: There is no such function.
        UntrustedCodeError: The module is neither Energon's nor trusted.
    """
    if is_inside(ref.module, trusted_modules):
        try:
            found: Any = getattr(importlib.import_module(ref.module), ref.name, None)
        except ImportError as error:
            raise _not_importable(ref, where, error) from error
    elif not ref.is_ours:
        raise UntrustedCodeError(
            f"{where} names the function `{ref}`. Code that a data file names is not imported unless the "
            f"program says so: pass trusted_modules=[{ref.module!r}] (commands: --trust-module {ref.module})"
        )
    else:
        found = getattr(energon_grain, ref.name, None) if ref.name in energon_grain.__all__ else None
    if not callable(found):
        raise ConfigError(f"{where}: there is no function `{ref.name}` in `{ref.module}`")
    return found


def _known_sample_type(ref: ClassRef) -> type[Sample] | None:
    # Not by `getattr`: modules may import others when they are asked for a name.
    return _imported_sample_types(ref.module).get(ref.name)


def _imported_sample_types(module: str) -> dict[str, type[Sample]]:
    names = vars(sys.modules[module]) if module in sys.modules else {}
    return {name: found for name, found in names.items() if isinstance(found, type) and issubclass(found, Sample)}


def _imported_without(ref: ClassRef) -> str:
    """What to add where the program has imported the module, but there is no sample type of that name in it."""
    if ref.module not in sys.modules:
        return ""
    close = difflib.get_close_matches(ref.name, _imported_sample_types(ref.module), n=1)
    hint = f". Did you mean {close[0]!r}?" if close else ""
    return f". {ref.module} is imported, and has no sample type {ref.name!r}{hint}"


def _not_importable(ref: ClassRef, where: str, error: ImportError) -> ConfigError:
    return ConfigError(f"{where}: the trusted module of `{ref}` cannot be imported: {error}")


def _import_class(ref: ClassRef, where: str) -> type[Any]:
    try:
        found: Any = getattr(importlib.import_module(ref.module), ref.name, None)
    except ImportError as error:
        raise _not_importable(ref, where, error) from error
    if not isinstance(found, type):
        raise ConfigError(f"{where}: the trusted module {ref.module!r} has no class {ref.name!r}")
    return found
