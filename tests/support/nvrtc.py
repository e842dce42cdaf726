"""Compile kernels for an architecture by NVRTC, without a GPU."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from dasp.runtime.cuda.source import options, with_constants


class Usage(NamedTuple):
    """Registers and bytes of stack of a thread, and bytes of shared memory of a block."""

    registers: int
    stack: int
    shared: int


class Compiled(NamedTuple):
    """A cubin, the warnings, and what each kernel uses."""

    cubin: bytes
    log: str
    usage: dict[str, Usage]


def compile_text(source: str, defines: Mapping[str, str], arch: str, *, title: str) -> Compiled:
    """Compile CUDA text that may include the sources' headers.

    The title is the text's name in the log. The options are those of `load`, with CuPy's own `-ftz=true`, so
    that the code is what a GPU would run.
    """
    from cupy.cuda import nvrtc

    if not re.fullmatch(r"sm_\d{2,3}[af]?", arch):
        raise ValueError(f"arch is {arch!r}; a name such as 'sm_90' is needed")
    program = nvrtc.createProgram(with_constants(source, defines, title), title, (), ())
    try:
        nvrtc.compileProgram(program, (*options(), f"-arch={arch}", "-ftz=true", "--ptxas-options=-v"))
        log = str(nvrtc.getProgramLog(program)).strip("\0 \n")
        told = re.compile(r"^ptxas (info |  ).*\n?", re.M)
        return Compiled(_whole(bytes(nvrtc.getCUBIN(program))), told.sub("", log), _read_usage(log))
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program)
        raise RuntimeError(
            f"{title} does not compile for {arch} with {dict(defines)}: {error}\n{log}"
        ) from error
    finally:
        nvrtc.destroyProgram(program)


def _read_usage(log: str) -> dict[str, Usage]:
    """Return the usage of each kernel from the assembler's log; its stack includes the functions it calls."""

    def largest(pattern: str, text: str) -> int:
        return max(map(int, re.findall(pattern, text)), default=0)

    _, *parts = re.split(r"Compiling entry function '(\w+)'", log)
    return {
        name: Usage(
            largest(r"Used (\d+) registers", text),
            largest(r"(\d+) bytes (?:stack frame|cumulative stack size)", text),
            largest(r"(\d+) bytes smem", text),
        )
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    }


def _whole(cubin: bytes) -> bytes:
    """Return a cubin with its last byte, which CuPy takes for the end of a string and drops.

    An ELF file ends with one of its two tables of headers, and both end with the top byte of a small number.
    """

    def field(offset: int, size: int) -> int:
        return int.from_bytes(cubin[offset : offset + size], "little")

    segments = field(32, 8) + field(54, 2) * field(56, 2)
    sections = field(40, 8) + field(58, 2) * field(60, 2)
    return cubin + b"\0" if len(cubin) == max(segments, sections) - 1 else cubin
