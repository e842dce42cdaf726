"""Find, hash and compile the CUDA sources. Nothing else in dasp knows where they are.

The sources are the folder `kernels/`: inside the package in a wheel, beside the package in a checkout. It is
recognised by the file `mma.cuh`, because other distributions install folders called `kernels` too.
"""

import contextlib
import hashlib
import threading
import time
from collections.abc import Iterable, Mapping
from functools import cache, partial
from pathlib import Path

from dasp.runtime.cpu import threads as _threads
from dasp.runtime.cuda.driver import in_relaxed_mode
from dasp.runtime.log import logger, tell_compiling
from dasp.runtime.types import CupyDevice, KernelModule

_PACKAGE = Path(__file__).resolve().parents[2]

COMPILED_SECONDS = 0.1
"""Seconds above which a kernel was compiled: to load one from disk takes less."""

Source = tuple[str, Mapping[str, str]]
"""The name of a source, such as `spmv/dasp.cu`, and its compile-time constants."""

_Key = tuple[object, ...]

_modules: dict[_Key, KernelModule] = {}
_loading: dict[_Key, threading.Lock] = {}


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


def digest(folder: Path) -> str:
    """Return the first 12 hexadecimal digits of a SHA-256 over every file of the sources.

    Names and contents both count. The digest is an option of each compilation, because CuPy's cache of
    compiled kernels does not look into included files.
    """
    total = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        content = path.read_bytes()
        total.update(f"{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()[:12]


def read(name: str) -> str:
    """Return the text of a source, for example `read("spmv/dasp.cu")`."""
    return (find() / name).read_text(encoding="utf-8")


def with_constants(text: str, defines: Mapping[str, str], name: str) -> str:
    """Return a source that begins with its constants, sorted; errors still name the source's own lines.

    If constants were options, CuPy would let NVRTC compile an empty file for each set in each process, before
    it looks for a kernel on disk.
    """
    constants = "".join(f"#define {constant} {value}\n" for constant, value in sorted(defines.items()))
    return f'{constants}#line 1 "{name}"\n{text}'


@cache
def options() -> tuple[str, ...]:
    """Return the compiler's options, one set for all sources: CuPy calls NVRTC once for each set.

    Sources include each other by their names in `kernels/`. A module is compiled once in a process, so the
    digest is that of the first compilation.
    """
    folder = find()
    return "-std=c++17", f"-I{folder}", f"-DDASP_SOURCES={digest(folder)}"


def load(name: str, defines: Mapping[str, str]) -> KernelModule:
    """Compile a source for the current GPU, load it, and return CuPy's module.

    A module is compiled once per process, device, source and set of constants; between processes CuPy
    keeps it on disk. Several threads may call this at once, while streams are captured too.

    Parameters
    ----------
    name : str
        Such as "spmv/dasp.cu".
    defines : mapping of str to str
        Compile-time constants, such as `{"DASP_VALUE": "double"}`.

    Returns
    -------
    cupy.RawModule
        `get_function(kernel)` gives its kernels.

    Raises
    ------
    RuntimeError
        When the source does not compile.
    """
    import cupy

    key = _key(cupy.cuda.runtime.getDevice(), name, defines)
    module = _modules.get(key)
    if module is None:
        with _loading.setdefault(key, threading.Lock()):
            module = _modules.get(key) or _load(name, defines)
            _modules[key] = module
    return module


def _key(device: int, name: str, defines: Mapping[str, str]) -> _Key:
    return device, name, *sorted(defines.items())


def _load(name: str, defines: Mapping[str, str]) -> KernelModule:
    import cupy

    code = with_constants(read(name), defines, name)
    module: KernelModule = cupy.RawModule(code=code, options=options(), backend="nvrtc")
    start = time.perf_counter()
    try:
        with in_relaxed_mode():
            module.compile()
    except cupy.cuda.compiler.CompileException as error:
        raise RuntimeError(f"{name} does not compile with {dict(defines)}: {error}") from error
    seconds = time.perf_counter() - start
    logger.debug("loaded %s in %.0f ms, compiled with %s", name, 1e3 * seconds, dict(defines))
    if seconds > COMPILED_SECONDS:
        tell_compiling(seconds)
    return module


def begin_loading(wanted: Iterable[Source]) -> None:
    """Let helpers load sources for the current GPU, in order, while the caller does something else.

    `load` waits for the source that it needs, or loads it if no helper has begun. It also raises the errors
    of sources that do not compile, which helpers ignore.
    """
    import cupy

    device, number = cupy.cuda.Device(), cupy.cuda.runtime.getDevice()
    missing = {key: each for each in wanted if (key := _key(number, *each)) not in _modules}
    if missing:
        tasks = [partial(_load_quietly, device, *each) for each in missing.values()]
        _threads.offer(tasks, _threads.count_running(len(tasks)))


def _load_quietly(device: CupyDevice, name: str, defines: Mapping[str, str]) -> None:
    with device, contextlib.suppress(Exception):
        load(name, defines)
