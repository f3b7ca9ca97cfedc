"""The commands, run in this process."""

from __future__ import annotations

from pathlib import Path

import typer
from typer.testing import CliRunner, Result

from energon_grain.cli.app import app


def run(*arguments: str | Path, answers: str | None = None) -> Result:
    """Run `energon-grain` with these arguments; the lines of `answers` answer what it asks."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=answers)


def commands() -> set[str]:
    """The names of all of them."""
    return set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
