# SPDX-License-Identifier: Apache-2.0
"""The `energon-grain` command."""

from __future__ import annotations

import os
import sys

from energon_grain.cli.app import app
from energon_grain.errors import ConfigError, EnergonGrainError, RefusedError
from energon_grain.words import visible


def main() -> None:
    """Run the command line. Errors of this library and of the system are one red line on stderr.

    Exit codes: 0 success; 1 a failure, or a check that found problems; 2 invalid arguments or configuration file; 130
    interrupted.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # no command does linear algebra, and its threads cost start-up
    try:
        app(prog_name="energon-grain")  # the name that completion uses, also with `python -m`
    except (EnergonGrainError, OSError) as error:
        import typer

        message = "\n".join([str(error), *getattr(error, "__notes__", [])])
        typer.secho(f"Error: {visible(message, lines=True)}", fg=typer.colors.RED, err=True)
        sys.exit(2 if isinstance(error, ConfigError) and not isinstance(error, RefusedError) else 1)
