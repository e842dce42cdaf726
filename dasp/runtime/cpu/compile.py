"""Compilation for this processor: kept on disk where that is possible, and never interrupted by a signal.

Compiled code is kept in the folder that the environment variable `DASP_CACHE` names; `DASP_CACHE=0` (or an
empty one) keeps nothing. Without it, Numba chooses: the folder that `NUMBA_CACHE_DIR` names, `__pycache__`
beside the source, or the user's cache. Where none of them can be written, or what they hold cannot be read,
functions are compiled anew in every process, after one warning.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, cast

import llvmlite.binding
from llvmlite.binding.ffi import lib
from numba import config, njit
from numba.core.base import BaseContext
from numba.core.caching import FunctionCache, IndexDataCacheFile, NullCache
from numba.core.ccallback import CFunc
from numba.core.compiler import CompileResult
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher
from numba.core.sigutils import normalize_signature
from numba.core.typing import Signature

from dasp.runtime.log import logger, tell_compiling
from dasp.runtime.process import Deferred, hold_at_fork

_REMEDY = (
    "a folder that can be written is needed, or every process compiles again, which takes seconds; "
    "set DASP_CACHE to such a folder, or to 0 to do without"
)
_OFF = ("", "0", "no", "off", "false", "none")
_warned = False


def jit(
    signature: Signature | None = None, *, cache: bool = True, **options: Any
) -> Callable[[Callable[..., Any]], Dispatcher]:
    """Return a decorator that compiles a function, as `numba.njit` does.

    Parameters
    ----------
    signature : numba signature, optional
        The only types that the function takes, compiled at once. Without it, a call with new types compiles.
    cache : bool
        True to keep the compiled code on disk. Numba never again finds the code of a function whose closure
        holds other compiled functions.
    **options
        Numba's: `nogil`, `parallel`, ... Not `fastmath`, with which bits would differ between processes:
        each runs the copy of a callee that it loads first, and copies would round differently. With
        `forceinline` or `inline` only compiled functions may call the function: it has no entry for Python,
        and is kept only as a part of its callers. `inline="always"` makes it part of its callers before they
        are optimized, so that it is optimized once, not twice; it then cannot branch by the number of
        dimensions.
    """

    def decorate(function: Callable[..., Any]) -> Dispatcher:
        if config.DISABLE_JIT:
            raise RuntimeError(
                "NUMBA_DISABLE_JIT is set; what dasp does on a CPU is compiled by Numba; unset it"
            )
        inlined = "forceinline" in options or "inline" in options
        compiled: Any = njit(no_cpython_wrapper=inlined, no_cfunc_wrapper=True, **options)(function)
        compiled._cache = _NoCache()
        if cache and not inlined:
            _keep(compiled, function)
        compiled.compile = _defer_signals(function.__name__, compiled.compile)
        if signature is not None:
            compiled.compile(signature)
            compiled.disable_compile()
        return cast("Dispatcher", compiled)

    return decorate


def c_function(signature: Signature, function: Callable[..., None], **options: Any) -> Any:
    """Compile a function for callers in C, as `numba.cfunc` does; they call its `address`."""
    compiled: Any = CFunc(function, normalize_signature(signature), locals={}, options=options)
    compiled._cache = _NoCache()
    _keep(compiled, function)
    _defer_signals(function.__name__, compiled.compile)()
    return compiled


@functools.cache
def find_features() -> frozenset[str]:
    """Return the instruction set extensions that Numba compiles for, in LLVM's words: `avx2`, `gfni`, ...

    They are the processor's own, unless NUMBA_CPU_FEATURES names others (Numba takes none of them for
    NUMBA_CPU_NAME=generic). Empty where LLVM cannot tell.
    """
    if config.CPU_FEATURES is not None:
        return frozenset(name[1:] for name in config.CPU_FEATURES.split(",") if name.startswith("+"))
    try:
        found = llvmlite.binding.get_host_cpu_features()
    except RuntimeError:
        return frozenset()
    usable = (name for name, present in found.items() if present)
    return frozenset(name for name in usable if config.ENABLE_AVX or not name.startswith("avx"))


@functools.cache
def name_processor() -> str:
    """Return the name of the processor's design in LLVM's words, such as `znver4`."""
    return str(config.CPU_NAME or llvmlite.binding.get_host_cpu_name())


def _defer_signals(name: str, compile_function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a compiling function that holds signals back, as LLVM loses what a handler raises inside it."""

    def compile_deferred(*arguments: object) -> Any:
        start, misses = time.perf_counter(), _Cache.saves
        with Deferred(), _pause_collection():
            found = compile_function(*arguments)
        seconds = time.perf_counter() - start
        if _Cache.saves == misses:
            logger.debug("found %s compiled in %.2f s", name, seconds)
        else:
            logger.debug("compiled %s in %.2f s", name, seconds)
            tell_compiling(seconds)
        return found

    return compile_deferred


