"""Where IREE runs graphs, and what it compiles them for: the machine's own processor, or a device that has a driver."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from hloracle.core.cache import Entry, digest
from hloracle.core.child import ChildDied, Report, run_in_child, threads
from hloracle.core.environment import installed
from hloracle.core.errors import InputError, ToolchainError
from hloracle.core.files import locked

QUERY_SECONDS = 120


@dataclass(frozen=True)
class Kind:
    """A kind of device.

    compiler: what IREE's compiler calls its code generator. flags: name the device to it, `{target}` standing for what
    `Device.target` says. driver: what IREE's runtime calls it; empty where graphs are compiled for it and not run.
    target: that of no device in particular.
    """

    compiler: str
    flags: tuple[str, ...]
    driver: str = ""
    target: str = ""


LOCAL = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu")
KINDS = {
    "cpu": Kind("llvm-cpu", LOCAL, "local-task"),
    # PTX of sm_89 is what all data center GPUs from the L4 on are given: a newer driver compiles it for its own device.
    "cuda": Kind("cuda", ("--iree-hal-target-device=cuda", "--iree-cuda-target={target}"), "cuda", "sm_89"),
    "hip": Kind("rocm", ("--iree-hal-target-device=hip", "--iree-rocm-target={target}"), "", "gfx942"),
    "vulkan": Kind("vulkan-spirv", ("--iree-hal-target-device=vulkan",), "vulkan"),
    "metal": Kind("metal-spirv", ("--iree-hal-target-device=metal",)),
    # CUDA's compiler and runtime with a driver that interprets PTX: see emulator/.
    "emulated": Kind("cuda", ("--iree-hal-target-device=cuda", "--iree-cuda-target={target}"), "cuda", "sm_89"),
    # The processor, driven as a device that has its own memory: to test what drives such devices where there is none.
    "simulated": Kind("llvm-cpu", (*LOCAL, "--iree-llvmcpu-target-cpu=host"), "local-sync"),
}
FLAG, TARGET_FLAG = "--device", "--cuda-target"
USES = "use cpu, cuda, cuda:1, vulkan or emulated"


@dataclass(frozen=True)
class Facts:
    """Facts about a device, from its driver. capability: of CUDA, (9, 0) for an H100; None of others. memory: bytes, if known."""

    name: str
    capability: tuple[int, int] | None = None
    memory: int | None = None
    driver: str = ""


@dataclass(frozen=True)
class Device:
    """A device that IREE runs graphs on.

    kind: a key of KINDS. index: which of several. target: what is compiled for, where the kind has several.

    graphs: CUDA runs the commands of a call as a graph, not on a stream. facts: what its driver says, if it was asked.
    """

    kind: str = "cpu"
    index: int = 0
    target: str = ""
    graphs: bool = False
    facts: Facts | None = None

    @property
    def name(self) -> str:
        """What its driver calls it, or else what `--device` does."""
        return self.facts.name if self.facts else str(self)

    @property
    def backend(self) -> str:
        """The name of IREE's backend on it."""
        return f"iree-{self.kind}"

    @property
    def of_cuda(self) -> bool:
        """Whether IREE's CUDA compiler makes its code."""
        return KINDS[self.kind].compiler == "cuda"

    @property
    def remote(self) -> bool:
        """Whether it is another device than the processor that asks it."""
        return self.kind != "cpu"

    @property
    def flags(self) -> tuple[str, ...]:
        """What names it to the compiler; of the processor, see `iree.CPU_FLAGS`."""
        return tuple(flag.format(target=self.target) for flag in KINDS[self.kind].flags)

    @property
    def uri(self) -> str:
        """What IREE's tools call it."""
        driver = KINDS[self.kind].driver
        return f"{driver}://{self.index}" if self.index else driver

    def __str__(self) -> str:
        return f"{self.kind}:{self.index}" if self.remote else self.kind


CPU = Device()


