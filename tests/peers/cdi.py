"""What container runtimes make of CDI specs: their own library, and the JSON schema that came with it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jsonschema import Draft7Validator
from referencing import Registry
from referencing.jsonschema import DRAFT7

from .real import BUILD

SCHEMA = BUILD / "cdi-schema"


class Refused(Exception):
    """The library takes the specs or the names for wrong, here in its own words."""


def asked(binary: Path, directory: Path, *names: str) -> Mapping[str, Any]:
    """Have a container ask for qualified names.

    Returns `devices` (all qualified names), `versions` (file to the version `stated` and the one `needed`)
    and `spec`, what an empty OCI runtime specification became.

    Raises:
        Refused: A spec in the directory is wrong, a name is not in it, or a node is not on this host.
    """
    command = [str(binary), "cdi", str(directory), *names]
    run = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    answer: dict[str, Any] = json.loads(run.stdout)
    if "error" in answer:
        raise Refused(answer["error"])
    return answer


def schema_errors(spec: object) -> list[str]:
    """Where the spec is not what the schema wants."""
    schema, defs = (json.loads((SCHEMA / name).read_text()) for name in ("schema.json", "defs.json"))
    registry: Registry[Any] = Registry().with_resource("defs.json", DRAFT7.create_resource(defs))
    return [error.message for error in Draft7Validator(schema, registry=registry).iter_errors(spec)]
