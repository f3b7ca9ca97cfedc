"""Start-up of Megatron-Energon's own tests on this package: a pytest plugin (`-p energon_suite_plugin`).

Test modules of Energon import names at their heads that a few of their tests use. Of those that there are not here,
they get something that says so when it is used, so that the other tests run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import energon_grain_torch.as_megatron_energon  # noqa: F401

OURS = sys.meta_path[0]


class Missing(ModuleType):
    """What is not here, as a module, a function or a base class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self.__name__}.{name}")

    def __call__(self, *_: Any, **__: Any) -> Any:
        if self.__name__.startswith("megatron.energon.media."):
            return None  # so that datasets are prepared without metadata of media, which few tests ask for
        raise NotImplementedError(self.__name__)

    def __mro_entries__(self, _: tuple[Any, ...]) -> tuple[type, ...]:
        return ()

    def __getitem__(self, _: Any) -> Missing:
        return self

    def __reduce__(self) -> Any:
        return Missing, (self.__name__,)


class MissingFinder(MetaPathFinder, Loader):
    """Finds what the finder of the package refuses."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        try:
            return OURS.find_spec(fullname, path, target)  # type: ignore[union-attr]
        except ImportError:
            return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Missing(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


sys.meta_path.insert(0, MissingFinder())
