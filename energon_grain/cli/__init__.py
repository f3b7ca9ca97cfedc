# SPDX-License-Identifier: Apache-2.0
"""The `energon-grain` command."""

from __future__ import annotations

import os
import sys

from energon_grain.cli.app import app
from energon_grain.errors import ConfigError, EnergonGrainError, RefusedError
from energon_grain.words import visible


def main() -> None:
    """Run the command line; errors of ours and of the system are one red line on stderr.

    Exit code 2 says that the arguments or a configuration file are wrong, 1 that the command was refused or failed.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # no command does linear algebra, and its threads cost start-up
    try:
        app(prog_name="energon-grain")  # which completion goes by, however it was started
    except (EnergonGrainError, OSError) as error:
        import typer

        said = "\n".join([str(error), *getattr(error, "__notes__", [])])
        typer.secho(f"Error: {visible(said, lines=True)}", fg=typer.colors.RED, err=True)
        sys.exit(2 if isinstance(error, ConfigError) and not isinstance(error, RefusedError) else 1)
