"""Who may import whom, read from the source with `ast`, and what `import dasp` may cost."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "dasp"
KERNELS = ROOT / "kernels"
MODULES = sorted(PACKAGE.rglob("*.py"))
CUDA_SOURCES = sorted([*KERNELS.rglob("*.cu"), *KERNELS.rglob("*.cuh")])
FORBIDDEN_ROOMS = {"utils", "util", "helpers", "helper", "common", "misc", "core"}


def module_name(path: Path) -> str:
    """The dotted name of a module in the checkout: dasp/matrix.py is dasp.matrix."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(nodes: ast.AST, importer: Path) -> Iterator[str]:
    """The absolute dotted names that the import statements below a node ask for."""
    for node in ast.walk(nodes):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module_name(importer).split(".")
                keep = len(package) - node.level + (importer.name == "__init__.py")
                base = ".".join([*package[:keep], *([base] if base else [])])
            # `from dasp import plan` may name a module or a value: both readings are reported.
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (
                a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)
            )


def every_import(path: Path) -> set[str]:
    """All names a file imports, wherever in it the statement stands."""
    return set(imports(ast.parse(path.read_text(encoding="utf-8")), path))


class Executed(ast.NodeTransformer):
    """Keeps what runs when a module is imported: no function's body, nothing under TYPE_CHECKING."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        return None

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        return None

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        if "TYPE_CHECKING" in ast.unparse(node.test):
            return [self.visit(child) for child in node.orelse]
        return self.generic_visit(node)


def imports_on_load(path: Path) -> set[str]:
    """The names a file imports when it is itself imported."""
    return set(imports(Executed().visit(ast.parse(path.read_text(encoding="utf-8"))), path))


def within(names: set[str], package: str) -> set[str]:
    """The names that are a package or stand below it."""
    return {name for name in names if name == package or name.startswith(package + ".")}


def may_use_cupy(path: Path) -> bool:
    """The files that may import CuPy, inside a function: the GPU backends and the command line's."""
    relative = path.relative_to(PACKAGE).as_posix()
    allowed = (
        r"backends/cuda/\w+\.py",
        r"_(source|arrays|launch)\.py",
        r"dense/(\w+/)?(\w*_)?cuda(_\w*)?\.py",
        r"(tuning|bench|commands)/\w+\.py",
        r"solvers/cuda\.py",
    )
    return any(re.fullmatch(pattern, relative) for pattern in allowed)


def test_the_readers_of_imports_see_every_form() -> None:
    source = """
if TYPE_CHECKING:
    import one
import two.three
from ..preprocess import four
from . import cuda
def late():
    import five
    importlib.import_module("six")
"""
    importer = PACKAGE / "backends" / "cpu.py"
    everything = set(imports(ast.parse(source), importer))
    assert {"one", "two.three", "dasp.preprocess", "dasp.backends.cuda", "five", "six"} <= everything
    loaded = set(imports(Executed().visit(ast.parse(source)), importer))
    assert {"two.three", "dasp.preprocess", "dasp.backends.cuda"} <= loaded
    assert not {"one", "five", "six"} & loaded


def test_the_house_stands() -> None:
    # The rules below say nothing about files that do not exist, so these must.
    names = {path.relative_to(PACKAGE).as_posix() for path in MODULES}
    assert {
        "planning.py",
        "policy.py",
        "formats/sliced/pack.py",
        "formats/published/pack.py",
        "matrix.py",
        "_source.py",
        "backends/cpu/sliced.py",
        "backends/cpu/published.py",
        "backends/cuda/sliced.py",
        "backends/cuda/published.py",
    } <= names
    assert KERNELS / "mma.cuh" in CUDA_SOURCES


@pytest.mark.parametrize("path", [path for path in MODULES if "formats" in path.parts], ids=module_name)
def test_formats_know_no_backend_and_import_numpy_alone(path: Path) -> None:
    names = every_import(path)
    for above in ("backends", "planning", "policy", "matrix", "io"):
        assert not within(names, f"dasp.{above}")
    assert {name.split(".")[0] for name in names} <= {*sys.stdlib_module_names, "numpy", "dasp"}


