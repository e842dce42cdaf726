"""Compile a .cu file with g++ into a shared library, once per digest of everything that goes in."""

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from .launch import Module

HERE = Path(__file__).resolve().parent
KERNELS = HERE.parents[1] / "kernels"
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)

# The sanitizers' libraries are not linked: runtime.cpp defines what they call. The optimisations that
# are off would merge or move accesses ahead of the checks.
KERNEL_FLAGS = (
    *("-Og", "-g1", "-std=c++17", "-fPIC", "-w", "-fno-exceptions", "-fno-rtti", "-fno-gnu-unique"),
    *("-ffp-contract=off", "-fno-strict-aliasing"),
    "-fsanitize=thread,bounds,alignment,shift-exponent,signed-integer-overflow,integer-divide-by-zero",
    *("--param", "tsan-instrument-func-entry-exit=0"),
    *(
        "-fno-tree-vectorize",
        "-fno-tree-slp-vectorize",
        "-fno-tree-loop-distribute-patterns",
        "-fno-store-merging",
    ),
    *("-D__global__=__attribute__((noinline))", "-D__shared__=thread_local", "-D__launch_bounds__(...)="),
)
RUNTIME_FLAGS = ("-O2", "-g1", "-std=c++17", "-fPIC", "-Wall", "-Wextra", "-fno-exceptions")
if os.environ.get("DASP_SIMT_UCONTEXT"):  # the way of machines other than x86-64, to try it here
    RUNTIME_FLAGS += ("-DSIMT_UCONTEXT",)


most_in_flight = 2
"""Steps of a slice whose loads a kernel has in flight here: a third of the code of eight to compile."""


@functools.cache
def compiler() -> tuple[str, str]:
    """The C++ compiler and what it says of its version. `CXX` chooses another one."""
    name = os.environ.get("CXX", "g++")
    path = shutil.which(name)
    if path is None:
        raise RuntimeError(
            f"no C++ compiler called {name!r}; the kernels run on the CPU through g++ 9 or newer; "
            "install it (Debian, Ubuntu: apt-get install g++) or name one in CXX"
        )
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    if "clang" in version.lower():
        raise RuntimeError(f"{path} is clang; the emulator needs g++ 9 or newer; set CXX=g++")
    return path, version


@functools.cache
def linker() -> tuple[str, ...]:
    """Return the option that chooses the linker: gold, where it is, takes a third of the time."""
    return ("-fuse-ld=gold",) if shutil.which("ld.gold") else ()


def cache_folder() -> Path:
    """Where compiled kernels are kept: `DASP_SIMT_CACHE`, else the user's cache folder."""
    given = os.environ.get("DASP_SIMT_CACHE")
    if given:
        return Path(given)
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "dasp" / "simt"


def compile_kernels(name: str, defines: Mapping[str, object] | None = None) -> Module:
    """Compile `kernels/<name>` with the given defines and load it; copies of the project share the result.

    Raises RuntimeError when there is no compiler or the file does not compile.
    """
    path = KERNELS / name
    if not path.is_file():
        raise FileNotFoundError(f"no kernel file {name!r}; looked in {KERNELS}")
    constants = dict(defines or {})
    if "DASP_REGISTERS" in constants:  # of which the emulator has as many as it is asked for
        constants["DASP_REGISTERS"] = "64"
    if "DASP_IN_FLIGHT" in constants:  # any number gives the same bits
        constants["DASP_IN_FLIGHT"] = str(min(int(constants["DASP_IN_FLIGHT"]), most_in_flight))
    return compile_text(f'#include "{name}"\n', constants, title=name)


def compile_text(
    text: str, defines: Mapping[str, object] | None = None, *, title: str = "kernel text"
) -> Module:
    """Compile kernels given as text, which may include any of `kernels/*.cuh`, and load them."""
    flags = tuple(f"-D{key}={value}" for key, value in sorted((defines or {}).items()))
    return _load(text, flags, title)


@functools.cache
def _load(text: str, flags: tuple[str, ...], title: str) -> Module:
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    ingredients = [_emulator(), *((path.name, _read(path)) for path in _included(text))]
    name = hashlib.sha256(repr((text, flags, ingredients)).encode()).hexdigest()[:24]
    library, notes = folder / f"{name}.so", folder / f"{name}.json"
    if not (library.is_file() and notes.is_file()):
        with _one_builder(folder / f"{name}.lock"):
            if not (library.is_file() and notes.is_file()):
                _build(text, flags, library, notes, title)
    return Module(library, json.loads(notes.read_text()), title)


