"""The console's files: read once, served under a name that changes with their content."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

NAMES: Final = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file. path: where it is served."""

    path: str
    kind: str
    content: bytes


def load() -> dict[str, Asset]:
    """Every file by its name. Raises FileNotFoundError where the package was installed without its data."""
    found = {}
    for name, kind in NAMES.items():
        content = files(__package__).joinpath("static", name).read_bytes()
        stamp = hashlib.sha256(content).hexdigest()[:12]
        found[name] = Asset(f"/console/static/{stamp}/{name}", kind, content)
    return found
