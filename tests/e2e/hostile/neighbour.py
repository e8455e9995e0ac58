"""Another client of the server, in a process of its own: reads one stream after the other, and asks
/health all the time. `gate.py` starts it. For each line on its standard input it prints what it saw
since the line before: gaps between the tokens of a stream, and how long /health took."""

import json
import socket
import sys
import threading
import time

ADDRESS = "127.0.0.2"  # counts as another client than those at 127.0.0.1
HEALTH_PAUSE_S = 0.05
TIMEOUT_S = 20
BODY = {"prompt": [1, 200, 300, 400], "max_tokens": 3500, "ignore_eos": True, "stream": True, "temperature": 0}


def request(method, path, body=""):
    return (f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}").encode()


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S, source_address=(ADDRESS, 0))


class Neighbour:
    def __init__(self, port):
        self.port = port
        self.lock = threading.Lock()
        self.seen = self.nothing()

    @staticmethod
    def nothing():
        return {"gaps": [], "health": [], "failures": []}

    def note(self, what, value):
        with self.lock:
            self.seen[what].append(value)

    def read_stream(self):
        """The time from a token to the next one that comes in another piece: of tokens that come in
        one piece all but the first have waited for nothing."""
        last, data, head = None, b"", b""
        with connect(self.port) as client:
            client.sendall(request("POST", "/v1/completions", json.dumps(BODY)))
            while piece := client.recv(1 << 16):
                now = time.monotonic()
                head = (head + piece)[:100]
                data = data[-20:] + piece
                if b"data: " in piece:
                    if last is not None:
                        self.note("gaps", now - last)
                    last = now
        assert b" 200 " in head.split(b"\r\n")[0] and b"[DONE]" in data, (head, data)

    def ask_health(self):
        began = time.monotonic()
        with connect(self.port) as client:
            client.sendall(request("GET", "/health"))
            answer = client.recv(100)
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        self.note("health", time.monotonic() - began)
        time.sleep(HEALTH_PAUSE_S)

    def again(self, work):
        while True:
            try:
                work()
            except Exception as failure:
                self.note("failures", f"{work.__name__}: {failure!r}")
                time.sleep(HEALTH_PAUSE_S)

    def report(self):
        with self.lock:
            seen, self.seen = self.seen, self.nothing()
        gaps, health = sorted(seen["gaps"]), sorted(seen["health"])
        return {"tokens": len(gaps), "p50_ms": 1000 * at(gaps, 0.5), "p99_ms": 1000 * at(gaps, 0.99),
                "worst_ms": 1000 * at(gaps, 1), "health_ms": 1000 * at(health, 1), "failures": seen["failures"]}


def at(values, share):
    return values[min(len(values) - 1, int(len(values) * share))] if values else 0


def main():
    neighbour = Neighbour(int(sys.argv[1]))
    for work in (neighbour.read_stream, neighbour.ask_health):
        threading.Thread(target=neighbour.again, args=(work,), daemon=True).start()
    for _ in sys.stdin:
        print(json.dumps(neighbour.report()), flush=True)


if __name__ == "__main__":
    main()
