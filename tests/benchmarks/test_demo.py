"""`make demo`: its commands are understood."""

import pytest

from benchmarks.demo import STEPS
from dasp.cli.main import build_parser


@pytest.mark.parametrize("words", STEPS.values(), ids=" ".join)
def test_a_step_is_understood(words):
    parsed = build_parser(words[0]).parse_args(words)
    assert parsed.run is not None
