"""Who may import whom, read from the source and followed to the end, and what `import dasp` may cost.

An import counts wherever it stands: at the head, inside a function, for a type checker, by `importlib`, or as
the name of a module in a string. A rule about modules that do not exist fails.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "dasp"
KERNELS = ROOT / "kernels"
CUDA_SOURCES = sorted([*KERNELS.rglob("*.cu"), *KERNELS.rglob("*.cuh")])
FORBIDDEN_ROOMS = {"utils", "util", "helpers", "helper", "common", "misc", "core"}
Imports = dict[str, set[str]]
"""The modules of a package, and what each of them imports."""


def module_name(path: Path) -> str:
    """The dotted name of a module in the checkout: dasp/matrix/matrix.py is dasp.matrix.matrix."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def names(node: ast.AST, importer: str, is_package: bool) -> Iterator[str]:
    """The absolute dotted names that a node asks for, those that it does not import among them."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            package = importer.split(".")
            keep = len(package) - node.level + is_package
            base = ".".join([*package[:keep], *([base] if base else [])])
        # `from dasp import plan` may name a module or a value; only what is a module counts in the end.
        yield from (f"{base}.{alias.name}" for alias in node.names)
        yield base
    elif isinstance(node, ast.JoinedStr) and node.values and isinstance(node.values[0], ast.Constant):
        yield f"{node.values[0].value}*"
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def imported(source: str, importer: str, modules: set[str], *, is_package: bool = False) -> set[str]:
    """The modules among `modules` that a source imports.

    `from package import name` imports the module of that name where there is one, else the package. An
    f-string that begins with a package's name and a dot may import every module just below it.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        asked = list(names(node, importer, is_package))
        if isinstance(node, ast.ImportFrom):
            *below, base = asked
            inside = {name for name in below if name in modules}
            found |= inside
            found |= {base} & modules if len(inside) < len(below) else set()
        elif isinstance(node, ast.JoinedStr) and asked and "." in asked[0]:
            package = asked[0].rpartition(".")[0]
            found |= {name for name in modules if name.rpartition(".")[0] == package}
        else:
            found |= modules.intersection(asked)
    return found - {importer}


@cache
def graph() -> Imports:
    """What every module imports; `dasp` itself nothing: the names that it offers are looked up late."""
    every = set(MODULES)
    return {
        name: imported(path.read_text(encoding="utf-8"), name, every, is_package=path.name == "__init__.py")
        if name != "dasp"
        else set()
        for name, path in MODULES.items()
    }


def reach(imports: Imports, start: str) -> dict[str, str]:
    """The modules that a module comes to, and the one that each was first come to from."""
    found: dict[str, str] = {}
    waiting = [start]
    while waiting:
        at = waiting.pop(0)
        for name in sorted(imports[at] - found.keys() - {start}):
            found[name] = at
            waiting.append(name)
    return found


def way(found: dict[str, str], start: str, end: str) -> str:
    """How a module is come to, in words."""
    steps = [end]
    while steps[0] != start:
        steps.insert(0, found[steps[0]])
    return " -> ".join(steps)


def circles(imports: Imports) -> list[str]:
    """A way from each module back to itself, where there is one."""
    found = []
    for start in imports:
        for last in sorted(name for name in [start, *reach(imports, start)] if start in imports[name]):
            found.append(f"{way(reach(imports, start), start, last)} -> {start}")
            break
    return found


def below(*rooms: str) -> set[str]:
    """The modules that stand in some rooms; each room must have some."""
    found: set[str] = set()
    for room in rooms:
        pattern = rf"dasp\.{re.escape(room)}(\..+)?"
        inside = {name for name in MODULES if re.fullmatch(pattern, name) and name != "dasp.__main__"}
        assert inside, f"there is no dasp.{room}; a rule speaks of it"
        found |= inside
    return found


TOP = ("cli",)
FORMATS = ("formats", "runtime", "_version")
MATRIX = ("matrix", "interop", "io", "models", *FORMATS)
RULES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "runtime": (("runtime",), ("runtime", "_version")),
    "matrices in compressed rows": (("formats.csr",), ("formats.csr", "runtime", "_version")),
    "formats": (("formats",), FORMATS),
    "matrix": (("matrix", "interop"), MATRIX),
    "solvers": (("solvers",), ("solvers", *FORMATS)),
    "preconditioners": (
        ("preconditioners", "multigrid"),
        ("preconditioners", "multigrid", "solvers", *MATRIX),
    ),
    "ranks": (("distributed",), ("distributed", "preconditioners", "multigrid", "solvers", *MATRIX)),
    "dense products": (("dense",), ("dense", "runtime", "_version")),
    "models": (("models",), ("models", *FORMATS)),
    "files": (("io",), ("io", "models", *FORMATS)),
}
"""Whose modules may come to which rooms, however far the way; what is not named may not be come to."""

