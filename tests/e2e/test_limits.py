"""Limits that bound each other, and flags of limits that nothing else sets."""

import time

import requests
from conftest import serving

FULL = {"prompt": [1, 200, 300], "max_tokens": 3500, "ignore_eos": True, "stream": True}


def test_refusals_are_a_gap_apart():
    with serving("--refusal-gap", "1000", "--max-requests-per-client", "1") as server:
        with requests.post(f"{server.url}/v1/completions", json=FULL, stream=True, timeout=20) as stream:
            assert stream.status_code == 200
            began = time.monotonic()
            for _ in range(2):
                assert requests.post(f"{server.url}/v1/completions", json=FULL, timeout=20).status_code == 429
            assert time.monotonic() - began >= 0.99  # however slow the machine; rounded down to milliseconds
