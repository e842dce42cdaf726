"""The machine's measured peak, so that every kernel can be shown as a fraction of it."""

from __future__ import annotations

from benchmarks.bench import peak_cpu as peak
from dasp.cli.roofline import cuda_copy_bandwidth, host_copy_bandwidth
from dasp.runtime.cpu.threads import get_num_threads


def report(device: str, threads: int | None) -> str:
    """Return the tables of a device: `cpu`, `cuda`, or `auto` for both where there is a GPU."""
    parts = [report_cpu(threads or get_num_threads())]
    if device != "cpu":
        parts.append(report_cuda(required=device == "cuda"))
    return "\n".join(filter(None, parts))


def report_cpu(threads: int) -> str:
    """Return the CPU's table: multiply-adds in registers, copies beyond the caches, on one thread and all."""
    lines = [f"{'CPU':<28}{'1 thread':>12}{f'{threads} threads':>14}"]
    for dtype in ("float32", "float64"):
        one, every = (peak.cpu_gigaflops(dtype, count) for count in (1, threads))
        lines.append(f"{f'{dtype} GFLOP/s':<28}{one:>12.1f}{every:>14.1f}")
    one, every = (host_copy_bandwidth(count) / 1e9 for count in (1, threads))
    lines.append(f"{'copy GB/s, read + written':<28}{one:>12.1f}{every:>14.1f}")
    return "\n".join(lines)


def report_cuda(required: bool) -> str:
    """Return the GPU's table; empty where there is none and it was not asked for."""
    from dasp.runtime.cuda.gpus import available

    works, reason = available()
    if not works:
        if required:
            raise RuntimeError(f"no GPU works here: {reason}; pass --device cpu")
        return ""
    lines = ["GPU, at its highest clock"]
    for dtype in ("float32", "float64", "float16"):
        lines.append(f"{f'{dtype} GFLOP/s':<28}{cuda_peak(dtype):>12.0f}")
    lines.append(f"{'copy GB/s, read + written':<28}{cuda_copy_bandwidth() / 1e9:>12.0f}")
    return "\n".join(lines)


def cuda_peak(dtype: str) -> float:
    """Return the current GPU's peak in GFLOP/s at its highest clock; NaN where its rates are unknown."""
    import cupy

    device = cupy.cuda.Device()
    digits = str(device.compute_capability)
    facts = device.attributes
    capability = int(digits[:-1]), int(digits[-1])
    clock = 1e3 * float(facts["ClockRate"])
    return peak.gpu_gigaflops(dtype, capability, int(facts["MultiProcessorCount"]), clock)
