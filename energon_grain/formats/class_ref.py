# SPDX-License-Identifier: Apache-2.0
"""Code that a data file names: resolved among our own names and trusted modules, never just imported."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Collection
from typing import Any, Literal

import msgspec

from energon_grain.errors import ConfigError, UntrustedCodeError
from energon_grain.forms import did_you_mean
from energon_grain.lazy_names import PACKAGES
from energon_grain.samples.sample import Sample
from energon_grain.storage.epath import EPath

TRUST_ENVIRONMENT = "ENERGON_GRAIN_TRUSTED_MODULES"
"""Modules that every dataset of the process may name, like `trusted_modules`, for programs that cannot pass it."""
_OUR_MODULES = ("megatron.energon", "energon_grain")


class ClassRef(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A class by module and name, as `__module__` and `__class__` in a YAML file. Parsing one imports nothing."""

    module: str = msgspec.field(name="__module__")
    name: str = msgspec.field(name="__class__")

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"

    @property
    def is_ours(self) -> bool:
        """Whether it names an object of Energon, or of energon-grain, which has the same names."""
        return _is_inside(self.module, _OUR_MODULES)


def _is_inside(module: str, packages: Collection[str]) -> bool:
    """Whether `module` is one of `packages` or inside one."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def resolve_class(
    ref: ClassRef, *, trusted_modules: Collection[str] = (), where: str = "the configuration"
) -> type[Any]:
    """Return the class that `ref` names.

    Names anywhere below `megatron.energon` are looked up among the public names of energon_grain, by class name only.
    Modules in `trusted_modules`, and those inside them, are imported. A sample type that the program has defined or
    imported needs no trust. `where` is the place of the reference in messages. Raises ConfigError and
    UntrustedCodeError.
    """
    return _resolve(ref, "class", trusted_modules, where)


def resolve_function(
    ref: ClassRef, *, trusted_modules: Collection[str] = (), where: str = "the configuration"
) -> Callable[..., Any]:
    """Return the function that `ref` names: one of ours, or from a module in `trusted_modules` (or inside one).

    Raises ConfigError and UntrustedCodeError.
    """
    return _resolve(ref, "function", trusted_modules, where)


def function_beside(
    written: str, folder: str, default: str, *, trusted_modules: Collection[str], where: str
) -> Callable[..., Any]:
    """Run a file beside the data, and return a function from it.

    Pickles contain the function itself, so other processes do not need the file.

    Raises ConfigError if the file or function does not exist or the file cannot be run, and UntrustedCodeError if the
    program does not trust it.
    """
    file, _, name = written.partition(":")
    if file not in _trusted(trusted_modules):
        raise UntrustedCodeError(
            f"{where} names code that is stored beside the data, which is not run unless the program trusts it: pass "
            f"trusted_modules=[{file!r}] (commands: --trust-module {file})"
        )
    path = EPath(folder) / file
    module: dict[str, Any] = {"__name__": os.path.splitext(path.name)[0], "__file__": str(path)}
    try:
        if path.parent != EPath(folder):
            raise ConfigError("it must be directly in that folder")
        exec(compile(path.read_bytes(), str(path), "exec"), module)
        found = module[name or default]
    except Exception as error:
        raise ConfigError(
            f"{where}: loading the trusted `{written}` in {folder} failed: {type(error).__name__}: {error}"
        ) from error
    if not callable(found):
        raise ConfigError(f"{where}: the trusted {file!r} has no function {name or default!r}")
    return found


def imported(written: str, where: str, kind: Literal["Class", "function"]) -> Any:
    """Import what an option or argument names as `package.module:name`; `where` is the prefix of errors.

    Raises ConfigError if the text has another form, the module cannot be imported, or lacks the name.
    """
    module, _, name = written.partition(":")
    if not (module and name):
        raise ConfigError(f"{where}: {written!r} is not the name of a {kind.lower()}; write module:{kind}")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        folder = module.partition(".")[0]
        way_out = f". Run the program in the folder of {folder}, or install it" if error.name == folder else ""
        raise ConfigError(f"{where}: {module} cannot be imported: {error}{way_out}") from error
    for step in name.split("."):
        found = getattr(found, step, None)
    if found is None:
        raise ConfigError(f"{where}: the module {module} has no {kind.lower()} {name!r}")
    return found


def _trusted(modules: Collection[str]) -> tuple[str, ...]:
    return (*modules, *os.environ.get(TRUST_ENVIRONMENT, "").replace(",", " ").split())


def _resolve(ref: ClassRef, kind: Literal["class", "function"], trusted_modules: Collection[str], where: str) -> Any:
    trusted_modules = _trusted(trusted_modules)
    fits = callable if kind == "function" else (lambda found: isinstance(found, type))
    if _is_inside(ref.module, trusted_modules):
        found = imported(f"{ref.module}:{ref.name}", where, "Class" if kind == "class" else "function")
        if not fits(found):
            raise ConfigError(f"{where}: the module {ref.module} has no {kind} {ref.name!r}")
        return found
    if ref.is_ours:
        look_up = PACKAGES["energon_grain"]
        public: list[str] = look_up("__all__")
        found = look_up(ref.name) if ref.name in public else None
        if not fits(found):
            raise ConfigError(
                f"{where}: energon_grain, which replaces `{ref.module}`, has no {kind} `{ref.name}`"
                f"{did_you_mean(ref.name, public) or '.'}"
            )
        return found
    # Sample types that the program knows. Not by `getattr`: modules may import others when a name is accessed.
    names = vars(sys.modules[ref.module]) if ref.module in sys.modules and kind == "class" else {}
    known = {name: found for name, found in names.items() if isinstance(found, type) and issubclass(found, Sample)}
    if ref.name in known:
        return known[ref.name]
    way_out = ", or import it in the program, if it is a sample type" if kind == "class" else ""
    if names:
        hint = did_you_mean(ref.name, known)
        way_out += f". {ref.module} is imported, but has no sample type {ref.name!r}{hint}"
    raise UntrustedCodeError(
        f"{where} names the {kind} `{ref}`. Code that a data file names is not imported unless the program trusts it: "
        f"pass trusted_modules=[{ref.module!r}] (commands: --trust-module {ref.module}){way_out}"
    )
