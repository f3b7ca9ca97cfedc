"""Output for programs."""

from __future__ import annotations

from typing import Any

import typer


def print_json(value: Any) -> None:
    """Print what msgspec can encode (dataclasses, structs, containers of these), indented."""
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
