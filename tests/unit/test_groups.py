"""Tests that share something costly are run by one process."""

import pytest


@pytest.mark.xdist_group("alone")
def test_a_group_is_known_to_whoever_hands_out_tests(request: pytest.FixtureRequest) -> None:
    if getattr(request.config.option, "loadgroup", False):
        assert request.node.nodeid.endswith("@alone")
