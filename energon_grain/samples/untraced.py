"""What stands for strings and numbers of a batch while JAX compiles a function of it."""

from __future__ import annotations

from typing import Any, NoReturn


class Untraced:
    """Static data inside a JAX trace. Any use raises a TypeError that says what to do.

    A compiled function runs for batches with other texts and numbers than the one it was traced with, so whatever it
    read from them would be stale.
    """

    __slots__ = ("_where",)

    def __init__(self, where: str) -> None:
        self._where = where

    def __repr__(self) -> str:
        return f"<{self._where}, not available inside jax.jit>"

    def _refuse(self, *_: Any) -> NoReturn:
        raise TypeError(
            f"{self._where} is no array, so a function under jax.jit cannot see it: it would keep the value of the "
            "first batch. Make it an array in encode_sample or encode_batch, or use it outside of the function"
        )

    __array__ = __jax_array__ = __iter__ = __len__ = __getitem__ = __contains__ = __bool__ = __call__ = _refuse
    __int__ = __float__ = __index__ = __str__ = __format__ = __eq__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __neg__ = _refuse
    __hash__ = None  # type: ignore[assignment]
