"""The levels of multigrid and their smoothers."""

from __future__ import annotations

from dataclasses import dataclass

from scipy.sparse import csr_array

from dasp.preconditioners.base import MOST_STEPS, cast
from dasp.preconditioners.chebyshev import coefficients
from dasp.preconditioners.spectrum import UPPER
from dasp.runtime import check as _check
from dasp.runtime.cpu.compile import jit
from dasp.runtime.types import Array
from dasp.solvers.operator import DeviceOperator
from dasp.solvers.space import Space, Vectors

SMOOTHERS, CYCLES = ("chebyshev", "jacobi", "gauss-seidel"), ("V", "W", "F")

LEVEL_VECTORS = "d", "step", "q", "r"
"""The vectors of a level, besides its right-hand side b and its solution x."""

RATIO = 8.0
"""Upper over lower end of the interval that a Chebyshev smoother damps: on Poisson matrices 4 to 10 need the
fewest cycles."""

OMEGA = 4.0 / 3.0
"""The weight of a Jacobi smoother times the largest eigenvalue of D^-1 A."""


@dataclass
class CycleOptions:
    """The options of a cycle; see `multigrid`."""

    smoother: str
    cycle: str
    sweeps: int
    degree: int

    def scale(self, radius: float) -> float:
        """Return the number that D^-1 is divided by, given the largest eigenvalue of D^-1 A."""
        if self.smoother == "gauss-seidel" or radius == 0:
            return 1.0
        return radius if self.smoother == "jacobi" else UPPER * radius

    @property
    def steps(self) -> tuple[float, list[tuple[float, float]]]:
        """The smoother's factors for scaled D^-1, in the form of `coefficients`."""
        if self.smoother == "jacobi":
            return OMEGA, []
        return coefficients(RATIO, self.degree)


def check_options(smoother: str, cycle: str, sweeps: int, degree: int) -> CycleOptions:
    """Return the options of a cycle, checked.

    Raises
    ------
    TypeError, ValueError
        If the smoother or the cycle is unknown, or `sweeps` or `degree` is no positive int or too large.
    """
    for name, value, known in (("smoother", smoother, SMOOTHERS), ("cycle", cycle, CYCLES)):
        if value not in known:
            raise ValueError(f"{name} is {value!r}; one of {', '.join(known)} is needed")
    for name, number in (("sweeps", sweeps), ("degree", degree)):
        _check.count(name, number, most=MOST_STEPS)
    return CycleOptions(smoother, cycle, sweeps, degree)


class Level:
    """One level: its vectors, its matrices, and its smoother."""

    def __init__(
        self,
        A: DeviceOperator,
        space: Space,
        options: CycleOptions,
        vectors: Vectors | None = None,
    ) -> None:
        """Prepare the smoother's passes over `vectors`, or over new ones; `load` must follow."""
        self.space, self.A, self._options = space, A, options
        self.vectors = space.vectors(A.shape[0], "b", "x", *LEVEL_VECTORS) if vectors is None else vectors
        fuse = self.vectors.fuse
        self._residual = fuse("r = b - q")
        self._correct = fuse("x = x + q")
        self._smooth = getattr(self, f"_smooth_by_{options.smoother.replace('-', '_')}")
        if options.smoother == "gauss-seidel":
            self._clear = fuse("x = 0")
            return
        self._first, self._further = options.steps
        if options.smoother == "jacobi":
            self._jacobi = fuse("x = omega d*b"), fuse("r = b - q", "x = x + omega d*r")
        else:
            self._begin = fuse("step = first d*b", "x = step", "r = b")
            self._begin_again = fuse("r = b - q", "step = first d*r", "x = x + step")
            self._extend = fuse("r = r - q", "step = last step + rest d*r", "x = x + step")

    def load(self, inverse: Array, radius: float, csr: csr_array | None = None) -> None:
        """Load 1 / a_ii, in the computing type on the host, and the largest eigenvalue of D^-1 A.

        Gauss-Seidel takes A too.
        """
        self.radius = radius
        self.vectors["d"][...] = self.space.asarray(inverse / self._options.scale(radius))
        if csr is not None and self._options.smoother == "gauss-seidel":
            self._csr = csr.indptr, csr.indices, cast(csr.data, self.space.dtype).copy()  # A may change

    def multiply(self, x: str, y: str) -> None:
        """Set vector y to A times vector x."""
        self.space.apply(self.A, self.vectors[x], self.vectors[y])

    def smooth(self, *, from_zero: bool, forward: bool) -> None:
        """Improve the solution x, which is taken as 0 if `from_zero`."""
        for sweep in range(self._options.sweeps):
            self._smooth(from_zero and sweep == 0, forward)

    def _smooth_by_jacobi(self, from_zero: bool, forward: bool) -> None:
        if from_zero:
            self._jacobi[0](omega=self._first)
        else:
            self.multiply("x", "q")
            self._jacobi[1](omega=self._first)

    def _smooth_by_chebyshev(self, from_zero: bool, forward: bool) -> None:
        if from_zero:
            self._begin(first=self._first)
        else:
            self.multiply("x", "q")
            self._begin_again(first=self._first)
        for last, rest in self._further:
            self.multiply("step", "q")
            self._extend(last=last, rest=rest)

    def _smooth_by_gauss_seidel(self, from_zero: bool, forward: bool) -> None:
        if from_zero:
            self._clear()
        _sweep(*self._csr, self.vectors["b"], self.vectors["x"], self.vectors["d"], forward)

    def restrict(self, R: DeviceOperator, coarse: Array) -> None:
        """Set the coarse right-hand side to R (b - A x)."""
        self.multiply("x", "q")
        self._residual()
        self.space.apply(R, self.vectors["r"], coarse)

    def prolong(self, P: DeviceOperator, coarse: Array) -> None:
        """Add P times the coarse solution to x."""
        self.space.apply(P, coarse, self.vectors["q"])
        self._correct()


@jit(nogil=True, error_model="numpy")
def _sweep(indptr, indices, data, b, x, inverse, forward):  # type: ignore[no-untyped-def]
    """Sweep by Gauss-Seidel over all rows, forward or backward."""
    n = len(b)
    for k in range(n):
        row = k if forward else n - 1 - k
        total = b[row]
        for entry in range(indptr[row], indptr[row + 1]):
            if indices[entry] != row:
                total -= data[entry] * x[indices[entry]]
        x[row] = total * inverse[row]