UPWARD: set[tuple[str, str]] = set()
"""Imports that still run upwards, importer first; the list may only shrink."""


def test_the_reader_sees_every_form() -> None:
    source = """
if TYPE_CHECKING:
    import one
import two.three
from ..preprocess import four
from . import cuda
from package import name
HOMES = {"name": "seven.eight"}
def late():
    import five
    importlib.import_module("six")
    importlib.import_module(f"nine.{which}")
"""
    modules = {"one", "two.three", "dasp.preprocess", "dasp.devices.cuda", "five", "six", "seven.eight"}
    modules |= {"nine.a", "nine.b", "nine.b.c", "package", "dasp.devices.cpu"}
    found = imported(source, "dasp.devices.cpu", modules)
    assert found == modules - {"nine.b.c", "dasp.devices.cpu"}
    assert imported("from . import a", "nine", modules, is_package=True) == {"nine.a"}
    assert imported("from nine import a", "x", {*modules, "nine"}) == {"nine.a"}
    assert imported("from nine import a, z", "x", {*modules, "nine"}) == {"nine.a", "nine"}


def test_the_way_is_followed_to_its_end() -> None:
    imports: Imports = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"d"}}
    assert way(reach(imports, "a"), "a", "c") == "a -> b -> c"
    assert circles(imports) == ["b -> c -> b", "c -> b -> c", "d -> d"]
    assert circles({"a": {"b"}, "b": set()}) == []


@cache
def ordered() -> Imports:
    """What every module imports, but for the imports that still run upwards."""
    return {name: asked - {end for start, end in UPWARD if start == name} for name, asked in graph().items()}


def test_every_upward_import_of_the_list_is_there() -> None:
    assert [(start, end) for start, end in sorted(UPWARD) if end not in graph()[start]] == []


def test_there_is_no_circle() -> None:
    assert circles(graph()) == []


def started() -> Imports:
    """What runs when each module is imported first: modules that it names, and packages that these are in."""
    found = Imports()
    for name, path in MODULES.items():
        tree = Executed().visit(ast.parse(path.read_text(encoding="utf-8")))
        statements = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
        source = "\n".join(map(ast.unparse, statements))
        asked = imported(source, name, set(MODULES), is_package=path.name == "__init__.py")
        entered = {package for module in asked for package in packages_of(module)}
        found[name] = (asked | entered) - {"dasp", name, *(packages_of(name) - asked)}
    return found


def packages_of(module: str) -> set[str]:
    """The packages that a module is in."""
    steps = module.split(".")
    return {".".join(steps[:count]) for count in range(1, len(steps))}


def test_every_module_can_be_the_first_import() -> None:
    assert circles(started()) == []


@pytest.mark.parametrize("name", RULES)
def test_no_arrow_runs_back_up(name: str) -> None:
    rooms, allowed = RULES[name]
    may = below(*allowed) | {"dasp"}
    for start in sorted(below(*rooms)):
        found = reach(ordered(), start)
        wrong = [way(found, start, end) for end in found if end not in may]
        assert not wrong


def test_only_formats_know_a_format() -> None:
    inside = below("formats", "solvers.persistent")
    for start in sorted(graph().keys() - inside):
        known = ordered().get(start, set()) & below("formats.sell", "formats.dasp")
        assert not known, f"{start} knows {known}"


def test_a_rule_about_a_room_that_is_not_there_fails() -> None:
    with pytest.raises(AssertionError, match=r"there is no dasp\.nosuch"):
        below("nosuch")


def test_nobody_but_the_cost_model_names_a_machine() -> None:
    for name, path in MODULES.items():
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        used = {node.id for node in nodes if isinstance(node, ast.Name)}
        used |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        used |= {one.name for node in nodes if isinstance(node, ast.ImportFrom) for one in node.names}
        assert name == "dasp.formats.cost" or not used & {"H200", "ZEN4"}, name


def test_nobody_imports_what_stands_on_top() -> None:
    top = below(*TOP)
    for start in sorted(graph().keys() - top - {"dasp", "dasp.__main__"}):
        found = reach(graph(), start)
        assert not [way(found, start, end) for end in found if end in top]


def test_the_package_offers_names_and_loads_nothing() -> None:
    source = (PACKAGE / "__init__.py").read_text(encoding="utf-8")
    asked = [name for node in Executed().visit(ast.parse(source)).body for name in names(node, "dasp", True)]
    own = {name for name in asked if name.split(".")[0] == "dasp"}
    assert own <= {
        "dasp._version",
        "dasp._version.__version__",
        "dasp.runtime.process",
        "dasp.runtime.process.load",
    }
    others = {name.split(".")[0] for name in asked if name not in own}
    assert others <= {"", "__future__", "sys", "typing"}


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