@pytest.mark.parametrize(("name", "other"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_a_backend_sees_the_plan_only(name: str, other: str) -> None:
    files = [path for path in MODULES if re.fullmatch(rf"dasp\.backends\.{name}\.\w+", module_name(path))]
    assert files
    names = set().union(*map(every_import, files))
    assert within(names, "dasp.formats.array")
    for above in ("planning", "policy", "matrix", f"backends.{other}"):
        assert not within(names, f"dasp.{above}")


def test_only_formats_and_their_files_in_the_backends_know_one() -> None:
    inside = re.compile(r"formats/|backends/(cpu|cuda)/|backends/protocols\.py")
    for path in MODULES:
        names = every_import(path)
        if not inside.match(path.relative_to(PACKAGE).as_posix()):
            assert not within(names, "dasp.formats.sliced"), path
            assert not within(names, "dasp.formats.published"), path


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_cupy_is_imported_lazily_and_in_few_files(path: Path) -> None:
    def cupy(names: set[str]) -> set[str]:
        return {name for name in names if name.split(".")[0] in {"cupy", "cupyx", "cupy_backends"}}

    assert not cupy(imports_on_load(path))
    if not may_use_cupy(path):
        assert not cupy(every_import(path))


# What makes the passes of each device: threads that the products have started; kernels of their own.
SPACES = {
    "cpu.py": {"dasp.backends.cpu.team"},
    "cuda.py": {"dasp._source", "dasp.backends.cuda.launch"},
}


def test_solvers_ask_the_operator() -> None:
    files = [path for room in ("solvers", "preconditioners") for path in (PACKAGE / room).glob("*.py")]
    assert any(path.name in SPACES for path in files)
    for path in files:
        names = every_import(path)
        for shared in SPACES.get(path.name, set()):
            names -= within(names, shared)
        if path.parent.name == "solvers":
            assert not within(names, "dasp.matrix"), path
        for private in ("plan", "preprocess", "formats", "planning", "backends", "_source"):
            assert not within(names, f"dasp.{private}"), path
        touched = {n.attr for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Attribute)}
        assert not {"plan", "_plan"} & touched, path


def builds_a_path_to_kernels(path: Path) -> bool:
    """Whether a file joins or opens a path whose first step is `kernels`, as in `root / "kernels"`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    joined = [n.right for n in ast.walk(tree) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div)]
    passed = [argument for n in ast.walk(tree) if isinstance(n, ast.Call) for argument in n.args]
    steps = [n.value for n in (*joined, *passed) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return any(step.split("/")[0] == "kernels" for step in steps)


def test_only_source_knows_where_the_kernels_are() -> None:
    assert [path.name for path in MODULES if builds_a_path_to_kernels(path)] == ["_source.py"]


@pytest.mark.parametrize("path", CUDA_SOURCES, ids=lambda path: path.relative_to(KERNELS).as_posix())
def test_a_cuda_file_includes_headers_only(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    directives = re.findall(r"^\s*#\s*include\s+(\S+)", text, flags=re.MULTILINE)
    for target in directives:
        if target.startswith("<"):
            assert re.fullmatch(r"<[\w/.]+>", target), target
        else:
            assert re.fullmatch(r'"[\w/.]+\.cuh"', target), target
            name = target.strip('"')
            assert (KERNELS / name).is_file() or (path.parent / name).is_file(), f"{target} does not exist"


@pytest.mark.parametrize("top", ["dasp", "kernels", "tests", "benchmarks", "matrices"])
def test_no_room_without_a_purpose(top: str) -> None:
    for path in (ROOT / top).rglob("*"):
        assert path.stem not in FORBIDDEN_ROOMS, path
        assert not re.search(r"_v\d+$", path.stem), path


def test_kernels_cannot_be_imported() -> None:
    assert not list(KERNELS.rglob("*.py"))


# On Linux a thread that a library starts behind Python's back shows among the process's tasks.
IMPORT_DASP = """
import os, sys, threading, time
start = time.perf_counter()
import dasp
seconds = time.perf_counter() - start
tasks = len(os.listdir("/proc/self/task")) if sys.platform == "linux" else 1
cupy = sorted(name for name in sys.modules if name.split(".")[0] in ("cupy", "cupyx", "cupy_backends"))
print(seconds, tasks, threading.active_count(), *cupy)
"""


def test_import_is_quick_and_quiet() -> None:
    """No new thread, no CuPy, nothing printed; and under a second, in one of five tries on a busy machine."""
    # OpenBLAS starts its threads when NumPy is imported, which is NumPy's affair: one thread keeps it quiet.
    quiet = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-c", IMPORT_DASP]
    seconds: list[float] = []
    while len(seconds) < 5 and min(seconds, default=1.0) >= 1.0:
        answer = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, timeout=120)
        assert answer.returncode == 0, answer.stderr
        assert answer.stderr == ""
        taken, tasks, threads, *cupy = answer.stdout.split()
        assert (tasks, threads, cupy) == ("1", "1", [])
        seconds.append(float(taken))
    assert min(seconds) < 1.0


def test_public_names_are_there_and_need_no_cupy() -> None:
    program = """
import sys, threading
import dasp
missing = [name for name in dasp.__all__ if not hasattr(dasp, name)]
cupy = [name for name in sys.modules if name.split(".")[0] in ("cupy", "cupyx", "cupy_backends")]
print(len(dasp.__all__), missing, cupy, threading.active_count())
"""
    command = [sys.executable, "-c", program]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stderr
    names, rest = answer.stdout.strip().split(" ", 1)
    assert int(names) > 3
    assert rest == "[] [] 1"