@contextlib.contextmanager
def _pause_collection() -> Iterator[None]:
    """Keep Python from searching for cyclic garbage, and other threads from compiling.

    Numba makes objects by the hundred thousand and keeps most of them: the search takes 6% of a first solve,
    and finds little.
    """
    with global_compiler_lock:  # so that no other thread finds the search off and leaves it so
        enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if enabled:
                gc.enable()


class _Files(IndexDataCacheFile):  # type: ignore[misc]  # Numba's types are skipped
    """The files of one function's compiled code, each named by all that the code depends on.

    Numba itself numbers the files in an index. If two processes compile at the same time, one may write its
    code under a number that stands for other types in the other's index; then results are wrong, or the
    process crashes. Here the name says what a file holds, and there is no index.
    """

    def save(self, key: tuple[object, ...], data: object) -> None:
        """Write code to its file, in place of the same code from another process."""
        self._save_data(self._find_name(key), data)

    def load(self, key: tuple[object, ...]) -> Any:
        """Return the code that is kept, or None."""
        try:
            return self._load_data(self._find_name(key))
        except FileNotFoundError:
            return None

    def _find_name(self, key: tuple[object, ...]) -> str:
        found = hashlib.sha256(repr((self._version, self._source_stamp, key)).encode())
        return f"{self._index_name.removesuffix('.nbi')}.{found.hexdigest()[:32]}.nbc"


class _Cache(FunctionCache):  # type: ignore[misc]  # Numba's types are skipped
    """Numba's cache of one function; if it cannot be read or written, code is compiled without an error.

    Attributes
    ----------
    saves : int
        How often this process compiled code that was not found, or is not kept.
    """

    saves = 0

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__(function)
        locator = self._impl.locator
        self._cache_file = _Files(self.cache_path, self._impl.filename_base, locator.get_source_stamp())

    def load_overload(self, sig: Signature, target_context: BaseContext) -> CompileResult | None:
        """Return the code that is kept for a signature, or None."""
        try:
            return super().load_overload(sig, target_context)
        except (OSError, MemoryError, ImportError) as error:  # not the files' fault
            _warn(f"compiled code in {self.cache_path} cannot be read ({_short(error)}); {_REMEDY}")
        except Exception as error:  # files may be damaged in any way
            _warn(
                f"compiled code in {self.cache_path} cannot be read ({_short(error)}); it is compiled again"
            )
        return None

    def save_overload(self, sig: Signature, data: CompileResult) -> None:
        """Keep the code that was compiled for a signature."""
        _Cache.saves += 1
        try:
            super().save_overload(sig, data)
        except Exception as error:  # a full disk, or a folder that is gone
            _warn(f"compiled code cannot be kept in {self.cache_path} ({_short(error)}); {_REMEDY}")


class _NoCache(NullCache):  # type: ignore[misc]  # Numba's types are skipped
    """The cache of a function whose code is not kept; it counts what is compiled."""

    def save_overload(self, sig: Signature, data: CompileResult) -> None:
        """Keep nothing."""
        _Cache.saves += 1


def _keep(compiled: Any, function: Callable[..., Any]) -> None:
    """Give a compiled function the cache that the environment asks for, or warn if there can be none."""
    named = os.environ.get("DASP_CACHE")
    if named is not None and named.strip().lower() in _OFF:
        return
    folder = os.path.abspath(os.path.expanduser(named)) if named else ""
    try:
        cache = _cache_in(folder, function)
    except (RuntimeError, OSError):
        cache = None
    if cache is None or (folder and not cache.cache_path.startswith(folder)):
        given = f"DASP_CACHE is {named!r}" if named else "no folder that keeps compiled code can be written"
        _warn(f"{given}; {_REMEDY}")
    else:
        compiled._cache = cache


def _cache_in(folder: str, function: Callable[..., Any]) -> _Cache | None:
    """Return a cache below a folder, or where Numba finds a place if none is named.

    Raises
    ------
    RuntimeError, OSError
        If nothing can be written.
    """
    if not folder and not config.CACHE_DIR and _is_homeless(function):
        return None
    with global_compiler_lock:  # a fork waits for it, so that no child has the setting half changed
        usual = config.CACHE_DIR
        try:
            config.CACHE_DIR = folder or usual
            return _Cache(function)
        finally:
            config.CACHE_DIR = usual


def _is_homeless(function: Callable[..., Any]) -> bool:
    """Return True if neither a home nor a place beside the source exists: Numba would make a folder `~`."""
    home = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~"))
    beside = os.path.dirname(function.__code__.co_filename)
    return sys.platform != "win32" and not os.path.isabs(home) and not os.access(beside, os.W_OK)


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _warn(problem: str) -> None:
    """Warn once in a process."""
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(problem, RuntimeWarning, stacklevel=2)


_llvm_lock: contextlib.AbstractContextManager[object] = getattr(lib, "_lock", contextlib.nullcontext())


def _hold_compiler() -> None:
    with Deferred():
        global_compiler_lock.acquire()
        _llvm_lock.__enter__()  # a thread that only drops compiled code holds it too


def _release_compiler() -> None:
    _llvm_lock.__exit__(None, None, None)
    global_compiler_lock.release()


hold_at_fork(_hold_compiler, _release_compiler)
