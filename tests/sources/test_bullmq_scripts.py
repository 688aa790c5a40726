"""The scripts of BullMQ that are run here are BullMQ's own, to the letter."""

from __future__ import annotations

import pytest

from tests.kit import bullmq_scripts, node


@pytest.mark.long("Installs the packages of BullMQ whose scripts it compares.")
@pytest.mark.parametrize("name", bullmq_scripts.NAMES)
@pytest.mark.parametrize("major", node.MAJORS)
def test_each_script_is_as_its_package_has_it(major, name):
    try:
        theirs = bullmq_scripts.flattened(major, name)
    except node.OutOfReach as error:
        pytest.skip(str(error))
    assert (bullmq_scripts.OURS / f"{major}/{name}.lua").read_text() == theirs
