"""The distribution, as its users get it: built, looked into, installed and run from another folder."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
KERNELS = {
    path.relative_to(ROOT / "kernels").as_posix()
    for path in (ROOT / "kernels").rglob("*")
    if path.suffix in {".cu", ".cuh"}
}


def run(*command: object, cwd: Path) -> str:
    """What a command prints; a command that fails shows why."""
    done = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist made from the checkout, and the wheel made from that sdist, as an installer would make it."""
    folder = tmp_path_factory.mktemp("dist")
    # -P: a folder called build/ in the checkout must not stand for the module.
    run(sys.executable, "-P", "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    (sdist,) = folder.glob("*.tar.gz")
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def installed(distributions: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel in it; the dependencies are this environment's own."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "env", with_pip=False, symlinks=True)
    python = folder / "env" / "bin" / "python"
    site = Path(
        run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    )
    # A folder named in a .pth file is searched, but .pth files inside it are not read: NumPy is found
    # there, and this environment's editable dasp is not.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    options = ("--quiet", "--no-index", "--no-deps", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, distributions[1], cwd=folder)
    return python


def test_the_wheel_holds_every_kernel(distributions: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(distributions[1]) as wheel:
        names = set(wheel.namelist())
        packed = {name.removeprefix("dasp/kernels/") for name in names if name.startswith("dasp/kernels/")}
        assert packed == KERNELS
        assert {"mma.cuh", "warp.cuh"} <= KERNELS
        for name in KERNELS:
            assert wheel.read(f"dasp/kernels/{name}") == (ROOT / "kernels" / name).read_bytes()


def test_the_wheel_holds_the_package_and_no_more(distributions: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(distributions[1]) as wheel:
        names = set(wheel.namelist())
    assert "dasp/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "dasp").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == modules
    tables = {path.relative_to(ROOT).as_posix() for path in (ROOT / "dasp").rglob("*.json")}
    assert {name for name in names if name.endswith(".json")} == tables
    assert {name.split("/")[0].split("-")[0] for name in names} == {"dasp", "dasp_spmv"}


def test_the_sdist_can_be_built_and_tested(distributions: tuple[Path, Path]) -> None:
    with tarfile.open(distributions[0]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    wanted = {f"kernels/{name}" for name in KERNELS} | {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.py")
    }
    assert wanted <= names
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "Makefile"} <= names


def test_the_installed_package_finds_every_kernel(installed: Path, tmp_path: Path) -> None:
    # Other packages install a folder called `kernels`, and the working folder may hold one too.
    (tmp_path / "kernels").mkdir()
    program = """
from pathlib import Path
import dasp.runtime.cuda.source
root = Path(dasp.runtime.cuda.source.find())
print(root)
print(*sorted(p.relative_to(root).as_posix() for p in root.rglob("*.cu*")))
"""
    root, found = run(installed, "-I", "-c", program, cwd=tmp_path).splitlines()
    assert Path(root).is_relative_to(installed.parents[1])
    assert set(found.split()) == KERNELS


def test_the_installed_package_multiplies(installed: Path, tmp_path: Path) -> None:
    program = """
import numpy as np, scipy.sparse
import dasp
A = scipy.sparse.random_array((300, 200), density=0.05, random_state=np.random.default_rng(1), format="csr")
x = np.arange(200.0)
y = dasp.SpMatrix.from_scipy(A, device="cpu", policy=dasp.Policy.dasp()) @ x  # compiles in two seconds
bound = 200 * np.finfo(float).eps * (abs(A) @ abs(x))
assert y.shape == (300,) and np.all(abs(y - A @ x) <= bound)
print(dasp.__file__, dasp.__version__)
"""
    file, version = run(installed, "-I", "-c", program, cwd=tmp_path).split()
    assert Path(file).is_relative_to(installed.parents[1])
    assert run(installed.parent / "dasp", "--version", cwd=tmp_path).split() == ["dasp", version]
