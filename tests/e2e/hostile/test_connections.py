"""Connections that do nothing, and a server that may not have many."""

import os
import re
import resource
import socket
import subprocess
import time

import requests
from conftest import BINARY, MODEL, eventually, serving


def address(server):
    host, port = server.url.removeprefix("http://").split(":")
    return host, int(port)


def test_idle_connections_shut_nobody_out():
    # As a shell starts it: 1024 descriptors, which the server may raise.
    def usual_limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096))

    wanted = 2600
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (wanted, max(wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    )
    with serving(preexec_fn=usual_limit) as server:
        idle = [socket.create_connection(address(server), timeout=10) for _ in range(1040)]
        for _ in range(5):
            assert requests.get(f"{server.url}/health", timeout=2).status_code == 200
            assert requests.get(f"{server.url}/v1/models", timeout=2).status_code == 200
        for client in idle:
            client.close()


def test_without_descriptors_it_says_so_once_and_waits():
    with serving() as server:
        assert requests.get(f"{server.url}/health", timeout=5).status_code == 200
        pid = server.process.pid
        used = lambda: max(int(one) for one in os.listdir(f"/proc/{pid}/fd")) + 1  # noqa: E731
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE, (used(), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        said = lambda: server.output().count("no connection can be accepted for now: Too many open files")  # noqa: E731
        waiting = [socket.create_connection(address(server), timeout=10) for _ in range(20)]
        assert eventually(lambda: said() > 0)
        time.sleep(1)  # ten more tries to accept one
        assert said() == 1
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        waiting[-1].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert waiting[-1].recv(12) == b"HTTP/1.1 200"
        for client in waiting:
            client.close()


def test_too_few_descriptors_are_said_at_once():
    def tight_limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))

    ended = subprocess.run(
        [BINARY, "serve", MODEL, "--port", "0"],
        capture_output=True,
        text=True,
        timeout=30,
        preexec_fn=tight_limit,
    )
    assert ended.returncode == 1
    assert re.search(r"--max-connections 1024 needs \d+ file descriptors", ended.stderr)
