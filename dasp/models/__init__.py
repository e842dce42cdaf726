"""Model matrices: generated stand-ins for classes of real ones, named ``family:parameters``.

`generate` builds a matrix, `families` lists the families. Each family is a row of a table in the module that
builds it: `lattice` for regular grids, `unstructured` for all else.
"""

from __future__ import annotations

import difflib
from numbers import Integral
from typing import TYPE_CHECKING

from dasp.models import lattice, unstructured

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["families", "generate", "is_model"]

_FAMILIES = {family.name: family for family in (*lattice.FAMILIES, *unstructured.FAMILIES)}


def families() -> dict[str, str]:
    """Return the families that `generate` can build.

    Returns
    -------
    dict of str to str
        One-line summaries, by the form of a specification with optional parameters in brackets.

    Examples
    --------
    >>> families()["poisson3d:n"]
    '7-point stencil on n^3 points: pressure, reservoirs, SPD'
    """
    return {family.usage: family.summary for family in _FAMILIES.values()}


def is_model(spec: str) -> bool:
    """Return True if the text `spec` names a known family, with or without its sizes.

    Examples
    --------
    >>> is_model("poisson3d:100"), is_model("poisson3d"), is_model("matrix.mtx")
    (True, True, False)
    """
    return spec.partition(":")[0] in _FAMILIES


def generate(spec: str, seed: int = 0) -> csr_array:
    """Build the model matrix of a specification.

    Parameters
    ----------
    spec : str
        ``family:parameter:...``, for example ``poisson3d:100`` or ``rmat:18``; `families` lists them.
    seed : int
        Not negative. Equal specifications and seeds give equal matrices in one version of NumPy. Stencils
        ignore it.

    Returns
    -------
    scipy.sparse.csr_array
        float64, indices sorted and without duplicates, 32-bit indices where they suffice.

    Raises
    ------
    TypeError
        If the specification is not a str, or the seed not an int.
    ValueError
        If the family is unknown, if a parameter is missing, unreadable or out of range, or if the matrix
        would take more than half of this machine's memory; if the seed is negative.

    Examples
    --------
    >>> A = generate("poisson2d:3")
    >>> A.shape, A.nnz
    ((9, 9), 33)
    """
    if not isinstance(spec, str):
        raise TypeError(f"spec is {spec!r:.60}; a str is needed, for example 'poisson3d:50'")
    if not isinstance(seed, Integral):
        raise TypeError(f"seed is {seed!r:.60}; an int is needed")
    if seed < 0:
        raise ValueError(f"seed is {seed}; at least 0 is needed")
    name, *texts = spec.split(":")
    if name not in _FAMILIES:
        near = difflib.get_close_matches(name, _FAMILIES, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"for example {_FAMILIES['poisson3d'].example}"
        raise ValueError(f"unknown model {name!r:.60}; the models are {', '.join(_FAMILIES)}; {remedy}")
    return _FAMILIES[name].generate(texts, int(seed))
