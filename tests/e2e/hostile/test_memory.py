"""Bodies and answers that are meant to take the server's memory."""

import contextlib
import json
import socket
import threading
import time

import requests
from conftest import eventually, serving

MIB = 1 << 20


def resident(server):
    with open(f"/proc/{server.process.pid}/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    return int(fields["VmRSS"].split()[0]) << 10, int(fields["VmHWM"].split()[0]) << 10


def test_dense_json_is_refused_within_its_memory_and_gives_it_back():
    with serving() as server:
        url = f"{server.url}/v1/chat/completions"
        head = {"Content-Type": "application/json"}
        requests.post(url, data='{"messages": []}', headers=head, timeout=10)
        before, _ = resident(server)
        size = 8 * MIB
        for key in ("chat_template_kwargs", "tools"):
            for piece in ("{},", "[],", "1,", '{"a":1},', "[" + "1," * 999 + "1],"):
                inner = "[" + (piece * (size // len(piece)))[:-1] + "]"
                value = inner if key == "tools" else '{"a":' + inner + "}"
                body = '{"messages":[{"role":"user","content":"hi"}],"%s":%s}' % (key, value)
                answer = requests.post(url, data=body, headers=head, timeout=30)
                assert answer.status_code in (400, 413), answer.text
                assert "shorten it, above all its lists" in answer.json()["error"]["message"]
        _, most = resident(server)
        assert most - before <= 64 * MIB  # it was 80 to 120 times its size, and then 9 times
        assert eventually(lambda: resident(server)[0] - before < 32 * MIB)


def test_many_template_names_hold_up_nobody():
    names = ",".join(f'"name{i}":{i}' for i in range(100_000))
    body = '{"messages":[{"role":"user","content":"hi"}],"max_tokens":1,"chat_template_kwargs":{%s}}'
    with serving() as server:

        def ask():
            requests.post(
                f"{server.url}/v1/chat/completions",
                data=body % names,
                headers={"Content-Type": "application/json"},
                timeout=30,
            )

        clients = [threading.Thread(target=ask) for _ in range(8)]
        began = time.monotonic()
        for client in clients:
            client.start()
        while any(client.is_alive() for client in clients):
            asked = time.monotonic()
            assert requests.get(f"{server.url}/health", timeout=5).status_code == 200
            assert time.monotonic() - asked < 1
            time.sleep(0.01)
        assert time.monotonic() - began < 20
        assert server.stop() == 0


def test_work_on_requests_keeps_no_server_from_ending():
    names = {f"name{i}": i for i in range(200_000)}
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "chat_template_kwargs": names})
    with serving("--shutdown-timeout", "0.2") as server:

        def ask():
            with contextlib.suppress(requests.RequestException):
                while server.process.poll() is None:
                    requests.post(f"{server.url}/v1/chat/completions", data=body,
                                  headers={"Content-Type": "application/json"}, timeout=30)

        clients = [threading.Thread(target=ask) for _ in range(4)]
        for client in clients:
            client.start()
        time.sleep(1)
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 0.2 + 1 + 1  # the last second for machines that others use
        for client in clients:
            client.join()


def test_nine_announced_bodies_lock_nobody_out():
    with serving() as server:
        host, port = server.url.removeprefix("http://").split(":")
        held = []
        for method, path in [("GET", "/health"), ("POST", "/v1/completions")] * 9:
            client = socket.create_connection((host, int(port)))
            client.sendall(
                f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
                "Content-Length: 33554432\r\n\r\n{".encode()
            )
            held.append(client)
        answer = requests.post(
            f"{server.url}/v1/completions",
            data=json.dumps({"prompt": "1", "max_tokens": 1}),
            headers={"Content-Type": "application/json"},
            timeout=10,
        )
        assert answer.status_code == 200
        assert eventually(lambda: requests.get(f"{server.url}/health", timeout=5).ok, 2)
        for client in held:
            client.close()


def test_bodies_that_never_end_leave_nothing_behind():
    with serving() as server:
        host, port = server.url.removeprefix("http://").split(":")
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\n"
        head += "Content-Type: application/json\r\n"
        before, _ = resident(server)

        def send(size, held):
            client = socket.create_connection((host, int(port)), timeout=10)
            held.append(client)
            with contextlib.suppress(OSError):  # one that finds no room is refused
                client.sendall(f"{head}Content-Length: {size + 1}\r\n\r\n".encode() + b" " * size)

        for size, count in ((20 * MIB, 12), (5 * MIB, 40), (MIB, 200)):
            held = []
            senders = [threading.Thread(target=send, args=(size, held)) for _ in range(count)]
            for sender in senders:
                sender.start()
            for sender in senders:
                sender.join()
            # All of them have arrived, or most.
            assert eventually(lambda: resident(server)[0] - before > 128 * MIB), size
            for client in held:
                client.close()
            assert eventually(lambda: resident(server)[0] - before < 64 * MIB), size


def test_large_answers_hold_up_nobody():
    with serving() as server:
        answers = []

        def ask():
            body = {"prompt": [5 + i % 1000 for i in range(500)], "n": 4, "max_tokens": 1}
            body |= {"echo": True, "logprobs": 20}
            answers.append(requests.post(f"{server.url}/v1/completions", json=body, timeout=60))

        client = threading.Thread(target=ask)
        client.start()
        while client.is_alive():
            asked = time.monotonic()
            assert requests.get(f"{server.url}/health", timeout=5).status_code == 200
            assert time.monotonic() - asked < 1
            time.sleep(0.005)
        choices = answers[0].json()["choices"]
        assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
        for choice in choices:
            logprobs = choice["logprobs"]
            assert len(logprobs["tokens"]) == 501
            assert logprobs["token_logprobs"][0] is None
            assert len(logprobs["top_logprobs"][1]) >= 20
            assert "".join(logprobs["tokens"]) == choice["text"]
