"""The report of a solver, beside x."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, repr=False)
class Stats:
    """How a solve went.

    Attributes
    ----------
    converged : bool
        Whether the true residual is small enough; it was computed from x, not carried along.
    iterations : int
        Those made, over all restarts.
    residuals : list of float
        The residual's norm at the start, and at each check as the method carries it along.
    residual : float
        The norm of b - A x for the x returned, computed from it.
    reason : str
        In words why the method stopped.
    seconds : float
        From the call to the return.
    info : int
        SciPy's: 0 if converged, the iterations if they were used up, negative if the method cannot go on.
    choice : str
        What `dasp.solve` chose, and why; empty for other solvers.
    """

    converged: bool
    iterations: int
    residuals: list[float]
    residual: float
    reason: str
    seconds: float
    info: int
    choice: str = ""

    def __repr__(self) -> str:
        kind = "converged" if self.converged else "not converged"
        return f"<{kind} in {self.seconds:.3g} s: {self.reason}>"

    def timed(self, seconds: float) -> Stats:
        """Return it with the time that was needed."""
        return replace(self, seconds=seconds)

    def after(self, before: Stats) -> Stats:
        """Return the two in one, where this solve went on from the x of another."""
        return replace(
            self,
            iterations=before.iterations + self.iterations,
            residuals=[*before.residuals, *self.residuals[1:]],
            seconds=before.seconds + self.seconds,
            info=before.iterations + self.info if self.info > 0 else self.info,
        )
