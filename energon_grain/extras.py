# SPDX-License-Identifier: Apache-2.0
"""Packages that not everybody needs: which extra of `pip install 'energon-grain[…]'` brings each.

The core asks for none of them. They are imported where they are used, inside `needed_for`, which names a missing extra.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from energon_grain.errors import MissingPackageError

EXTRAS = {
    "grain": "jax",
    "jax": "jax",
    "orbax": "jax",
    "array_record": "array-record",
    "cramjam": "array-record",
    "tensorstore": "arrays",
    "pyarrow": "parquet",
    "torch": "torch",
    "torchvision": "torchvision",
    "av": "av",
    "nvidia": "nvimgcodec",
    "msgpack": "codecs",
    "cbor2": "codecs",
    "ray": "ray",
    "boto3": "aws",
    "urllib3": "hf",
    "multistorageclient": "msc",
    "matplotlib": "viz",
    "prometheus_client": "prometheus",
}
"""Package, as it is imported, to the smallest extra that brings it."""


@contextmanager
def needed_for(purpose: str, *, instead: str = "") -> Generator[None]:
    """Around imports: where one of `EXTRAS` is not installed, the error says what it is for and how to get it.

    A package that is there and fails to import is none of our business: its own error passes.

    Args:
        purpose: What is done with it, as the beginning of a sentence: "reading arrays".
        instead: What else helps, as the end of one: "leave the part out".

    Raises:
        MissingPackageError: It is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise MissingPackageError(
            f"{purpose} needs the package {package}, which is not installed: "
            f"pip install 'energon-grain[{EXTRAS[package]}]' (in a clone: pip install '.[{EXTRAS[package]}]')"
            f"{f', or {instead}' if instead else ''}"
        ) from error
