"""Connections that do nothing, and a server that may not have many."""

import json
import os
import re
import resource
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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


def test_a_client_that_leaves_in_its_prefill_ends_it():
    """Nothing of its prompt is computed but what was in flight."""
    chunk, tokens = 128, 4000
    with serving("--prefill-chunk", str(chunk), "--max-num-batched-tokens", str(chunk)) as server:
        body = json.dumps({"prompt": [5 + i % 900 for i in range(tokens)], "max_tokens": 1})
        steps = server.metric("fathom:engine_steps_total")
        with socket.create_connection(address(server)) as client:
            client.sendall((f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                            f"Content-Length: {len(body)}\r\n\r\n{body}").encode())
            assert eventually(lambda: server.metric("fathom:engine_steps_total") > steps)
        assert eventually(lambda: requests.get(f"{server.url}/load", timeout=5).json()["kv_cache_usage"] == 0)
        assert eventually(lambda: "POST /v1/completions 499" in server.output())
        assert server.metric("fathom:engine_steps_total") - steps < tokens // chunk / 2
        answer = requests.post(f"{server.url}/v1/completions", json={"prompt": "2 + 2", "max_tokens": 1}, timeout=30)
        assert answer.status_code == 200


def test_a_client_that_is_done_sending_is_answered_after_a_flood_of_connections():
    """It was taken for gone, one in some hundred: a wait for an error had ended without one."""
    body = json.dumps({"prompt": "2 + 2", "max_tokens": 1})
    request = (f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
               f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}").encode()

    def flood():
        for _ in range(6000):
            socket.create_connection(address(server)).close()

    def ask():
        for _ in range(150):
            with socket.create_connection(address(server), timeout=30) as client:
                client.sendall(request)
                client.shutdown(socket.SHUT_WR)
                assert client.makefile("rb").read().startswith(b"HTTP/1.1 200")

    with serving() as server, ThreadPoolExecutor(4) as pool:
        for work in (flood, ask):
            for done in [pool.submit(work) for _ in range(4)]:
                done.result()


def test_urgent_data_keeps_no_thread_busy():
    """Of a client that is read no further, having sent much ahead, while its request runs."""
    body = json.dumps({"prompt": "2 + 2", "max_tokens": 3000, "ignore_eos": True})
    request = (f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
               f"Content-Length: {len(body)}\r\n\r\n{body}").encode()

    def cores(server):
        """How many the process takes, of which a single thread computes."""
        used = lambda: sum(map(int, Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))
        before, began = used(), time.monotonic()
        time.sleep(0.5)
        return (used() - before) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - began)

    taken = []
    with serving("--threads", "1") as server:
        for urgent in (b"", b"!"):
            with socket.create_connection(address(server), timeout=30) as client:
                client.sendall(request + b"x" * 100_000)
                time.sleep(0.1)
                if urgent:
                    client.send(urgent, socket.MSG_OOB)
                taken.append(cores(server))
    assert taken[1] < taken[0] + 0.6, taken
