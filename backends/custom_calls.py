"""Functions of shared libraries as targets of custom_call: XLA finds them by name, through its typed FFI."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hloracle.core.cache import file_digest
from hloracle.core.child import ChildDied, Report, run_in_child
from hloracle.core.errors import InputError
from hloracle.core.given import refuse_if_exhausted, refuse_special

TIMEOUT_SECONDS = 120
FLAG = "--allow-custom-call"


@dataclass(frozen=True)
class Target:
    """The function `name` of a library, whose content has this SHA-256."""

    name: str
    library: Path
    sha256: str


_registered: dict[str, str] = {}  # in this process: as XLA keeps them, name -> the library's SHA-256


def open_targets(words: Sequence[str]) -> tuple[Target, ...]:
    """The targets that `TARGET=LIBRARY` name. Raises InputError for one that cannot be called.

    The libraries are loaded in another process, for loading one runs code of its own.
    """
    found: dict[str, Target] = {}
    for word in words:
        name, equals, file = word.partition("=")
        if not (equals and file and name.isascii() and name.isidentifier()):
            raise InputError("is not TARGET=LIBRARY", f"{FLAG} {word!r}", "give one such as my_gemm=./libgemm.so")
        if name in found:
            raise InputError("stands twice", f"{FLAG} {name}", "name one library for it")
        library = Path(file).absolute()
        refuse_special(library, "name a shared library")
        try:
            found[name] = Target(name, library, file_digest(library))
        except OSError as error:
            refuse_if_exhausted(error, library)
            words_of = (error.strerror or str(error)).lower()
            raise InputError(f"cannot be read ({words_of})", library, "name a shared library") from None
    targets = tuple(found.values())
    for target in targets:
        try:
            run_in_child(registering, target, timeout=TIMEOUT_SECONDS)
        except ChildDied as error:
            raise InputError(f"cannot be called: {error}", target.library, _FIX) from None
    return targets


_FIX = "define the target there with XLA_FFI_DEFINE_HANDLER_SYMBOL (docs/custom-call.md)"


def registering(report: Report, target: Target) -> None:
    """`register`, in a child process."""
    register([target])


def register(targets: Sequence[Target]) -> None:
    """Let XLA's CPU client find the targets by name, in this process. Raises InputError that names the library."""
    if not targets:
        return
    import jax
    from jax._src import xla_bridge
    from jax._src.lib import xla_client

    xla_bridge.get_backend("cpu")  # until there is a client, targets are only noted down
    for target in targets:
        if file_digest(target.library) != target.sha256:
            raise InputError("has changed meanwhile", target.library, "leave it as it is while it is judged")
        if _registered.get(target.name) == target.sha256:
            continue
        if target.name in xla_client.custom_call_targets("cpu"):
            raise InputError("is a target that XLA has already", f"{FLAG} {target.name}", "give yours another name")
        try:
            function = getattr(ctypes.CDLL(str(target.library)), target.name)
        except OSError as error:
            raise InputError(f"cannot be loaded ({error})", target.library, "name a shared library") from None
        except AttributeError:
            raise InputError(f"has no symbol {target.name}", target.library, _FIX) from None
        try:
            jax.ffi.register_ffi_target(target.name, jax.ffi.pycapsule(function), platform="cpu")
        except Exception as error:  # jaxlib's own JaxRuntimeError
            raise InputError(f"{target.name} is no handler of XLA's FFI ({error})", target.library, _FIX) from None
        _registered[target.name] = target.sha256


def registered() -> dict[str, str]:
    """The targets of this process: name -> the SHA-256 of its library."""
    return dict(_registered)
