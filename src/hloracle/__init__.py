"""Checks that StableHLO graphs of language models compute what the models compute."""

from importlib.metadata import version as _version

__version__ = _version("hloracle")
