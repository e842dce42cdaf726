"""Model matrices against their definitions: counts, symmetry, spectra, sums, determinism, refusals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from dasp.models import families, generate, is_model
from tests.support.gallery import EXAMPLES, FAMILIES


def lengths(matrix: csr_array) -> np.ndarray:
    return np.diff(matrix.indptr)


def exactly_symmetric(matrix: csr_array) -> bool:
    return (matrix != matrix.T).nnz == 0


def smallest_eigenvalue(matrix: csr_array) -> float:
    return float(np.linalg.eigvalsh(matrix.toarray())[0])


@pytest.mark.parametrize("spec", EXAMPLES.values(), ids=EXAMPLES.keys())
def test_every_family_gives_a_clean_matrix(spec: str) -> None:
    matrix = generate(spec)
    assert isinstance(matrix, csr_array)
    assert matrix.dtype == np.float64
    assert matrix.indices.dtype == matrix.indptr.dtype == np.int32
    assert matrix.nnz > 0
    assert np.isfinite(matrix.data).all()
    matrix.check_format(full_check=True)
    # Not has_canonical_format, which a builder could have set: strictly rising columns in every row.
    rows = np.repeat(np.arange(matrix.shape[0]), lengths(matrix))
    places = rows * matrix.shape[1] + matrix.indices
    assert (np.diff(places) > 0).all()


@pytest.mark.parametrize("spec", EXAMPLES.values(), ids=EXAMPLES.keys())
def test_the_seed_decides(spec: str) -> None:
    first, again, other = generate(spec, 3), generate(spec, 3), generate(spec, 4)
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    draws_nothing = spec.split(":")[0] in {"poisson2d", "poisson2d9", "poisson3d", "stencil27"}
    same = first.shape == other.shape and np.array_equal(first.data, other.data)
    assert same == draws_nothing


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_family_is_listed_with_a_line(name: str) -> None:
    usages = [usage for usage in families() if usage.split(":")[0].split("[")[0] == name]
    assert len(usages) == 1
    summary = families()[usages[0]]
    assert summary
    assert "\n" not in summary
    assert is_model(name)
    assert is_model(EXAMPLES[name])


def test_an_estimate_is_not_far_below_the_truth() -> None:
    for family in FAMILIES:
        rows, entries = family.size(*family.read(family.example.split(":")[1:]))
        matrix = generate(family.example)
        assert 0.9 * matrix.nnz <= entries <= 4 * matrix.nnz, family.name
        assert matrix.shape[0] <= rows, family.name


@given(n=st.integers(1, 9))
def test_stencils_have_their_integers(n: int) -> None:
    for name, diagonal, sides in (
        ("poisson2d", 4, 2),
        ("poisson2d9", 8, 2),
        ("poisson3d", 6, 3),
        ("stencil27", 26, 3),
    ):
        matrix = generate(f"{name}:{n}")
        assert matrix.shape == (n**sides, n**sides)
        assert set(matrix.diagonal()) == {float(diagonal)}
        place = np.stack(np.unravel_index(np.arange(n**sides), (n,) * sides))
        distance = np.abs(place[:, :, None] - place[:, None, :])
        near = distance.sum(axis=0) <= 1 if name in ("poisson2d", "poisson3d") else distance.max(axis=0) <= 1
        want = np.where(near, -1.0, 0.0)
        np.fill_diagonal(want, diagonal)
        np.testing.assert_array_equal(matrix.toarray(), want)


@pytest.mark.parametrize(
    ("spec", "entries"),
    [
        ("poisson3d:40", 7 * 40**3 - 6 * 40**2),
        ("poisson2d:300", 5 * 300**2 - 4 * 300),
        ("stencil27:30", (3 * 30 - 2) ** 3),
        ("fem3:12", 9 * (3 * 12 - 2) ** 3),
        ("qcd:4", 39 * 12 * 4**4),
        ("dense:70", 4900),
    ],
)
def test_counts_that_have_a_formula(spec: str, entries: int) -> None:
    assert generate(spec).nnz == entries


def test_a_specification_is_text() -> None:
    with pytest.raises(TypeError, match="spec is 3; a str is needed"):
        generate(3)
    for seed in (None, 1.5, "a"):
        with pytest.raises(TypeError, match=r"seed is .*; an int is needed"):
            generate("random:5:5:1", seed)
    with pytest.raises(ValueError, match="seed is -1; at least 0 is needed"):
        generate("poisson2d:3", -1)


@pytest.mark.parametrize(
    "spec", ["fem3:2", "fem3:4", "fem1:2", "fem1:6", "triangles:300", "poisson3d:5", "stencil27:5"]
)
def test_meshes_are_symmetric_positive_definite(spec: str) -> None:
    matrix = generate(spec, seed=5)
    assert exactly_symmetric(matrix)
    assert smallest_eigenvalue(matrix) > 0


def test_elastic_bricks_resist_nothing_but_deformation() -> None:
    # Away from the ground, moving the whole body along an axis costs no force.
    n = 5
    matrix = generate(f"fem3:{n}")
    shift = np.tile([1.0, -2.0, 0.5], n**3)
    force = (matrix @ shift).reshape(n, n, n, 3)
    np.testing.assert_allclose(force[1:], 0, atol=1e-12)
    np.testing.assert_allclose(force[0], 0.1 * np.broadcast_to([1.0, -2.0, 0.5], (n, n, 3)), atol=1e-12)


def test_elastic_bricks_do_not_feel_a_rotation() -> None:
    n = 4
    matrix = generate(f"fem3:{n}")
    place = np.stack(np.meshgrid(*[np.arange(float(n))] * 3, indexing="ij"), axis=-1)
    spin = np.cross([0.3, -1.0, 0.7], place)
    force = (matrix @ spin.ravel()).reshape(n, n, n, 3)
    np.testing.assert_allclose(force[1:], 0, atol=1e-12)


@pytest.mark.parametrize("spec", ["fem1:7", "triangles:500"])
def test_linear_elements_conserve_heat(spec: str) -> None:
    # Stiffness has zero row sums, so the sum of all entries is the mass: the volume, here times its weight.
    matrix = generate(spec)
    total = matrix.sum()
    if spec.startswith("fem1"):
        # Shaking moves the surface by at most 0.2 on each side.
        assert (7 - 1 - 0.4) ** 3 < total < (7 - 1 + 0.4) ** 3
    else:
        assert 0.8 * 500 < total < 500


def test_a_hopping_matrix_has_the_lattice_pattern() -> None:
    n = 3
    matrix = generate(f"qcd:{n}")
    assert set(lengths(matrix)) == {39}
    row = np.repeat(np.arange(matrix.shape[0]), 39)
    site, neighbour = (np.stack(np.unravel_index(index // 12, (n,) * 4)) for index in (row, matrix.indices))
    steps = (neighbour - site) % n
    assert ((steps != 0).sum(axis=0) == 1).all()


def test_a_graph_has_the_neighbours_it_promises() -> None:
    matrix = generate("geometric:20000:10")
    assert exactly_symmetric(matrix)
    assert not matrix.diagonal().any()
    assert 9 < matrix.nnz / 20000 < 10.2


def test_kronecker_edges_fall_by_their_chances() -> None:
    from dasp.models.unstructured import _kronecker_pairs

    rows, columns = _kronecker_pairs(np.random.default_rng(1), 3, 200_000)
    assert rows.min() == columns.min() == 0
    assert rows.max() == columns.max() == 7
    for bit in range(3):
        quarter = 2 * (rows >> bit & 1) + (columns >> bit & 1)
        shares = np.bincount(quarter, minlength=4) / 200_000
        np.testing.assert_allclose(shares, [0.57, 0.19, 0.19, 0.05], atol=0.005)


def test_skewed_families_are_skewed() -> None:
    for spec, at_least in (
        ("rmat:12", 20),
        ("powerlaw:20000", 20),
        ("circuit:20000", 50),
        ("lp:2000:20000", 20),
    ):
        length = lengths(generate(spec))
        assert length.max() > at_least * length.mean(), spec
    columns = lengths(csr_array(generate("circuit:20000").T))
    assert columns.max() > 50 * columns.mean()


def test_a_circuit_is_diagonally_heavy() -> None:
    matrix = generate("circuit:3000")
    assert (matrix.diagonal() > 0).all()


@given(n=st.integers(2, 60), seed=st.integers(0, 50))
def test_a_kkt_system_is_symmetric_indefinite_and_regular(n: int, seed: int) -> None:
    matrix = generate(f"kkt:{n}", seed)
    assert matrix.shape == (n + n // 2, n + n // 2)
    assert exactly_symmetric(matrix)
    assert matrix[n:, n:].nnz == 0
    values = np.linalg.eigvalsh(matrix.toarray())
    assert (values > 0).sum() == n
    assert (values < 0).sum() == n // 2


@given(n=st.integers(1, 200), seed=st.integers(0, 50))
def test_a_markov_chain_keeps_its_probability(n: int, seed: int) -> None:
    matrix = generate(f"markov:{n}", seed)
    assert (matrix.data >= 0).all()
    np.testing.assert_allclose(matrix.sum(axis=1), 1, rtol=1e-14)
    pattern = matrix.toarray() != 0
    assert (pattern == pattern.T).all()


@given(n=st.integers(1, 400), mean=st.floats(1, 60), halfwidth=st.integers(0, 50))
def test_a_band_stays_in_its_band(n: int, mean: float, halfwidth: int) -> None:
    matrix = generate(f"band:{n}:{mean}:{halfwidth}")
    row = np.repeat(np.arange(n), lengths(matrix))
    assert (lengths(matrix) >= 1).all()
    assert (np.abs(row - matrix.indices) <= halfwidth).all()


def test_row_lengths_are_the_recipes() -> None:
    short = lengths(generate("short:20000"))
    assert set(short) == {1, 2, 3, 4}
    np.testing.assert_allclose(np.bincount(short)[1:] / 20000, 0.25, atol=0.02)
    assert generate("band:60000").nnz / 60000 == pytest.approx(39.5, rel=0.05)
    spikes = np.sort(lengths(generate("spikes:8000:5:2000")))
    assert (spikes[-5:] > 1700).all()
    assert (spikes[:-5] <= 4).all()


@given(m=st.integers(1, 60), n=st.integers(1, 60), density=st.floats(1e-3, 1), seed=st.integers(0, 20))
def test_random_has_its_shape(m: int, n: int, density: float, seed: int) -> None:
    matrix = generate(f"random:{m}:{n}:{density}", seed)
    assert matrix.shape == (m, n)
    expected, spread = m * n * density, np.sqrt(m * n * density * (1 - density))
    assert abs(matrix.nnz - expected) <= 6 * spread + 1e-9 + (6 if density < 0.1 else 0)


def test_random_is_even() -> None:
    matrix = generate("random:400:300:0.1")
    by_row, by_column = lengths(matrix), lengths(csr_array(matrix.T))
    assert abs(by_row.mean() - 30) < 1
    assert by_row.std() == pytest.approx(np.sqrt(300 * 0.1 * 0.9), rel=0.15)
    assert by_column.std() == pytest.approx(np.sqrt(400 * 0.1 * 0.9), rel=0.15)
    assert generate("random:70:30:1").nnz == 2100


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("nosuch:3", ["unknown model 'nosuch'", "poisson3d"]),
        ("poison3d:3", ["did you mean poisson3d?"]),
        ("poisson3d", ["0 parameters", "poisson3d:n"]),
        ("poisson3d:3:4", ["2 parameters", "poisson3d:n"]),
        ("poisson3d:", ["n of model poisson3d is ''", "whole number of at least 1"]),
        ("poisson3d:ten", ["'ten'", "whole number"]),
        ("poisson3d:1.5", ["'1.5'", "whole number"]),
        ("poisson3d:nan", ["'nan'"]),
        ("poisson3d:0", ["'0'", "at least 1"]),
        ("poisson3d:-4", ["'-4'", "at least 1"]),
        ("fem3:1", ["'1'", "at least 2"]),
        ("poisson3d:" + "9" * 5000, ["'999999", "whole number"]),
        ("poisson3d:" + "9" * 40, ["whole number from 1 to 46"]),
        ("random:10:10:0", ["density"]),
        ("random:10:10:nan", ["density"]),
        ("random:10:10:1.5", ["density", "to 1.0"]),
        ("band:10:inf", ["mean"]),
        ("rmat:41", ["scale", "to 40"]),
        ("dense:10000000", ["take about", "half of this machine's memory", "smaller parameters"]),
        ("rmat:40:1000000000000", ["half of this machine's memory"]),
        ("lp:4000000000000000:3", ["half of this machine's memory"]),
        ("", ["unknown model ''"]),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_a_bad_specification_is_one_clear_line(spec: str, words: list[str]) -> None:
    with pytest.raises(ValueError, match=r";") as caught:
        generate(spec)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 600
    for word in words:
        assert word in message


@given(
    st.sampled_from(sorted(EXAMPLES)), st.lists(st.text(alphabet="0123456789.e-x", max_size=3), max_size=4)
)
def test_any_small_specification_is_built_or_refused(name: str, texts: list[str]) -> None:
    spec = ":".join([name, *texts])
    if name in {"rmat", "qcd", "dense", "fem3"}:  # small texts already mean large matrices
        texts = [text[:1] for text in texts]
        spec = ":".join([name, *texts])
    if name in {"poisson3d", "stencil27", "fem1", "spikes"}:
        spec = ":".join([name, *[text[:2] for text in texts]])
    matrix, message = csr_array((0, 0)), ""
    try:
        matrix = generate(spec)
    except ValueError as error:
        message = str(error)
    matrix.check_format(full_check=True)
    assert "\n" not in message
    assert len(message) < 600
