"""The backends that llama.cpp can be built with: options of cmake, what each needs."""

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from codeneedle.engines.llama_cpp.installation import ASK_TIMEOUT_S
from codeneedle.errors import ToolMissing, UnknownName
from codeneedle.system import processes

ALL_KERNELS = "-DGGML_CUDA_FA_QUANTS=all"
"""Otherwise most mixed pairs have no kernel for flash attention in CUDA and HIP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A backend of llama.cpp."""

    name: str  # as ``--backend`` takes it
    switch: str  # option of cmake that switches it on
    needs: str = ""
    """The program that says whether what it is compiled with is installed."""

    install: str = ""  # how to install that


BACKENDS = (
    Backend(
        name="cuda",
        switch="-DGGML_CUDA=ON",
        needs="nvcc",
        install="Install NVIDIA's CUDA toolkit; CUDA_HOME says where, beside PATH",
    ),
    Backend(
        name="hip",
        switch="-DGGML_HIP=ON",
        needs="hipconfig",
        install="Install AMD's ROCm with its HIP SDK (Debian: apt install hipcc "
        "libhipblas-dev librocblas-dev)",
    ),
    Backend(
        name="vulkan",
        switch="-DGGML_VULKAN=ON",
        needs="glslc",
        install="On Debian and Ubuntu: apt install libvulkan-dev glslc spirv-headers",
    ),
    Backend(
        name="sycl",
        switch="-DGGML_SYCL=ON",
        needs="icpx",
        install="Install Intel's oneAPI base toolkit, then: "
        "source /opt/intel/oneapi/setvars.sh",
    ),
    Backend(name="metal", switch="-DGGML_METAL=ON"),
    Backend(name="cpu", switch="-DGGML_METAL=OFF"),
)
"""Metal is llama.cpp's own choice on a Mac, so the CPU alone switches it off."""


def backend_named(name: str) -> Backend:
    """
    The backend of that name.

    Raises:
        UnknownName: If there is none.
    """
    for backend in BACKENDS:
        if backend.name == name:
            return backend
    known = [backend.name for backend in BACKENDS]
    raise UnknownName(kind="backend", name=name, known=known)


def backend_cmake_options(backend: Backend | None) -> list[str]:
    """
    Options of cmake for *backend*; for None, CUDA's if compiler and GPU are there.

    Raises:
        ToolMissing: If what it is compiled with is not installed.
    """
    if backend is None:
        nvcc = cuda_compiler_if_gpu()
        return [] if nvcc is None else _cuda_cmake_options(nvcc)
    tool = _needed_program_path(backend)
    match backend.name:
        case "cuda":
            return _cuda_cmake_options(tool)
        case "hip":
            clang = _ask_hipconfig_for_clang(tool)
            return [backend.switch, f"-DCMAKE_HIP_COMPILER={clang}", ALL_KERNELS]
        case "sycl":
            compilers = ("-DCMAKE_C_COMPILER=icx", f"-DCMAKE_CXX_COMPILER={tool}")
            return [backend.switch, *compilers]
        case _:
            return [backend.switch]


def has_nvidia_gpu() -> bool:
    """Whether NVIDIA's driver runs here; ``/dev/dxg`` is that of Windows' Linux."""
    return any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/dxg"))


def cuda_compiler_if_gpu() -> str | None:
    """Path of nvcc, if there also is a GPU to compile for; None otherwise."""
    return _nvcc_path() if has_nvidia_gpu() else None


def _nvcc_path() -> str | None:
    """
    Path of nvcc: on PATH, else in the folders that variables name, else in usual ones.

    None without one.
    """
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    homes += ["/usr/local/cuda", "/opt/cuda"]
    return _first_program("nvcc", *(f"{home}/bin/nvcc" for home in homes if home))


def _first_program(*candidates: str) -> str | None:
    """Path of the first of *candidates* that is a program; None without one."""
    return next((path for name in candidates if (path := shutil.which(name))), None)


def _cuda_cmake_options(nvcc: str) -> list[str]:
    """Options of cmake for CUDA with this compiler, and kernels for all pairs."""
    return ["-DGGML_CUDA=ON", f"-DCMAKE_CUDA_COMPILER={nvcc}", ALL_KERNELS]


def _needed_program_path(backend: Backend) -> str:
    """
    Path of the program that *backend* needs; empty where it needs none.

    Refused if it is missing, or is Metal elsewhere than on a Mac.
    """
    if backend.name == "metal" and sys.platform != "darwin":
        raise ToolMissing(
            tool="Metal",
            reason="is on Macs alone",
            hint=f"Here there are: {_other_backends_phrase('metal')}.",
        )
    if not backend.needs:
        return ""
    path = (
        _nvcc_path()
        if backend.needs == "nvcc"
        else _first_program(*_rocm_program_paths(backend.needs))
    )
    if path is None:
        raise ToolMissing(
            tool=backend.needs,
            reason=f"is missing, which the backend {backend.name} is compiled with",
            hint=f"{backend.install}.",
        )
    return path


def _rocm_program_paths(program: str) -> tuple[str, str]:
    """Where *program* of ROCm may be: on PATH, or in the folder of AMD's packages."""
    return (program, f"/opt/rocm/bin/{program}")


def _other_backends_phrase(name: str) -> str:
    return ", ".join(backend.name for backend in BACKENDS if backend.name != name)


def _ask_hipconfig_for_clang(hipconfig: str) -> Path:
    """
    Path of ROCm's compiler, in the folder that *hipconfig* names.

    Raises:
        ToolMissing: If it names none.
    """
    answer = processes.run_for_output([hipconfig, "-l"], timeout_s=ASK_TIMEOUT_S)
    folder = answer.stdout.strip()
    if answer.returncode or not folder:
        raise ToolMissing(
            tool=hipconfig,
            reason="does not say where its compiler is",
            hint="Try 'hipconfig -l' by hand; is ROCm installed completely?",
        )
    return Path(folder) / "clang"
