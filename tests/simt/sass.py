"""Show a kernel's registers, stack, shared memory and instructions on a GPU, without having one.

python -m tests.simt.sass kernels/spmv/dasp.cu sm_90 -D DASP_VALUE=double -D DASP_INDEX=int
"""

import argparse
import functools
import importlib.metadata
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from dasp.runtime.cuda import source as _source
from tests.support.nvrtc import compile_text


def find_tool(name: str) -> str:
    """Return the path of `cuobjdump` or `nvdisasm`, from its wheel, else from PATH."""
    try:
        for file in importlib.metadata.files(f"nvidia-cuda-{name}") or ():
            if file.name == name and (path := Path(str(file.locate()))).is_file():
                return str(path)
    except importlib.metadata.PackageNotFoundError:
        pass
    if path := shutil.which(name):
        return path
    raise RuntimeError(f"no {name}; reading a cubin needs it; pip install nvidia-cuda-{name}")


@functools.lru_cache(maxsize=4)
def _cuobjdump(cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run(
            [find_tool("cuobjdump"), "--dump-sass", file.name], capture_output=True, text=True
        )
    if done.returncode or "Function" not in done.stdout:
        raise RuntimeError(f"cuobjdump finds no kernel: {done.stdout}{done.stderr}")
    return done.stdout


def listing(cubin: bytes) -> dict[str, list[str]]:
    """Return by kernel the instructions of its code in order, with their modifiers ("LDG.E.64")."""
    text = _cuobjdump(cubin)
    parts = re.split(r"Function : (\S+)", text)[1:]
    line = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.M)
    return {name: line.findall(body) for name, body in zip(parts[::2], parts[1::2], strict=True)}


class Timed(NamedTuple):
    """An instruction, the scoreboard (0 to 5) that tells of its result, and the ones that it waits for."""

    name: str
    sets: int | None
    waits: frozenset[int]


def timed(cubin: bytes) -> dict[str, list[Timed]]:
    """Return by kernel the instructions of its code in order, with their scoreboards.

    Bits 110 to 112 and 116 to 121 of an instruction's 128: Jia, Maggioni, Staiger and Scarpazza, "Dissecting
    the NVIDIA Volta GPU architecture via microbenchmarking", 2018, arXiv:1804.06826, section 2.1.
    """
    text = _cuobjdump(cubin)
    parts = re.split(r"Function : (\S+)", text)[1:]
    line = re.compile(
        r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*).*\n\s+/\* 0x([0-9a-f]{16}) \*/", re.M
    )
    found = {}
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        found[name] = []
        for instruction, high in line.findall(body):
            bits = int(high, 16) >> 46
            sets, waits = bits & 7, frozenset(k for k in range(6) if bits >> 6 + k & 1)
            found[name].append(Timed(instruction, None if sets == 7 else sets, waits))
    return found


def instructions(cubin: bytes) -> dict[str, Counter[str]]:
    """Return by kernel how often each instruction stands in its code."""
    return {name: Counter(each) for name, each in listing(cubin).items()}


def by_family(counts: Counter[str]) -> Counter[str]:
    """Count instructions without modifiers, but memory accesses with their width in bits ("LDG 64")."""
    families: Counter[str] = Counter()
    for instruction, count in counts.items():
        words = instruction.split(".")
        if re.fullmatch(r"(LD|ST)[GSL]?|LDGSTS", words[0]):
            widths = {"U8": "8", "S8": "8", "U16": "16", "S16": "16", "64": "64", "128": "128", "256": "256"}
            width = next((widths[word] for word in words[1:] if word in widths), "32")
            families[f"{words[0]} {width}"] += count
        else:
            families[words[0]] += count
    return families


def main() -> None:
    parser = argparse.ArgumentParser(description="Compile a kernel file and tell what became of it.")
    parser.add_argument("file", help="such as kernels/spmv/dasp.cu, or spmv/dasp.cu")
    parser.add_argument("arch", nargs="?", default="sm_90", help="such as sm_80, sm_90 (default) or sm_100")
    parser.add_argument("-D", dest="defines", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--sass", action="store_true", help="print the instructions themselves too")
    options = parser.parse_args()
    name = options.file.removeprefix("./").removeprefix("kernels/")
    defines = dict(define.partition("=")[::2] for define in options.defines)
    cubin, log, usage = compile_text(_source.read(name), defines, options.arch, title=name)
    if log:
        print(log)
    if options.sass:
        print(_cuobjdump(cubin))
    counts = instructions(cubin)
    for kernel, used in usage.items():
        print(
            f"{kernel}, {options.arch}: {used.registers} registers, {used.stack} bytes of stack, "
            f"{used.shared} of shared memory, "
            f"{sum(counts[kernel].values())} instructions"
        )
        for family, count in sorted(by_family(counts[kernel]).items(), key=lambda pair: (-pair[1], pair[0])):
            print(f"  {count:6d}  {family}")


if __name__ == "__main__":
    main()
