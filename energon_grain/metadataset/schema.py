"""The format of metadatasets as JSON Schema, for editors: made of the definitions that files are checked with."""

from __future__ import annotations

from typing import Any

from energon_grain.metadataset.blends import NODE_FORMS, BlendEntry, EpochizedEntry
from energon_grain.metadataset.documents import DOCUMENT_FORMS, EXTENSION
from energon_grain.metadataset.keys import form_schema


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 7) of metadataset files of both forms.

    A file that is valid by it can still break rules that a schema cannot say: a node with `blend` inside of
    `blend_epochized`, say, or a schedule that does not ascend.
    """
    older = _document("Metadataset")
    older["required"] = ["splits"]
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Energon metadataset",
        "if": {"required": ["__class__"], "properties": {"__class__": {"const": "MetadatasetV2"}}},
        "then": _document("MetadatasetV2"),
        "else": older,
        "definitions": {
            "node": {"oneOf": [form_schema(form) for form in NODE_FORMS.values()]},
            **{
                entry.__name__: {"oneOf": [form_schema(form, entry) for form in NODE_FORMS.values()]}
                for entry in (BlendEntry, EpochizedEntry)
            },
        },
    }


def _document(name: str) -> dict[str, Any]:
    schema = form_schema(DOCUMENT_FORMS[name])
    named = {
        "__module__": {"description": "Where Energon has the class: megatron.energon.", "type": "string"},
        "__class__": {"description": "The form of this file.", "const": name},
    }
    return {
        **schema,
        "properties": {**named, **schema["properties"]},
        "patternProperties": {f"^{EXTENSION}": {"description": "Anything; a place for anchors."}},
        "required": ["__class__", "splits"],
    }
