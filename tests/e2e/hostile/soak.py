"""All sorts of clients at once on a `fathom serve`: chats, streams, clients that leave, bad requests,
strangers, damaged bytes, reloads of keys. `test_soak.py` runs it for seconds; as a program it runs
for as long as it is told, and draws the server's memory and descriptors:

    FATHOM_BINARY=build/bin/fathom python tests/e2e/hostile/soak.py --seconds 3600 --out build/soak

It ends with status 0 if the server did what a server must: the same process all the time, no answer
that is wrong, a line in the log for each request, everything given back at the end."""

import argparse
import json
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import requests

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import soak_picture
from conftest import eventually, serving
from test_memory import MIB, resident

CHAT, COMPLETIONS, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
WORKERS = 10
FLAGS = ["--max-num-seqs", "4", "--max-model-len", "1024", "--max-queue", "16", "--header-timeout", "2",
         "--body-timeout", "2", "--idle-timeout", "2", "--log-format", "json"]


def descriptors(server):
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


class Clients:
    def __init__(self, server, keys):
        self.server, self.keys = server, keys
        self.port = int(server.url.rsplit(":", 1)[1])
        self.headers = {"Authorization": "Bearer sk-a"}
        self.statuses, self.asked, self.deck = {}, {}, []
        self.health_s = []
        self.lock = threading.Lock()

    # Of twenty requests so many of each kind, in any order.
    MIX = {"chat": 6, "stream": 5, "complete": 2, "message": 1, "leave": 2, "refused": 2, "stranger": 1, "noise": 1}

    def next_kind(self, rng):
        with self.lock:
            if not self.deck:
                self.deck = [kind for kind, count in self.MIX.items() for _ in range(count)]
                rng.shuffle(self.deck)
            kind = self.deck.pop()
            self.asked[kind] = self.asked.get(kind, 0) + 1
        return getattr(self, kind)

    def note(self, status):
        with self.lock:
            self.statuses[status] = self.statuses.get(status, 0) + 1

    def ask(self, body, path=CHAT, stream=False, timeout=120, **more):
        answer = requests.post(self.server.url + path, json=body, headers=self.headers | more,
                               stream=stream, timeout=timeout)
        self.note(answer.status_code)
        return answer

    @staticmethod
    def body(rng, **more):
        return {"messages": [{"role": "user", "content": "What is 2 + 2? " * rng.randint(1, 60)}],
                "max_tokens": rng.randint(1, 40), "temperature": rng.choice([0, 1])} | more

    def chat(self, rng):
        more = rng.choice([{}, {"logprobs": True, "top_logprobs": 5}, {"response_format": {"type": "json_object"}}])
        answer = self.ask(self.body(rng, n=rng.randint(1, 3), **more))
        assert answer.status_code in (200, 429), answer.text

    def complete(self, rng):
        prompts = [[rng.randint(5, 900) for _ in range(rng.randint(1, 500))] for _ in range(rng.randint(1, 2))]
        answer = self.ask({"prompt": prompts, "max_tokens": rng.randint(1, 20), "echo": rng.random() < 0.5},
                          COMPLETIONS)
        assert answer.status_code in (200, 429), answer.text

    def message(self, rng):
        answer = self.ask(self.body(rng, model="tiny-r1"), MESSAGES)
        assert answer.status_code in (200, 429), answer.text

    def stream(self, rng):
        with self.ask(self.body(rng, stream=True), stream=True) as answer:
            assert b"[DONE]" in answer.content or answer.status_code == 429

    def leave(self, rng):
        with self.ask(self.body(rng, stream=True, ignore_eos=True, max_tokens=400), stream=True) as answer:
            next(answer.iter_content(10))

    def refused(self, rng):
        bodies = [{}, {"messages": 5}, self.body(rng, temperature=-9), self.body(rng, model="none"),
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
        time.sleep(0.5)
        self.keys.write_text("a sk-a\n")

    def watch(self, rng):
        for path in ("/health", "/load", "/metrics"):
            began = time.monotonic()
            assert requests.get(self.server.url + path, timeout=30).status_code == 200
            self.health_s.append(time.monotonic() - began)
        time.sleep(0.05)


class Soak:
    """One run. `check()` says what a server must have done."""

    def __init__(self, server, keys, seconds, seed):
        self.server, self.seconds, self.seed = server, seconds, seed
        self.clients = Clients(server, keys)
        self.failures, self.samples = [], []

    def run(self):
        for warm in (self.clients.chat, self.clients.stream):
            warm(random.Random(0))
        self.before, self.files = resident(self.server)[0], descriptors(self.server)
        began = time.monotonic()

        def work(name, choose):
            rng = random.Random(f"{self.seed} {name}")
            while time.monotonic() < began + self.seconds and not self.failures:
                kind = choose(rng)
                try:
                    kind(rng)
                except Exception as failure:
                    self.failures.append(f"{kind.__name__}: {failure!r}")

        threads = [threading.Thread(target=work, args=(i, self.clients.next_kind)) for i in range(WORKERS)]
        for kind in (self.clients.watch, self.clients.reload):
            threads.append(threading.Thread(target=work, args=(kind.__name__, lambda rng, kind=kind: kind)))
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            if self.server.process.poll() is None:
                self.sample(began)
            time.sleep(min(9, max(0.5, self.seconds / 400)))
        for thread in threads:
            thread.join()

    def sample(self, began):
        self.samples.append((round(time.monotonic() - began, 1), resident(self.server)[0] // MIB,
                             descriptors(self.server)))

    def check(self):
        server, seed = self.server, f"seed {self.seed}"
        assert not self.failures, f"{seed}: {self.failures}"
        assert server.process.poll() is None, seed
        assert eventually(lambda: requests.get(f"{server.url}/load", timeout=5).json()["server_load"] == 0)
        assert eventually(lambda: descriptors(server) <= self.files + 4), seed
        assert {200, 400, 401} <= set(self.clients.statuses)
        lines = [line for line in server.output().splitlines() if line.startswith("{")]
        logged = sum(json.loads(line).get("method") == "POST" for line in lines)
        assert logged >= sum(self.clients.statuses.values())
        assert server.stop(120) == 0, f"{seed}: {server.output()[-4000:]}"

    def summary(self):
        health = sorted(self.clients.health_s)
        return {"seconds": self.seconds, "seed": self.seed, "asked": self.clients.asked,
                "statuses": self.clients.statuses,
                "health_p99_ms": round(1000 * health[len(health) * 99 // 100], 1),
                "health_worst_ms": round(1000 * health[-1], 1),
                "memory_mib": [self.before // MIB, self.samples[-1][1], max(s[1] for s in self.samples)],
                "descriptors": [self.files, self.samples[-1][2], max(s[2] for s in self.samples)],
                "failures": self.failures}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--out", type=Path, required=True, help="a folder for soak.json and soak.svg")
    parser.add_argument("--title", default="fathom serve", help="of the picture")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        keys.write_text("a sk-a\n")
        with serving("--api-key-file", keys, *FLAGS) as server:
            soak = Soak(server, keys, args.seconds, args.seed)
            soak.run()
            result = soak.summary()
            (args.out / "soak.json").write_text(json.dumps(result | {"samples": soak.samples}))
            (args.out / "soak.svg").write_text(soak_picture.draw(args.title, soak.samples))
            print(json.dumps(result), flush=True)
            soak.check()
    print("the server did what it must")


if __name__ == "__main__":
    main()
