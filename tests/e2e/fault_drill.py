"""Faults on purpose, one after the other: what clients see, what the log says, how long it takes.
Prints docs/operating.md's table of them; ends with an error where a server does not do what it must.

    FATHOM_BINARY=build/bin/fathom python tests/e2e/fault_drill.py"""

import concurrent.futures
import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import requests
from conftest import BINARY, MODEL, eventually, serving

SMALL = ("--kv-cache-memory-bytes", "64MiB", "--max-model-len", "1024", "--max-num-seqs", "1")
LONG = {"messages": [{"role": "user", "content": "Count."}], "max_tokens": 900, "ignore_eos": True}
ENDED = r"ended by an error: [^\n]*"
SHORT = {"messages": [{"role": "user", "content": "What is 2 + 2?"}], "max_tokens": 2}


def said(server, pattern, within_s=10):
    """What the log says that matches."""
    assert eventually(lambda: re.search(pattern, server.output()), within_s), server.output()[-2000:]
    return re.search(pattern, server.output())[0]


def ask(server, body=SHORT, **more):
    return requests.post(f"{server.url}/v1/chat/completions", json=body, timeout=60, **more)


def error(answer):
    return answer.json()["error"]["message"]


def streams(server, count=1, choices=1):
    """So many that run or wait."""
    opened = [ask(server, LONG | {"stream": True, "n": choices}, stream=True) for _ in range(count)]
    assert eventually(lambda: requests.get(f"{server.url}/load", timeout=5).json()["server_load"] >= count)
    return opened


def address(server):
    host, port = server.url.removeprefix("http://").split(":")
    return host, int(port)


def timed(work):
    began = time.monotonic()
    result = work()
    return result, time.monotonic() - began


def refused(*arguments, **more):
    ran, took = timed(lambda: subprocess.run([BINARY, "serve", *arguments], capture_output=True, text=True,
                                             timeout=60, **more))
    assert ran.returncode != 0
    return f"no port; status {ran.returncode}", ran.stderr.strip().splitlines()[-1], took


def queue_full():
    with serving(*SMALL, "--max-queue", "1") as server:
        held = streams(server, 2)
        answer, took = timed(lambda: ask(server))
        assert answer.status_code == 429 and len(held) == 2
        return "429", said(server, r"POST \S+ 429"), took


def queue_timeout():
    with serving(*SMALL, "--queue-timeout", "0.5") as server:
        held = streams(server, 3)  # one alone may have ended by then
        answer, took = timed(lambda: ask(server))
        assert answer.status_code == 503 and answer.headers["Retry-After"] and held
        return "503, or an error event", said(server, ENDED), took


def request_timeout():
    with serving(*SMALL, "--request-timeout", "0.2") as server:
        answer, took = timed(lambda: ask(server, LONG))
        assert answer.status_code == 504, answer.text
        return "504, or an error event", said(server, ENDED), took


def client_leaves():
    with serving(*SMALL) as server:
        (stream,) = streams(server)
        next(stream.iter_content(10))
        began = time.monotonic()
        stream.close()
        assert eventually(lambda: requests.get(f"{server.url}/load", timeout=5).json()["kv_cache_usage"] == 0)
        return "it has left", said(server, r"POST \S+ 499"), time.monotonic() - began


def client_leaves_its_body():
    with serving(*SMALL) as server:
        with socket.create_connection(address(server)) as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                           b"Content-Length: 100\r\n\r\n{")
        line, took = timed(lambda: said(server, r"POST \S+ 499"))
        return "it has left", line, took


def slow_reader():
    with serving(*SMALL, "--send-timeout", "1") as server:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(address(server))
            body = json.dumps(LONG | {"stream": True, "logprobs": True, "top_logprobs": 20})
            client.sendall((f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}").encode())
            line, took = timed(lambda: said(server, r"does not read: dropped|POST \S+ 499"))
        return "a reset", line, took


def slow_head():
    with serving(*SMALL, "--header-timeout", "1") as server, socket.create_connection(address(server)) as client:
        client.sendall(b"GET /v1/models HTTP/1.1\r\nHost:")
        answer, took = timed(lambda: client.recv(1000))
        assert b" 408 " in answer
        return "408", said(server, r"GET \S+ 408"), took


def announced_bodies():
    with serving(*SMALL) as server:
        held = []
        for _ in range(9):
            held.append(socket.create_connection(address(server)))
            held[-1].sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
                             b"\r\nContent-Length: 33554432\r\n\r\n{")
        answer, took = timed(lambda: ask(server))
        assert answer.status_code == 200
        return "others are served", said(server, r"POST \S+ 200"), took


