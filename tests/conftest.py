"""What every test may rely on: the GPU marker, the hypothesis profiles and the folder of real matrices."""

from __future__ import annotations

import functools
import gc
import importlib
import os
import signal
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support import sanitizer

# A command that a shell starts in the background ignores interrupts, and so do its children: tests of
# interrupts would wait for ever.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# JAX would take three quarters of a GPU's memory at once, from the test processes beside it too.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

# What a developer measured on this machine changes no plan of a test.
os.environ["DASP_COST_MODEL"] = os.path.join(os.path.dirname(__file__), "no_such_file.json")

# One profile is the default everywhere, so that a failure on the build server is a failure here. Examples are
# the same on every run, and a first example that waits for a compiler is not an error. To look for new
# counterexamples: pytest --hypothesis-profile=explore
_SLOW_START = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("ci", derandomize=True, deadline=None, suppress_health_check=_SLOW_START)
settings.register_profile("explore", max_examples=1000, deadline=None, suppress_health_check=_SLOW_START)
settings.load_profile("ci")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take what a run under compute-sanitizer needs."""
    parser.addoption(sanitizer.FLAG, action="store_true", help=sanitizer.HELP)


def pytest_configure(config: pytest.Config) -> None:
    """Do what it needs, if that is asked for."""
    if config.getoption(sanitizer.FLAG):
        sanitizer.prepare()


@functools.cache
def gpu() -> tuple[bool, str]:
    """Whether the CUDA backend works on this machine, and if not, why."""
    return importlib.import_module("dasp.runtime.cuda.gpus").try_gpu()


def pytest_collection_finish() -> None:
    """Keep the thousands of tests, and what they import, out of every later search for garbage."""
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked `cuda` where no GPU works, and say why."""
    if item.get_closest_marker("cuda") is not None:
        works, reason = gpu()
        if not works:
            pytest.skip(f"no GPU works here: {reason}")


@pytest.fixture(scope="session")
def matrices() -> Path:
    """The folder of real matrices, named by the environment variable DASP_MATRICES."""
    folder = os.environ.get("DASP_MATRICES", "")
    if not folder:
        pytest.skip("DASP_MATRICES is not set; it names a folder of .npz and .mtx matrices")
    path = Path(folder)
    if not path.is_dir():
        raise FileNotFoundError(f"DASP_MATRICES is {folder!r}; it must name a folder that exists")
    return path
