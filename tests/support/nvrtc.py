"""Kernels compiled for an architecture without a GPU, by NVRTC."""

import re
from collections.abc import Mapping

from dasp.runtime.cuda.source import options, with_constants


def compile_text(source: str, defines: Mapping[str, str], arch: str, *, title: str) -> tuple[bytes, str]:
    """Compile CUDA text that may include the sources' headers; return the cubin and the compiler's log.

    The title is the text's name in the log. The options are those of `load`, with CuPy's own `-ftz=true`, so
    that the code is what a GPU would run.
    """
    from cupy.cuda import nvrtc

    if not re.fullmatch(r"sm_\d{2,3}[af]?", arch):
        raise ValueError(f"arch is {arch!r}; a name such as 'sm_90' is needed")
    program = nvrtc.createProgram(with_constants(source, defines, title), title, (), ())
    try:
        nvrtc.compileProgram(program, (*options(), f"-arch={arch}", "-ftz=true"))
        return _whole(bytes(nvrtc.getCUBIN(program))), str(nvrtc.getProgramLog(program))
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program)
        raise RuntimeError(
            f"{title} does not compile for {arch} with {dict(defines)}: {error}\n{log}"
        ) from error
    finally:
        nvrtc.destroyProgram(program)


def _whole(cubin: bytes) -> bytes:
    """Give a cubin its last byte back, which CuPy takes for the end of a string and drops.

    An ELF file ends with one of its two tables of headers, and both end with the top byte of a small number.
    """

    def field(offset: int, size: int) -> int:
        return int.from_bytes(cubin[offset : offset + size], "little")

    segments = field(32, 8) + field(54, 2) * field(56, 2)
    sections = field(40, 8) + field(58, 2) * field(60, 2)
    return cubin + b"\0" if len(cubin) == max(segments, sections) - 1 else cubin
