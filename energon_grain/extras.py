# SPDX-License-Identifier: Apache-2.0
"""Optional packages, and the extra of `pip install 'energon-grain[…]'` that installs each.

The core does not need them. They are imported on use, inside `needed_for`, which names the missing extra.
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
"""Import name of a package to the smallest extra that installs it."""


@contextmanager
def needed_for(purpose: str, *, instead: str = "") -> Generator[None]:
    """Wrap imports: if one of `EXTRAS` is not installed, the error names its purpose and the command that installs it.

    An installed package that fails to import raises its own error.

    Args:
        purpose: The task that needs the package, as the start of a sentence: "reading arrays".
        instead: An alternative, as the end of a sentence: "leave the part out".

    Raises:
        MissingPackageError: The package is not installed.
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
