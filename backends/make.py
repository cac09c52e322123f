"""Backends by their names."""

from __future__ import annotations

from hloracle.backends.devices import CPU, Device
from hloracle.backends.session import Backend


def make_backend(name: str, threads: int, device: Device = CPU) -> Backend:
    """The backend of this name: `iree-cpu`, `xla-cpu`, or that of the device."""
    if name == "xla-cpu":
        from hloracle.backends.xla import XlaCpu

        return XlaCpu()
    from hloracle.backends.iree import IreeCpu, IreeDevice

    if name == CPU.backend:
        return IreeCpu(threads)
    if name != device.backend:
        raise ValueError(f"{name} is not the backend of {device}")
    return IreeDevice(device)
