"""docs/peers.md agrees with the stored outcomes, which cover every use and architecture."""

import json

from hf_captioners.architectures import ARCHITECTURES
from tests.peers.methods import CHECKS, PROCESSES
from tests.peers.page import PAGE, STORED, section

OUTCOMES = json.loads(STORED.read_text(encoding="utf-8"))
NAMES = {name for name, row in ARCHITECTURES.items() if row.package is None}


def test_table_is_that_of_the_outcomes():
    assert section(OUTCOMES) in PAGE.read_text(encoding="utf-8"), "type: python -m tests.peers.page"


def test_every_use_was_measured_and_works():
    assert OUTCOMES["table"].keys() == {*CHECKS, *PROCESSES.values()}
    for check, cells in OUTCOMES["table"].items():
        assert cells.keys() == NAMES and not any("fail" in cell for cell in cells.values()), check