@functools.cache
def _emulator() -> str:
    """Return a digest of the emulator and its compiler, as they were when this process first asked."""
    digest = hashlib.sha256(repr((KERNEL_FLAGS, RUNTIME_FLAGS, compiler(), sys.platform)).encode())
    for path in sorted(HERE.iterdir()):
        if path.name.endswith((".h", ".cpp", "build.py")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


@functools.cache
def _read(path: Path) -> str:
    """Return the text of a file, as it was when this process first asked."""
    return path.read_text()


def _included(text: str) -> list[Path]:
    """Return the files that a text includes, and that they include, whatever the constants."""
    found: list[Path] = []
    wanted = [(KERNELS, name) for name in _INCLUDE.findall(text)]
    while wanted:
        folder, name = wanted.pop()
        for path in (folder / name, KERNELS / name):
            if path.is_file():
                if (path := path.resolve()) not in found:
                    found.append(path)
                    wanted += [(path.parent, each) for each in _INCLUDE.findall(_read(path))]
                break
    return sorted(found)


@contextlib.contextmanager
def _one_builder(path: Path) -> Iterator[None]:
    """One process at a time makes a file; the others wait and find it made."""
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    path.unlink(missing_ok=True)


def _build(text: str, flags: tuple[str, ...], library: Path, notes: Path, title: str) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as temporary:
        made = Path(temporary)
        name = Path(title).name if title.endswith(".cu") else "kernel.cu"
        source, rewritten, kernel_object = made / name, made / "rewritten.cpp", made / "kernel.o"
        source.write_text(text)
        include = ["-DDASP_SIMT", f"-I{HERE}", f"-I{KERNELS}", "-include", str(HERE / "simt.h")]
        preprocessed = _run([*include, *flags, "-std=c++17", "-E", "-x", "c++", str(source)], title)
        kernels, code = rewrite(preprocessed)
        rewritten.write_text(code)
        _run([*KERNEL_FLAGS, "-c", str(rewritten), "-o", str(kernel_object)], title)
        linked = made / "linked.so"
        _run(
            [
                "-shared",
                *linker(),
                "-Wl,-Bsymbolic",
                str(kernel_object),
                str(_runtime_object()),
                "-o",
                str(linked),
                "-lm",
                "-ldl",
            ],
            title,
        )
        (made / "notes.json").write_text(json.dumps({"kernels": kernels, "shared": _shared_arrays(linked)}))
        os.replace(made / "notes.json", notes)
        os.replace(linked, library)
    _forget_old(library.parent)


@functools.cache
def _forget_old(folder: Path) -> None:
    """Remove what was built more than two weeks ago: an edit of a kernel leaves its libraries behind."""
    for path in folder.glob("*.*"):
        if path.suffix in (".so", ".json", ".lock", ".o"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > 14 * 86400:
                    path.unlink()


def _runtime_object() -> Path:
    source = HERE / "runtime.cpp"
    key = hashlib.sha256(repr((source.read_bytes(), RUNTIME_FLAGS, compiler())).encode()).hexdigest()[:24]
    made = cache_folder() / f"runtime-{key}.o"
    if made.is_file():
        return made
    with _one_builder(made.with_suffix(".lock")):
        if made.is_file():
            return made
        with tempfile.TemporaryDirectory(dir=cache_folder()) as temporary:
            out = Path(temporary) / "runtime.o"
            _run([*RUNTIME_FLAGS, "-c", str(source), "-o", str(out)], "the emulator's runtime")
            os.replace(out, made)
    return made


def _run(arguments: list[str], title: str) -> str:
    done = subprocess.run([compiler()[0], *arguments], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"g++ does not compile {title}:\n{done.stderr[:6000]}")
    return done.stdout


def rewrite(code: str) -> tuple[dict[str, list[str]], str]:
    """Find the kernels in preprocessed code and make it C++.

    Returns the parameters' names by kernel, and the code: `extern __shared__ T name[];` has become a pointer,
    and for each kernel a description follows from which Python launches it.
    """
    code = re.sub(
        r"\bextern\s+__shared__\s+([^;{}]*?)\b(\w+)\s*\[\s*\]\s*;",
        r"\1 *const \2 = simt::DynamicShared();",
        code,
    )
    kernels: dict[str, list[str]] = {}
    descriptions = []
    for match in re.finditer(r"\b__global__\b([^;{]*)\{", code):
        if code[: match.start()].rstrip().endswith(">"):
            continue  # a template: no entry point
        head = re.sub(r"^# .*$", " ", match[1], flags=re.M)
        head, bounds = _cut(head, "__launch_bounds__")
        head, _ = _cut(head, "__attribute__")
        name, parameters = _name_and_parameters(head)
        kernels[name] = parameters
        descriptions.append(
            f'extern "C" {{ extern const simt::Kernel simt_kernel_{name};\n'
            f"const simt::Kernel simt_kernel_{name} = "
            f'simt::Launcher<{name}>::kernel("{name}", simt::first_of({bounds})); }}\n'
        )
    return kernels, code + "\n" + "".join(descriptions)


def _cut(text: str, word: str) -> tuple[str, str]:
    """Take `word(...)` out of a text; also return what stood in the last of the brackets."""
    inside = ""
    while (start := text.find(word)) >= 0:
        opening = text.index("(", start)
        closing = _closing(text, opening)
        inside = text[opening + 1 : closing]
        text = text[:start] + text[closing + 1 :]
    return text, inside


def _closing(text: str, opening: int) -> int:
    depth = 0
    for i in range(opening, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0:
            return i
    raise ValueError(f"no closing bracket in {text[opening : opening + 80]!r}")


def _name_and_parameters(head: str) -> tuple[str, list[str]]:
    found = re.search(r"(\w+)\s*\(", head)
    if not found:
        raise ValueError(f"__global__ before {head[:80]!r}, which is no function")
    opening = found.end() - 1
    inside = head[opening + 1 : _closing(head, opening)]
    parts, depth, start = [], 0, 0
    for i, letter in enumerate(inside + ","):
        depth += (letter in "(<[") - (letter in ")>]")
        if letter == "," and depth == 0:
            parts.append(inside[start:i])
            start = i + 1
    names = [words[-1] for part in parts if (words := re.findall(r"\w+", part))]
    return found[1], [] if names == ["void"] else names


def _shared_arrays(library: Path) -> list[tuple[int, int, str]]:
    """Offset in bytes, size in bytes and name of each static __shared__ array."""
    readelf = shutil.which("readelf")
    if readelf is None:
        return []
    table = subprocess.run([readelf, "-sWC", str(library)], capture_output=True, text=True).stdout
    found = set()
    for line in table.splitlines():
        words = line.split(maxsplit=7)
        if len(words) == 8 and words[3] == "TLS" and words[6] != "UND":
            found.add((int(words[1], 16), int(words[2], 0), words[7].split("::")[-1]))
    return sorted(found)
