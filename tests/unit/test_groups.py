"""Tests of one xdist group run in one process."""

import pytest


@pytest.mark.xdist_group("alone")
def test_the_xdist_group_is_part_of_the_node_id(request: pytest.FixtureRequest) -> None:
    if getattr(request.config.option, "loadgroup", False):
        assert request.node.nodeid.endswith("@alone")
