"""The `energon-grain` command."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line; errors of ours and of the system are one red line on stderr and exit code 2."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # no command does linear algebra, and its threads cost start-up
    from energon_grain.cli.app import app
    from energon_grain.errors import EnergonGrainError

    try:
        app()
    except (EnergonGrainError, OSError) as error:
        import typer

        typer.secho(f"Error: {error}", fg=typer.colors.RED, err=True)
        sys.exit(2)
