"""Where a benchmark ran: processor, libraries and commit, as columns of the result file."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path

CACHE_FOLDER = Path("/sys/devices/system/cpu/cpu0/cache")

PROVENANCE = (
    *("machine", "threads", "driver", "cuda_runtime", "cusparse"),
    *("cupy", "numpy", "scipy", "numba", "commit"),
)
"""The columns that a report names when it says where its figures come from, in this order."""


def provenance(columns: Mapping[str, str]) -> str:
    """Return the columns of PROVENANCE in words, those that are empty left out."""
    return ", ".join(f"{name} {columns[name]}" for name in PROVENANCE if columns.get(name))


def cpu_name() -> str:
    """Return the processor's name, from /proc/cpuinfo where there is one."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def last_level_cache_bytes() -> int:
    """Return the bytes of the largest cache of the first core; 32 MiB where the system does not say."""
    sizes = [path.read_text().strip() for path in CACHE_FOLDER.glob("index*/size")]  # such as 36608K
    return max((int(size.removesuffix("K")) << 10 for size in sizes), default=32 << 20)


def commit() -> str:
    """Return the commit of the source tree, with `+` for uncommitted changes to tracked files.

    The environment variable DASP_COMMIT overrides it, for a copy of the tree without its history; outside a
    checkout it is the version of the installed package.
    """
    if given := os.environ.get("DASP_COMMIT"):
        return given
    root = Path(__file__).resolve().parents[2]
    if (root / ".git").exists():
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        if head:
            return head + ("+" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")
    return package_version("dasp-spmv")


def _git(root: Path, *arguments: str) -> str:
    """Return git's output in `root`, or nothing where it fails."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def package_version(name: str) -> str:
    """Return the version of an installed distribution, or an empty string."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def host_columns(threads: int) -> dict[str, str]:
    """Machine columns of a run on the host."""
    return {"machine": cpu_name(), "threads": str(threads), **_library_columns()}


def cuda_columns(cusparse_version: str) -> dict[str, str]:
    """Machine columns of a run on the current GPU."""
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    name = properties["name"]
    return {
        "machine": name.decode() if isinstance(name, bytes) else str(name),
        "cpu": cpu_name(),
        "driver": driver_version(),
        "cuda_runtime": dotted_cuda(cupy.cuda.runtime.runtimeGetVersion()),
        "cuda_driver": dotted_cuda(cupy.cuda.runtime.driverGetVersion()),
        "cusparse": cusparse_version,
        "cupy": str(cupy.__version__),
        **_library_columns(),
    }


def dotted_cuda(version: int) -> str:
    """Return CUDA's version number in words.

    Examples
    --------
    >>> dotted_cuda(13000)
    '13.0'
    """
    return f"{version // 1000}.{version % 1000 // 10}"


def driver_version() -> str:
    """Return the NVIDIA driver's version, or an empty string."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else ""


def _library_columns() -> dict[str, str]:
    """Return the versions of Python and of the libraries that any run uses, and the commit."""
    return {
        "python": platform.python_version(),
        "numpy": package_version("numpy"),
        "scipy": package_version("scipy"),
        "numba": package_version("numba"),
        "commit": commit(),
    }
