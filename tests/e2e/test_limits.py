"""Limits that bound each other, and flags of limits that nothing else sets."""

import socket
import time

import pytest
import requests
from conftest import MODEL, serving
from test_command_line import refused, run

FULL = {"prompt": [1, 200, 300], "max_tokens": 3500, "ignore_eos": True, "stream": True}


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--max-connections-per-client", "2000"],
         "--max-connections-per-client: 2000 is more than --max-connections 1024 allows: "
         "say 1024 at most, or --max-connections 2000"),
        (["--max-connections", "100", "--max-connections-per-client", "101"],
         "--max-connections-per-client: 101 is more than --max-connections 100 allows: "
         "say 100 at most, or --max-connections 101"),
        (["--max-queue", "4", "--max-num-seqs", "2", "--max-requests-per-client", "7"],
         "--max-requests-per-client: 7 is more than --max-queue 4 beside the 2 that run (--max-num-seqs) allows: "
         "say 6 at most, or --max-queue 5"),
        (["--max-client-memory-bytes", "2GiB"],
         "--max-client-memory-bytes: 2147483648 is more than --max-request-memory-bytes 1073741824 allows: "
         "say 1073741824 at most, or --max-request-memory-bytes 2147483648"),
        (["--max-request-memory-bytes", "1000"],
         "--max-request-memory-bytes: 1000 has no room for a body of 64 KiB: say 1048575 at least, "
         "or --max-body-bytes for smaller ones"),
        (["--max-client-memory-bytes", "2000"],
         "--max-client-memory-bytes: 2000 has no room for a body of 64 KiB: say 786432 at least, "
         "or --max-body-bytes for smaller ones"),
        (["--queue-timeout", "7200"],
         "--queue-timeout: 7200 is more than --request-timeout 3600 allows: say 3600 at most, or --request-timeout 7200"),
        (["--request-timeout", "20", "--work-timeout", "20.5"],
         "--work-timeout: 20.5 is more than --request-timeout 20 allows: say 20 at most, or --request-timeout 20.5"),
        (["--request-timeout", "20", "--body-timeout", "21"],
         "--body-timeout: 21 is more than --request-timeout 20 allows: say 20 at most, or --request-timeout 21"),
        (["--request-timeout", "20", "--header-timeout", "21"],
         "--header-timeout: 21 is more than --request-timeout 20 allows: say 20 at most, or --request-timeout 21"),
    ],
)  # fmt: skip
def test_what_another_limit_keeps_from_being_reached_is_refused(flags, said):
    assert refused("serve", MODEL, *flags) == [f"fathom serve: {said}"]


def test_bodies_that_no_memory_has_room_for_are_refused():
    ended = run("serve", MODEL, "--port", "0", "--max-body-bytes", "2GiB")
    assert ended.returncode == 1
    assert "--max-request-memory-bytes 1073741824 is too little for bodies of 2147483648 (--max-body-bytes)" in ended.stderr


def test_memory_that_no_grammar_has_room_in_is_refused():
    ended = run("serve", MODEL, "--port", "0", "--max-grammar-memory-bytes", "120000000")
    assert ended.returncode == 1
    assert ("--max-grammar-memory-bytes 120000000: several clients' grammars for this model's 4096 tokens may take "
            "more: say 125829120 at least") in ended.stderr


def status_of_a_body_of(server, size):
    """Before it is sent."""
    with socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1])), timeout=20) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                       b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % size)
        return int(client.recv(1000).split()[1])


def test_limits_that_are_not_given_follow_those_that_are():
    """Queue and time of a request as well: what is not given does not contradict them."""
    with serving("--max-connections", "100", "--max-request-memory-bytes", "100MiB", "--max-queue", "4",
                 "--max-num-seqs", "2", "--request-timeout", "5") as server:
        largest = (75 * 2**20 - 24 * 2**20 - 2**18) // 4  # 3/4 of the memory: 4 bodies, 24 MiB and 256 KiB
        assert status_of_a_body_of(server, largest) == 100
        assert status_of_a_body_of(server, largest + 1) == 413


def test_refusals_are_a_gap_apart():
    with serving("--refusal-gap", "1000", "--max-requests-per-client", "1") as server:
        with requests.post(f"{server.url}/v1/completions", json=FULL, stream=True, timeout=20) as stream:
            assert stream.status_code == 200
            began = time.monotonic()
            for _ in range(2):
                assert requests.post(f"{server.url}/v1/completions", json=FULL, timeout=20).status_code == 429
            assert time.monotonic() - began >= 0.99  # however slow the machine; rounded down to milliseconds