def packages_of_cupy(tree: ast.AST) -> set[str]:
    """CuPy's packages that the import statements below a node name."""
    statements = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    asked = {name.split(".")[0] for node in statements for name in names(node, "dasp", False)}
    return asked & {"cupy", "cupyx", "cupy_backends"}


def may_use_cupy(path: Path) -> bool:
    """The files that may import CuPy, inside a function: the modules of GPUs and what stands on top."""
    relative = path.relative_to(PACKAGE).as_posix()
    allowed = (
        r"(formats|runtime)/(\w+/)*cuda/(\w+/)*\w+\.py",
        r"formats/\w+_cuda\.py",
        r"runtime/(arrays|foreign)\.py",
        r"dense/(\w+/)?(\w*_)?cuda(_\w*)?\.py",
        r"cli/\w+\.py",
        r"solvers/persistent\.py",
        r"distributed/(\w+_cuda|nccl|peers)\.py",
    )
    return any(re.fullmatch(pattern, relative) for pattern in allowed)


def test_cupy_is_imported_lazily_and_in_few_files() -> None:
    for path in MODULES.values():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert may_use_cupy(path) or not packages_of_cupy(tree), path
        assert not packages_of_cupy(Executed().visit(tree)), path


def test_solvers_ask_the_operator() -> None:
    files = [MODULES[name] for name in below("solvers", "preconditioners") - below("solvers.persistent")]
    for path in files:
        touched = {n.attr for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Attribute)}
        assert not {"plan", "_plan"} & touched, path


def builds_a_path_to_kernels(path: Path) -> bool:
    """Whether a file joins or opens a path whose first step is `kernels`, as in `root / "kernels"`."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    joined = [n.right for n in nodes if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div)]
    passed = [argument for n in nodes if isinstance(n, ast.Call) for argument in n.args]
    steps = [n.value for n in (*joined, *passed) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return any(step.split("/")[0] == "kernels" for step in steps)


def test_only_source_knows_where_the_kernels_are() -> None:
    assert [path.name for path in MODULES.values() if builds_a_path_to_kernels(path)] == ["source.py"]


def test_there_are_cuda_sources() -> None:
    assert KERNELS / "mma.cuh" in CUDA_SOURCES


def test_a_cuda_file_includes_headers_only() -> None:
    for path in CUDA_SOURCES:
        text = path.read_text(encoding="utf-8")
        for target in re.findall(r"^\s*#\s*include\s+(\S+)", text, flags=re.MULTILINE):
            assert re.fullmatch(r'<[\w/.]+>|"[\w/.]+\.cuh"', target), f"{path} includes {target}"
            name = target.strip('"')
            there = (KERNELS / name).is_file() or (path.parent / name).is_file()
            assert there or target.startswith("<"), f"{path} includes {target}, which does not exist"


@pytest.mark.parametrize("top", ["dasp", "kernels", "tests", "benchmarks", "matrices"])
def test_no_room_without_a_purpose(top: str) -> None:
    assert (ROOT / top).is_dir()
    for path in (ROOT / top).rglob("*"):
        assert path.stem not in FORBIDDEN_ROOMS, path
        assert not re.search(r"_v\d+$", path.stem), path


def test_kernels_cannot_be_imported() -> None:
    assert not list(KERNELS.rglob("*.py"))


# On Linux a thread that a library starts behind Python's back shows among the process's tasks.
IMPORT_DASP = """
import os, sys, threading, time
start = time.process_time()
import dasp
seconds = time.process_time() - start
tasks = len(os.listdir("/proc/self/task")) if sys.platform == "linux" else 1
cupy = sorted(name for name in sys.modules if name.split(".")[0] in ("cupy", "cupyx", "cupy_backends"))
print(seconds, tasks, threading.active_count(), *cupy)
"""


def test_import_is_quick_and_quiet() -> None:
    """No new thread, no CuPy, nothing printed; and under a second of the processor, however busy it is."""
    # OpenBLAS starts its threads when NumPy is imported, which is NumPy's affair: one thread keeps it quiet.
    quiet = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    answer = subprocess.run(
        [sys.executable, "-c", IMPORT_DASP], cwd=ROOT, env=quiet, capture_output=True, text=True, timeout=120
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr == ""
    seconds, tasks, threads, *cupy = answer.stdout.split()
    assert (tasks, threads, cupy) == ("1", "1", [])
    assert float(seconds) < 1.0


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
