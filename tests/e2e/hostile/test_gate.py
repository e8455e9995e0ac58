"""Each of `cases.py` against one server, for as long as FATHOM_GATE_S says: 0.3 s unless given.

How much longer the neighbour waits for its tokens is printed (pytest -rP); on a machine that others
use too it is no ground to fail. docs/soak.md has it from a longer run."""

import os
from pathlib import Path

import pytest
from cases import CASES, requests_that_are_refused
from conftest import serving
from gate import COLUMNS, FLAGS, opened, table_row

SECONDS = float(os.environ.get("FATHOM_GATE_S", "0.3"))


@pytest.fixture(scope="module")
def gate():
    with opened() as gate:
        yield gate


def test_threads_that_read_long_requests_give_way(gate):
    tasks = Path(f"/proc/{gate.server.process.pid}/task").iterdir()
    niceness = [int((task / "stat").read_text().rpartition(")")[2].split()[16]) for task in tasks]
    assert niceness.count(19) >= 2 > niceness.count(min(niceness) + 5), niceness


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_others_are_served_beside(gate, case):
    print(COLUMNS + "\n" + table_row(gate.run(case, SECONDS)))


def test_a_control_asks_nothing_of_the_server_that_is_watched(gate):
    def refused(server):
        return server.metric("http_requests_total", status="4xx")

    before = refused(gate.server)
    with serving(*FLAGS) as other:
        assert gate.run(requests_that_are_refused, SECONDS, other)["requests"] <= refused(other)
    assert refused(gate.server) == before
