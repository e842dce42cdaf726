"""Find, sign and compile the CUDA sources. Nothing else in dasp knows where they are.

The sources are the folder `kernels/`: inside the package in a wheel, beside the package in a checkout. It is
recognised by the file `mma.cuh`, because other distributions install folders called `kernels` too.
"""

import contextlib
import hashlib
import importlib
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from dasp.runtime.cpu import threads as _threads
from dasp.runtime.log import logger, tell_compiling

_PACKAGE = Path(__file__).resolve().parents[2]

COMPILED_SECONDS = 0.1
"""More than it takes to find a kernel compiled on disk."""

_modules: dict[tuple[object, ...], Any] = {}
_loading: dict[tuple[object, ...], threading.Lock] = {}
_modules_lock = threading.Lock()
_introduced: set[tuple[str, ...]] = set()


def find(package: Path = _PACKAGE) -> Path:
    """Return the folder of the CUDA sources that belong to a copy of the package.

    Raises
    ------
    RuntimeError
        When neither `<package>/kernels` nor `<package>/../kernels` holds `mma.cuh`.
    """
    places = (package / "kernels", package.parent / "kernels")
    for place in places:
        if (place / "mma.cuh").is_file():
            return place
    looked = " and ".join(str(place) for place in places)
    raise RuntimeError(
        f"the CUDA sources are missing from {looked}; the package is incomplete; install it again"
    )


def digest(folder: Path | None = None) -> str:
    """Return the first 12 hexadecimal digits of a SHA-256 over every file of the sources.

    Names and contents both count. The digest is an option of each compilation, because CuPy's cache of
    compiled kernels does not look into included files.
    """
    folder = find() if folder is None else folder
    total = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        content = path.read_bytes()
        total.update(f"{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()[:12]


def read(name: str) -> str:
    """Return the text of a source, for example `read("spmv/product.cu")`."""
    return (find() / name).read_text(encoding="utf-8")


def with_constants(text: str, defines: Mapping[str, str], name: str) -> str:
    """Return a source that begins with its constants, always in the same order; errors name its own lines.

    As options they would be told apart by CuPy, which has NVRTC compile an empty file for each set of options
    of a process, before it looks for a kernel that it kept on disk.
    """
    constants = "".join(f"#define {constant} {value}\n" for constant, value in sorted(defines.items()))
    return f'{constants}#line 1 "{name}"\n{text}'


def options(name: str = "") -> tuple[str, ...]:
    """Return the compiler's options for a source.

    The folder of the source itself is searched for what it includes, then the folder of all sources.
    """
    folder = find()
    own = (folder / name).parent if "/" in name else folder
    return (
        "-std=c++17",
        *(f"-I{place}" for place in dict.fromkeys((own, folder))),
        *(f"-I{place}" for place in _toolkit_headers()),
        f"-DDASP_SOURCES={_digest_of(folder)}",
    )


_digest_of = cache(digest)
"""`digest`, as it was when a process first asked: a module is compiled once in a process, too."""


def load(name: str, defines: Mapping[str, str]) -> Any:
    """Compile a source for the current GPU, load it, and return CuPy's module.

    A module is compiled once per process, device, source and set of constants; between processes CuPy
    keeps it on disk. Several threads may call this at once.

    Parameters
    ----------
    name : str
        Such as "spmv/product.cu".
    defines : mapping of str to str
        Compile-time constants, such as `{"DASP_VALUE": "double"}`.

    Returns
    -------
    cupy.RawModule
        `get_function(kernel)` gives its kernels.

    Raises
    ------
    RuntimeError
        When CuPy is not installed, there is no usable GPU, or the source does not compile.
    """
    cupy = _import_cupy()
    try:
        device = cupy.cuda.runtime.getDevice()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise RuntimeError(f"no usable GPU ({error}); CUDA kernels need one; use device='cpu'") from error
    key = (device, name, *sorted(defines.items()))
    module = _modules.get(key)
    if module is None:
        with _modules_lock:
            loading = _loading.setdefault(key, threading.Lock())
        with loading:
            module = _modules.get(key)
            if module is None:
                module = _modules[key] = _load(cupy, name, defines)
    return module


def _load(cupy: Any, name: str, defines: Mapping[str, str]) -> Any:
    code = with_constants(read(name), defines, name)
    module = cupy.RawModule(code=code, options=options(name), backend="nvrtc")
    start = time.perf_counter()
    try:
        module.compile()
    except cupy.cuda.compiler.CompileException as error:
        raise RuntimeError(f"{name} does not compile with {dict(defines)}: {error}") from error
    seconds = time.perf_counter() - start
    logger.debug("loaded %s in %.0f ms, compiled with %s", name, 1e3 * seconds, dict(defines))
    if seconds > COMPILED_SECONDS:
        tell_compiling(seconds)
    return module


def load_all(wanted: Sequence[tuple[str, Mapping[str, str]]]) -> None:
    """Load several sources for the current GPU beside each other, because compiling one takes long.

    Parameters
    ----------
    wanted : sequence of (str, mapping)
        Names and constants, as `load` takes them. What does not compile is left to `load` to say.
    """
    cupy = _import_cupy()
    device, number = cupy.cuda.Device(), cupy.cuda.runtime.getDevice()
    keys = {(number, name, *sorted(defines.items())): (name, defines) for name, defines in wanted}
    missing = [each for key, each in keys.items() if key not in _modules]
    if len(missing) < 2:
        return
    for flags in dict.fromkeys(options(name) for name, _ in missing):
        _introduce(cupy, flags)

    def load_one(name: str, defines: Mapping[str, str]) -> None:
        with device, contextlib.suppress(RuntimeError):
            load(name, defines)

    _threads.run([partial(load_one, *each) for each in missing])


def _introduce(cupy: Any, flags: tuple[str, ...]) -> None:
    """Let CuPy ask NVRTC about options once, as it does for each set of them in a process.

    Threads that load kernels with the same options would all ask, and NVRTC answers one after the other.
    """
    if flags not in _introduced:
        _introduced.add(flags)
        with contextlib.suppress(RuntimeError, cupy.cuda.compiler.CompileException):
            cupy.RawModule(code="// nothing\n", options=flags, backend="nvrtc").compile()


def _import_cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise RuntimeError(
            f"CuPy cannot be imported ({error}); CUDA kernels need it; "
            "pip install 'cupy-cuda13x[ctk]' (or cupy-cuda12x), or use device='cpu'"
        ) from error
    return cupy


@cache
def _toolkit_headers() -> tuple[str, ...]:
    """Return the folder of `cuda_fp16.h`, found as CuPy finds its libraries; empty when there is none."""
    try:
        folder = importlib.import_module("cuda.pathfinder").find_nvidia_header_directory("cudart")
    except (ImportError, AttributeError, RuntimeError):
        folder = None
    return () if folder is None else (str(folder),)