def compiled_for(kind: str, target: str = "") -> Device:
    """No device in particular: graphs are compiled for its kind."""
    return Device(kind, target=target or KINDS[kind].target)


def open_device(word: str, cuda_target: str = "") -> Device:
    """The device that `--device` names, as `cpu`, `cuda` or `cuda:1`.

    Raises InputError that says what is missing: such a device, its driver, or what compiles for it.

    Args:
      cuda_target: what to compile for instead of what fits the device.
    """
    kind, colon, number = word.partition(":")
    if kind not in KINDS or not KINDS[kind].driver or (colon and not (number.isascii() and number.isdigit())):
        raise InputError("is no device", f"{FLAG} {word!r}", USES)
    of_cuda = KINDS[kind].compiler == "cuda"
    if cuda_target and not of_cuda:
        raise InputError("is of CUDA alone", f"{TARGET_FLAG} {cuda_target}", f"leave it out, or say {FLAG} cuda")
    if kind == "cpu":
        if colon:
            raise InputError("is no device: there is one processor", f"{FLAG} {word!r}", USES)
        return CPU
    facts, index = devices_of(kind), int(number or 0)
    if index >= len(facts):
        have = ", ".join(f"{i}: {f.name}" for i, f in enumerate(facts))
        raise InputError(f"is no device: there are {have}", f"{FLAG} {word}", f"say {FLAG} {kind}:0")
    found = facts[index]
    target = cuda_target_of(found, cuda_target) if of_cuda else KINDS[kind].target
    return Device(kind, index, target, facts=found)


def devices_of(kind: str) -> list[Facts]:
    """All devices of a kind, in the order of their driver. Raises InputError where there is none.

    Asked in another process, for drivers crash.
    """
    try:
        found: list[Facts] = run_in_child(_query, kind, timeout=QUERY_SECONDS).value
    except (ChildDied, ToolchainError) as error:
        raise InputError(
            f"cannot be used: {error}", f"{FLAG} {kind}", f"repair its driver, or say {FLAG} cpu"
        ) from None
    if not found:
        raise InputError("there is no such device on this machine", f"{FLAG} {kind}", f"attach one, or say {FLAG} cpu")
    return found


def _query(report: Report, kind: str) -> list[Facts]:
    if KINDS[kind].compiler == "cuda":
        return cuda_devices(driver_library(kind), kind)
    import iree.runtime as rt

    driver = KINDS[kind].driver
    try:
        return [Facts(found["name"]) for found in rt.get_driver(driver).query_available_devices()]
    except (RuntimeError, ValueError) as error:  # IREE's message goes on with what it tried
        words = str(error).splitlines()[0].rpartition("; ")[2]
        raise InputError(
            f"its driver does not start ({words})", f"{FLAG} {kind}", f"install it, or say {FLAG} cpu"
        ) from None


# ---- CUDA


LIBRARY = "libcuda.so.1"
MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE


def driver_library(kind: str) -> str:
    """What is opened as CUDA's driver: NVIDIA's, or the emulator's, which is built for it."""
    if kind != "emulated":
        return LIBRARY
    from hloracle.emulator import library

    return str(library())