def large_form(name):
    """Of 3.3 MiB."""
    names = [f"{name}{i}" for i in range(800)]
    schema = {"type": "object", "properties": {n: {"type": "string", "minLength": 20, "maxLength": 40} for n in names},
              "required": names, "additionalProperties": False}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}}


def grammars_in_flight():
    asked = {key: value for key, value in LONG.items() if key != "ignore_eos"}
    with serving(*SMALL, "--max-grammar-memory-bytes", "120MiB") as server, contextlib.ExitStack() as held:
        for name in "abcdefghij":  # ten of 3.3 MiB, of which one runs, long, and others wait
            body = json.dumps(asked | large_form(name) | {"n": 16})
            client = held.enter_context(socket.create_connection(address(server)))
            client.sendall((f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                            f"application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}").encode())
        assert eventually(lambda: server.metric("fathom:grammar_memory_bytes") > 30 << 20)
        answer, took = timed(lambda: ask(server, asked | large_form("z")))
        assert answer.status_code == 503 and "end some of your requests" in error(answer), answer.text
        line = said(server, ENDED)
        held.close()
        assert eventually(lambda: ask(server, asked | large_form("z")).status_code == 200)
        return "503, until some end", line, took


def idle_connections():
    with serving(*SMALL, "--max-connections-per-client", "1024") as server:
        held = [socket.create_connection(address(server)) for _ in range(1040)]
        answer, took = timed(lambda: ask(server))
        assert answer.status_code == 200
        assert requests.get(f"{server.url}/health", timeout=1).status_code == 200
        del held
        return "others are served", said(server, r"POST \S+ 200"), took


def log_is_not_read():
    with tempfile.TemporaryDirectory() as folder:
        pipe = os.path.join(folder, "log")
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        writer = os.open(pipe, os.O_WRONLY)
        with serving(*SMALL, "--log-level", "debug", stderr=writer) as server:
            answer, took = timed(lambda: ask(server))
            assert answer.status_code == 200
            while server.metric("fathom:log_lines_dropped_total") == 0:
                requests.get(f"{server.url}/" + "x" * 90, timeout=10)
            os.read(reader, 1 << 20)
        os.close(reader)
        os.close(writer)
    return "they are served", "(lines dropped and counted)", took


def bad_keys():
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        keys.write_text("anna sk-a\n")
        with serving(*SMALL, "--api-key-file", keys) as server:
            keys.write_text("anna\n")
            server.process.send_signal(signal.SIGHUP)
            line, took = timed(lambda: said(server, r"keys stay as they were: [^\n]*"))
            assert ask(server, headers={"Authorization": "Bearer sk-a"}).status_code == 200
            return "the old keys are good", line.replace(str(keys), "FILE"), took


def told_to_stop():
    with serving(*SMALL, "--shutdown-timeout", "1") as server:
        (stream,) = streams(server, choices=16)  # one after the other: more than a second
        with concurrent.futures.ThreadPoolExecutor() as pool:
            read = pool.submit(lambda: stream.content)
            took = timed(server.stop)[1]
            assert b"The server is shutting down" in read.result() and server.process.returncode == 0
        return ("an error event, `[DONE]`",
                said(server, r"ending \d+ connections?[^\n]*"), took)


def killed():
    with serving(*SMALL) as server:
        (stream,) = streams(server)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        try:
            _ = stream.content
            raise AssertionError("a stream that was cut off looks whole")
        except requests.exceptions.ChunkedEncodingError:
            pass
    server, took = timed(lambda: serving(*SMALL).__enter__())
    server.kill()
    return "the stream is cut off", "(nothing; ready again)", took


def halt_busiest_thread(pid):
    """That alone, for good."""
    wall, seize, interrupt = 0x40000000, 0x4206, 0x4207  # __WALL, PTRACE_SEIZE, PTRACE_INTERRUPT

    def ticks(task):
        return sum(map(int, (task / "stat").read_text().rpartition(")")[2].split()[11:13]))

    tasks = list(Path(f"/proc/{pid}/task").iterdir())
    before = {task: ticks(task) for task in tasks}
    time.sleep(0.5)
    busiest = int(max(tasks, key=lambda task: ticks(task) - before[task]).name)
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    for request in (seize, interrupt):
        assert ptrace(request, busiest, None, None) == 0, os.strerror(ctypes.get_errno())
    os.waitpid(busiest, wall)  # it has halted
    # The process does not end before who halts a thread has heard of its end.
    threading.Thread(target=os.waitpid, args=(busiest, wall), daemon=True).start()


