"""The statistics that a solver returns with x."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, repr=False)
class Stats:
    """How a solve went.

    Attributes
    ----------
    converged : bool
        True if the residual that was computed from x at the end is small enough.
    iterations : int
        Iterations made, over all restarts.
    residuals : list of float
        The norm of the residual at the start, and at each check as the method updates it; the last iteration
        and the one before another start are always checked.
    residual : float
        The norm of b - A x, computed from the x that is returned.
    reason : str
        Why the method stopped, in words.
    seconds : float
        The time from the call to the return.
    info : int
        As in SciPy: 0 if converged, the iterations if they were used up, negative if the method cannot go on.
    choice : str
        The choice of `dasp.solve`, and why; empty for other solvers.
    relative : float
        `residual` over norm(b); for `block_cg` the largest over the columns, for `lobpcg` the largest
        residual over the estimate of norm(A). NaN if the divisor is 0 or unknown.
    """

    converged: bool
    iterations: int
    residuals: list[float]
    residual: float
    reason: str
    seconds: float
    info: int
    choice: str = ""
    relative: float = math.nan

    def __repr__(self) -> str:
        kind = "converged" if self.converged else "not converged"
        return f"<{kind} in {self.seconds:.3g} s: {self.reason}>"

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        rows = {
            "converged": "yes" if self.converged else "no",
            "iterations": f"{self.iterations:,}",
            "residual": f"{self.residual:.3g}",
            "relative residual": f"{self.relative:.3g}",
            "seconds": f"{self.seconds:.3g}",
            "reason": self.reason,
            "choice": self.choice,
        }
        cells = (f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in rows.items() if text)
        return f"<table>{''.join(cells)}</table>"

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the norms of the residual on a logarithmic axis.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        RuntimeError
            If matplotlib is not installed.
        """
        try:
            from matplotlib import pyplot
        except ImportError as error:
            raise RuntimeError("matplotlib is not installed; pip install matplotlib") from error
        axes: Axes = pyplot.subplots()[1] if ax is None else ax
        axes.semilogy(range(len(self.residuals)), self.residuals)
        axes.set(xlabel="check", ylabel="norm of the residual")
        return axes

    def after(self, before: Stats) -> Stats:
        """Return the statistics of both solves, where this one went on from the x of the one before."""
        return replace(
            self,
            iterations=before.iterations + self.iterations,
            residuals=[*before.residuals, *self.residuals[1:]],
            seconds=before.seconds + self.seconds,
            info=before.iterations + self.info if self.info > 0 else self.info,
        )
