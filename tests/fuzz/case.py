"""One input: files, a command line and variables of the environment, as a value that can be kept."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

# What stands in place of a file's bytes: a link, whose target follows, a pipe, a folder.
LINK, PIPE, FOLDER = b"\0link:", b"\0pipe", b"\0folder"


def is_special(data: bytes) -> bool:
    """Whether these bytes stand for what is no file."""
    return data.startswith(LINK) or data in (PIPE, FOLDER)


@dataclass(frozen=True)
class Case:
    """Files by their names in the working directory, the command line that reads them, and the variables that are set."""

    files: Mapping[str, bytes]
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def with_file(self, name: str, data: bytes) -> Case:
        """The same with another file in place of one, or beside them."""
        return replace(self, files={**self.files, name: data})

    def write(self, folder: Path) -> None:
        """Put the files into a folder."""
        for name, data in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if data.startswith(LINK):
                path.symlink_to(os.fsdecode(data.removeprefix(LINK)))
            elif data == PIPE:
                os.mkfifo(path)
            elif data == FOLDER:
                path.mkdir()
            else:
                path.write_bytes(data)


def as_json(case: Case, sample: Case) -> dict[str, Any]:
    """A case as it is kept: files that are those of the sample are left out."""
    changed = {name: data for name, data in case.files.items() if sample.files.get(name) != data}
    gone = sorted(sample.files.keys() - case.files.keys())
    return {
        "arguments": list(case.arguments),
        "environment": dict(case.environment),
        "files": {name: _told(data) for name, data in changed.items()},
        "gone": gone,
    }


def from_json(kept: Mapping[str, Any], sample: Case) -> Case:
    """A case that was kept."""
    files = {name: data for name, data in sample.files.items() if name not in kept["gone"]}
    files |= {name: _bytes(told) for name, told in kept["files"].items()}
    return Case(files, tuple(kept["arguments"]), kept["environment"])


def _told(data: bytes) -> dict[str, str]:
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _bytes(told: Mapping[str, str]) -> bytes:
    return told["text"].encode() if "text" in told else base64.b64decode(told["base64"])


def dumps(kept: Mapping[str, Any]) -> str:
    """The text of a kept case's file."""
    return json.dumps(kept, indent=1) + "\n"