def rank_does_not_come():
    with serving(*SMALL, "--tp", "2", "--threads", "2", "--step-timeout", "1") as server:
        (stream,) = streams(server)
        halt_busiest_thread(server.process.pid)
        read, took = timed(lambda: stream.content)
        assert b'"error"' in read and b"has waited 1 s for rank" in read, read[-500:]
        with contextlib.suppress(requests.ConnectionError):  # it may be gone already
            # The stream's end may be here before the server knows that it ends.
            assert eventually(lambda: requests.get(f"{server.url}/health", timeout=5).status_code == 503, 1)
        assert server.process.wait(10) == 1
        return "an error event; status 1", said(server, r"rank \d has waited 1 s for rank \d [^\n]*"), took


def not_a_number():
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "tiny-r1"
        shutil.copytree(MODEL, model)
        for path in model.glob("*.safetensors"):
            data = bytearray(path.read_bytes())
            (size,) = struct.unpack("<Q", data[:8])
            for name, entry in json.loads(data[8 : 8 + size]).items():
                if name.endswith("embed_tokens.weight"):
                    at, width = 8 + size + entry["data_offsets"][0], entry["shape"][1]
                    data[at + 1000 * width * 2 : at + 1001 * width * 2] = b"\xc0\x7f" * width
            path.write_bytes(data)
        with serving(*SMALL, model=model) as server:
            url = f"{server.url}/v1/completions"
            answer, took = timed(lambda: requests.post(url, json={"prompt": [1, 1000, 1]}, timeout=60))
            assert answer.status_code == 500, answer.text
            assert requests.post(url, json={"prompt": [1, 2]}, timeout=60).status_code == 200
            assert "NaN" in error(answer)
            return "500, or an error event", said(server, ENDED), took


def port_is_taken():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        seen, line, took = refused(MODEL, "--port", str(other.getsockname()[1]))
        return seen, re.sub(r"\d{4,5}", "N", line), took


def file_is_cut_off():
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "tiny-r1"
        shutil.copytree(MODEL, model)
        path = next(model.glob("*-00002-*.safetensors"))
        os.truncate(path, path.stat().st_size // 2)
        seen, line, took = refused(model, "--port", "0")
        return seen, line.replace(str(model), "MODEL"), took


def memory_is_short():
    seen, line, took = refused(MODEL, "--port", "0", "--max-num-seqs", "4096", "--kv-cache-memory-bytes", "200GiB")
    return seen, line, took


DRILL = [
    ("The queue is full", queue_full),
    ("`--queue-timeout 0.5` passes", queue_timeout),
    ("`--request-timeout 0.2` passes", request_timeout),
    ("A client leaves in mid-stream", client_leaves),
    ("A client leaves within its body", client_leaves_its_body),
    ("No reads, `--send-timeout 1`", slow_reader),
    ("A slow head, `--header-timeout 1`", slow_head),
    ("Nine bodies of 32 MiB, not sent", announced_bodies),
    ("Grammars beyond their memory", grammars_in_flight),
    ("1,040 connections are idle", idle_connections),
    ("Nobody reads the log", log_is_not_read),
    ("SIGHUP, a broken file of keys", bad_keys),
    ("SIGTERM, `--shutdown-timeout 1`", told_to_stop),
    ("SIGKILL in mid-stream", killed),
    ("A rank halts, `--step-timeout 1`", rank_does_not_come),
    ("Logits are NaN", not_a_number),
    ("The port is taken", port_is_taken),
    ("A file of weights is cut off", file_is_cut_off),
    ("Memory does not suffice", memory_is_short),
]


def table_row(fault, clients, log, took):
    """At most 100 columns: the log's line is cut off where it has no room."""
    begins, ends = f"| {fault} | {clients} | ", f" | {1000 * took:.0f} |"
    room = 100 - len(begins) - len(ends) - len("``")
    log = log.removeprefix("ended by an error: ").removeprefix("fathom serve: ")
    shown = log if len(log) <= room else log[: room - 3] + "..."
    return begins + (log if log.startswith("(") else f"`{shown}`") + ends


def main():
    print("| fault | clients see | the log says | ms |\n|---|---|---|---|")
    for fault, provoke in DRILL:
        print(table_row(fault, *provoke()), flush=True)


if __name__ == "__main__":
    main()
