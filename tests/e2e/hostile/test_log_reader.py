"""Whoever reads the server's log stops reading, or leaves."""

import os
import time

import pytest
import requests
from conftest import eventually, serving


def ask_often(server, times):
    with requests.Session() as session:
        for _ in range(times):
            assert session.get(f"{server.url}/v1/models", timeout=5).status_code == 200


@pytest.mark.parametrize("leaves", [False, True])
def test_a_slow_log_reader_holds_up_nobody(leaves):
    read_end, write_end = os.pipe()
    with serving(stderr=write_end) as server:
        os.close(write_end)
        if leaves:
            os.close(read_end)
        ask_often(server, 10 if leaves else 800)  # a line each; a pipe holds 64 KiB
        began = time.monotonic()
        assert requests.get(f"{server.url}/health", timeout=5).status_code == 200
        assert time.monotonic() - began < 1
        assert server.process.poll() is None
        if leaves:
            assert eventually(lambda: server.metric("fathom:log_lines_dropped_total") >= 10)
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 3
    if not leaves:
        os.close(read_end)