def cuda_devices(library: str = LIBRARY, kind: str = "cuda") -> list[Facts]:
    """What a CUDA driver says of its devices, asked through the library that IREE opens too: so that an index, and
    CUDA_VISIBLE_DEVICES, mean the same to both. Raises InputError.
    """
    try:
        cuda = ctypes.CDLL(library)
    except OSError as error:
        raise InputError(
            f"no NVIDIA driver can be loaded ({error})", f"{FLAG} {kind}", f"install one, or say {FLAG} cpu"
        ) from None

    def call(name: str, *arguments: object) -> None:
        status = getattr(cuda, name)(*arguments)
        if status == NO_DEVICE:
            raise InputError("the NVIDIA driver finds no device", f"{FLAG} {kind}", f"attach one, or say {FLAG} cpu")
        if status:
            words = ctypes.c_char_p()
            cuda.cuGetErrorName(status, ctypes.byref(words))
            named = (words.value or b"an unknown error").decode(errors="replace")
            raise InputError(
                f"the NVIDIA driver answers {name} with {named} ({status})", f"{FLAG} {kind}",
                f"see whether nvidia-smi works, or say {FLAG} cpu",
            )  # fmt: skip

    version, count = ctypes.c_int(), ctypes.c_int()
    call("cuInit", 0)
    call("cuDriverGetVersion", ctypes.byref(version))
    call("cuDeviceGetCount", ctypes.byref(count))
    found = []
    for index in range(count.value):
        device, name, memory = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
        call("cuDeviceGet", ctypes.byref(device), index)
        call("cuDeviceGetName", name, len(name), device)
        call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
        capability = []
        for attribute in (MAJOR, MINOR):
            value = ctypes.c_int()
            call("cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
            capability.append(value.value)
        words = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"
        if kind == "emulated":  # what it is built from decides what it computes
            words += f", emulator {Path(library).parent.name[:8]}"
        found.append(Facts(name.value.decode(errors="replace"), (capability[0], capability[1]), memory.value, words))
    return found


# What NVIDIA has named. Which of them a compiler knows is found by asking it.
CAPABILITIES = (
    "50", "52", "53", "60", "61", "62", "70", "72", "75", "80", "86", "87", "89", "90", "100", "101", "103", "110", "120",
    "121",
)  # fmt: skip
PROBE = "func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> { %0 = stablehlo.add %a, %a : tensor<4xf32> return %0 : tensor<4xf32> }\n"


def cuda_target_of(facts: Facts, asked: str = "") -> str:
    """The highest target that the compiler knows and that is not above the device; or the one that was asked for.

    Raises InputError for one that the compiler does not know, or that the device cannot run.
    """
    known = known_cuda_targets()
    major, minor = facts.capability or (0, 0)
    most = 10 * major + minor
    fitting = [target for target in known if _number(target) <= most]
    if asked:
        where = f"{TARGET_FLAG} {asked}"
        if asked not in known:
            raise InputError("is not known to this compiler", where, f"name one of {', '.join(known)}")
        if asked not in fitting:
            raise InputError(
                f"is above what {facts.name} runs, sm_{most}",
                where,
                f"name one of {', '.join(fitting) or 'another GPU'}",
            )
        return asked
    if not fitting:
        raise InputError(
            f"{facts.name} is sm_{most}, and the compiler knows none below {known[0] if known else 'any'}", f"{FLAG} cuda",
            "use a newer GPU, or another iree-base-compiler",
        )  # fmt: skip
    return fitting[-1]


def _number(target: str) -> int:
    return int(target.removeprefix("sm_"))


def known_cuda_targets() -> list[str]:
    """The targets that the compiler generates code for, lowest first: found by compiling for each, once per compiler."""
    from hloracle.backends import iree

    version, path = installed("iree-base-compiler"), iree.compiler_path()
    entry: Entry[list[str]] = Entry("cuda-targets", digest(version, path, *CAPABILITIES), list[str])

    def probe() -> list[str]:
        with TemporaryDirectory() as folder, threads() as pool:
            source = Path(folder) / "probe.mlir"
            source.write_text(PROBE)

            def knows(target: str) -> bool:
                try:
                    iree.iree_compile(source, (*iree.DEVICE_FLAGS, *compiled_for("cuda", target).flags))
                except ToolchainError:
                    return False
                return True

            probed = {f"sm_{number}": pool.submit(knows, f"sm_{number}") for number in CAPABILITIES}
            return [target for target, known in probed.items() if known.result()]

    with locked(entry.path):
        return entry.get(probe, bool)[0]  # where none is found, the compiler itself may have failed
