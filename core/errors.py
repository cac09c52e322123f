"""The two ways a run ends without a verdict."""

from __future__ import annotations

import os
import traceback

from hloracle.core.shown import shown


class InputError(Exception):
    """Something the user gave cannot be used: exit status 2, one line on stderr.

    The three parts are what a reader needs in order to act, so all are required.

    Args:
      what: what is wrong, e.g. ``weight is missing``.
      where: the file, key, flag or value it was found in.
      fix: what to do about it.
    """

    def __init__(self, what: str, where: object, fix: str) -> None:
        super().__init__(what, where, fix)
        self.what, self.where, self.fix = what, str(where), fix

    def __str__(self) -> str:
        # One line that can be read, whatever a toolchain put into the parts, or who gave a graph's text for a file's name.
        where = shown(self.where, 300) or repr(self.where[:60])  # a name of spaces
        return f"{where}: {shown(self.what, 2000)}; {shown(self.fix, 2000)}"


class ToolchainError(Exception):
    """A compiler or runtime failed on a graph we gave it: a result to report, not bad input.

    Args:
      stage: ``compile``, ``load``, ``run``, ``memory``, or ``timeout``.
      message: the tool's own words.
      artifact: where the graph was kept, so that the failure can be looked at.
    """

    def __init__(self, stage: str, message: str, artifact: object = "") -> None:
        super().__init__(stage, message, artifact)
        self.stage, self.message, self.artifact = stage, message.strip(), str(artifact)

    def __str__(self) -> str:
        kept = f" (graph kept at {self.artifact})" if self.artifact else ""
        return f"{self.stage} failed: {self.message}{kept}"


def told(error: BaseException, place: bool = False) -> str:
    """An error of somebody else's code on one line; place: with the file and the line that raised it."""
    at = traceback.extract_tb(error.__traceback__)[-1:] if place else []
    where = "".join(f" ({os.path.basename(frame.filename)}:{frame.lineno})" for frame in at)
    return shown(f"{type(error).__name__}: {error}", 400) + where


class OutOfMemory(ToolchainError):
    """A device's memory does not hold what it was given: a result, and nothing that its graphs did wrong."""

    def __init__(self, device: str) -> None:
        super().__init__("memory", f"{device} is out of memory: take a narrower --precision or a smaller model")
        self.args = (device,)  # what it is made of again in another process

    def __str__(self) -> str:
        return self.message
