"""All sorts of clients at once, for as long as FATHOM_HOSTILE_S says: 5 s unless given.

The server is the same process at the end, said how it was within a second all the time, and has
given back memory and descriptors."""

import json
import os
import random
import signal
import socket
import threading
import time

import requests
from conftest import eventually, serving
from test_memory import MIB, resident

SECONDS = float(os.environ.get("FATHOM_HOSTILE_S", "5"))
SEED = int(os.environ.get("FATHOM_HOSTILE_SEED", time.time_ns() % 1_000_000))
CHAT = "/v1/chat/completions"


def descriptors(server):
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


class Clients:
    def __init__(self, server, keys):
        self.server, self.keys = server, keys
        self.port = int(server.url.rsplit(":", 1)[1])
        self.headers = {"Authorization": "Bearer sk-a"}
        self.statuses = {}
        self.lock = threading.Lock()

    def note(self, status):
        with self.lock:
            self.statuses[status] = self.statuses.get(status, 0) + 1

    def ask(self, body, stream=False, timeout=60, **more):
        answer = requests.post(self.server.url + CHAT, json=body, headers=self.headers | more,
                               stream=stream, timeout=timeout)
        self.note(answer.status_code)
        return answer

    @staticmethod
    def body(rng, **more):
        return {"messages": [{"role": "user", "content": "What is 2 + 2? " * rng.randint(1, 60)}],
                "max_tokens": rng.randint(1, 40), "temperature": rng.choice([0, 1])} | more

    def chat(self, rng):
        answer = self.ask(self.body(rng, n=rng.randint(1, 3)))
        assert answer.status_code in (200, 429), answer.text

    def stream(self, rng):
        with self.ask(self.body(rng, stream=True), stream=True) as answer:
            assert b"[DONE]" in answer.content or answer.status_code == 429

    def leave(self, rng):
        with self.ask(self.body(rng, stream=True, ignore_eos=True, max_tokens=400), stream=True) as answer:
            next(answer.iter_content(10))

    def refused(self, rng):
        bodies = [{}, {"messages": 5}, self.body(rng, temperature=9), self.body(rng, model="none"),
                  self.body(rng, logit_bias={"9999999": 1}), self.body(rng, stop=[""] * 9)]
        assert self.ask(rng.choice(bodies)).status_code in (400, 404)

    def stranger(self, rng):
        assert self.ask(self.body(rng), Authorization=f"Bearer {rng.random()}").status_code == 401

    def noise(self, rng):
        text = json.dumps(self.body(rng))
        whole = (f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer sk-a\r\n"
                 f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n{text}").encode()
        damaged = bytearray(whole[: rng.randint(1, len(whole))])
        for _ in range(rng.randint(0, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as client:
            client.sendall(damaged)
            if rng.random() < 0.5:
                client.shutdown(socket.SHUT_WR)
            client.settimeout(rng.random())
            try:
                client.recv(1000)
            except OSError:
                pass

    def reload(self, rng):
        self.keys.write_text(f"a sk-a\nother sk-{rng.randrange(10**9)}\n" if rng.random() < 0.8 else "bad\n")
        self.server.process.send_signal(signal.SIGHUP)
        time.sleep(0.05)
        self.keys.write_text("a sk-a\n")

    def watch(self, rng):
        began = time.monotonic()
        for path in ("/health", "/load", "/metrics"):
            assert requests.get(self.server.url + path, timeout=5).status_code == 200
        assert time.monotonic() - began < 1
        time.sleep(0.05)


def test_all_sorts_of_clients_at_once(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("a sk-a\n")
    with serving("--api-key-file", keys, "--max-num-seqs", "4", "--max-model-len", "1024",
                 "--max-queue", "16", "--header-timeout", "2",
                 "--body-timeout", "2", "--idle-timeout", "2", "--log-format", "json") as server:
        clients = Clients(server, keys)
        for warm in (clients.chat, clients.stream):
            warm(random.Random(0))
        before, files = resident(server)[0], descriptors(server)
        end = time.monotonic() + SECONDS
        failures = []

        def work(kind, number):
            rng = random.Random(f"{SEED} {kind.__name__} {number}")
            while time.monotonic() < end and not failures:
                try:
                    kind(rng)
                except Exception as failure:
                    failures.append(f"{kind.__name__}: {failure!r}")

        kinds = [clients.chat, clients.stream, clients.leave, clients.refused, clients.stranger,
                 clients.noise, clients.watch]
        threads = [threading.Thread(target=work, args=(kind, i)) for kind in kinds for i in range(2)]
        threads.append(threading.Thread(target=work, args=(clients.reload, 0)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, f"seed {SEED}: {failures}"
        assert server.process.poll() is None
        assert eventually(lambda: requests.get(f"{server.url}/load", timeout=5).json()["server_load"] == 0)
        assert eventually(lambda: descriptors(server) <= files + 4), f"seed {SEED}"
        assert eventually(lambda: resident(server)[0] - before < 64 * MIB), f"seed {SEED}"
        assert {200, 400, 401} <= set(clients.statuses)
        lines = [line for line in server.output().splitlines() if line.startswith("{")]
        logged = [entry for entry in map(json.loads, lines) if entry.get("path") == CHAT]
        assert len(logged) >= sum(clients.statuses.values())
        assert server.stop() == 0
