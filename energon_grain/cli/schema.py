"""`energon-grain schema`: the format of metadatasets, for editors."""

from __future__ import annotations

import typer


def schema() -> None:
    """Print the JSON Schema of metadataset files, for editors that complete and check YAML.

    Save it, and put `# yaml-language-server: $schema=FILE` at the top of a metadataset.
    """
    import json

    from energon_grain.metadataset.documents import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))
