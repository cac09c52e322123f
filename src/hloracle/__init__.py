"""Checks that StableHLO graphs of language models compute what the models compute.

    record = hloracle.check("decode.mlir", model="path/to/checkpoint", abi="decode.abi.json")
    assert record.passed, record.verdict
    record.save("out/")

docs/api.md describes what is exported here. It follows semantic versioning; whatever else the package holds does not.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from importlib.metadata import version as _version
from typing import TYPE_CHECKING
from typing import Any as _Any

if TYPE_CHECKING:
    from hloracle.api import CheckOptions as CheckOptions
    from hloracle.api import Options as Options
    from hloracle.api import Record as Record
    from hloracle.api import SuiteOptions as SuiteOptions
    from hloracle.api import Verdict as Verdict
    from hloracle.api import check as check
    from hloracle.api import emit as emit
    from hloracle.api import generate as generate
    from hloracle.api import open_batch as open_batch
    from hloracle.api import open_model as open_model
    from hloracle.api import open_session as open_session
    from hloracle.api import run as run
    from hloracle.api import suite as suite
    from hloracle.backends.session import Backend as Backend
    from hloracle.backends.session import Executable as Executable
    from hloracle.backends.session import Session as Session
    from hloracle.backends.words import worker as worker
    from hloracle.conformance.graphs.sources import Request as Request
    from hloracle.conformance.graphs.sources import Source as Source
    from hloracle.conformance.graphs.sources import source as source
    from hloracle.core.abi import Abi as Abi
    from hloracle.core.abi import Graph as Graph
    from hloracle.core.abi import Tensor as Tensor
    from hloracle.core.child import ChildDied as ChildDied
    from hloracle.core.errors import InputError as InputError
    from hloracle.core.errors import ToolchainError as ToolchainError
    from hloracle.production.sampling import Sampling as Sampling
    from hloracle.production.serving import Batch as Batch
    from hloracle.production.serving import Generation as Generation
    from hloracle.reference.model.checkpoint import Checkpoint as Model

__version__ = _version("hloracle")

# Where each name is defined. It is imported when it is first used: `import hloracle` alone imports no compiler.
_HOMES = {
    "hloracle.api": "CheckOptions Options Record SuiteOptions Verdict check emit generate open_batch open_model open_session run suite",
    "hloracle.backends.session": "Backend Executable Session",
    "hloracle.backends.words": "worker",
    "hloracle.conformance.graphs.sources": "Request Source source",
    "hloracle.core.abi": "Abi Graph Tensor",
    "hloracle.core.child": "ChildDied",
    "hloracle.core.errors": "InputError ToolchainError",
    "hloracle.production.sampling": "Sampling",
    "hloracle.production.serving": "Batch Generation",
    "hloracle.reference.model.checkpoint": "Model",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "Abi", "Backend", "Batch", "CheckOptions", "ChildDied", "Executable", "Generation", "Graph", "InputError", "Model", "Options",
    "Record", "Request", "Sampling", "Session", "Source", "SuiteOptions", "Tensor", "ToolchainError", "Verdict", "__version__",
    "check", "emit", "generate", "open_batch", "open_model", "open_session", "run", "source", "suite", "worker",
]  # fmt: skip


def __getattr__(name: str) -> _Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'hloracle' has no attribute {name!r}")
    value = getattr(_import_module(_HOME_OF[name]), "Checkpoint" if name == "Model" else name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
