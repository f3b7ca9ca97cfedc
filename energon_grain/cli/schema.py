# SPDX-License-Identifier: Apache-2.0
"""`energon-grain schema`: the JSON Schema of metadataset files."""

from __future__ import annotations

import json

from energon_grain.cli.terminal import Answer
from energon_grain.metadataset.documents import json_schema


def schema() -> Answer:
    """Print the JSON Schema of metadataset files, for editors that complete and check YAML.

    Save it, and put `# yaml-language-server: $schema=FILE` at the top of a metadataset.

    Examples:
        energon-grain schema
        energon-grain schema --json
    """
    found = json_schema()
    return Answer(document=found, lines=[json.dumps(found, indent=2)])
