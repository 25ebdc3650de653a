"""JSON Schema of the events, generated from their dataclasses; knows no log.

``python -m schemas.jsonschema`` writes the file that is checked in; a test fails when the two differ.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from schemas.events import BODIES, VERSION, Body, Envelope, Finished

PATH = Path(__file__).parent / f"events.v{VERSION}.schema.json"


def _event(body: type[Body], components: dict[str, Any]) -> dict[str, Any]:
    envelope, own = components["Envelope"], components[body.__name__]
    always = ["duration_s"] if issubclass(body, Finished) else []
    return {
        "title": body.kind,
        "description": own.get("description", ""),
        "type": "object",
        "properties": {
            **envelope["properties"],
            "v": {"const": VERSION, "description": "schema version"},
            "kind": {"const": body.kind},
            **own["properties"],
        },
        "required": [*envelope["required"], *own["required"], *always],
    }


def generate() -> dict[str, Any]:
    """Return the schema of one line of a log of today's version (JSON Schema 2020-12)."""
    _, components = msgspec.json.schema_components([Envelope, *BODIES])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"roundlog event, version {VERSION}",
        "description": "One line of a roundlog log. New optional fields may appear within a version.",
        "oneOf": [{"$ref": f"#/$defs/{body.kind}"} for body in BODIES],
        "$defs": {body.kind: _event(body, components) for body in BODIES},
    }


def text() -> str:
    """Return the checked-in form of :func:`generate`."""
    return json.dumps(generate(), indent=2) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
