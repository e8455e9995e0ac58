"""Ten thousand streams at once: how fast /health answers meanwhile, and what a stream costs.

    FATHOM_BINARY=build/bin/fathom python tests/e2e/hostile/many_streams.py [--streams 10000]"""

import argparse
import asyncio
import json
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from conftest import serving
from test_memory import resident

BODY = json.dumps({"messages": [{"role": "user", "content": "What is 2 + 2?"}], "max_tokens": 2,
                   "ignore_eos": True, "stream": True})
CHAT = (f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n{BODY}").encode()


async def stream(port, begun, opening):
    async with opening:  # so many at a time as a listening socket holds
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(CHAT)
        head = await reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in head, head
    begun.append(time.monotonic())
    whole = b"[DONE]" in await reader.read()
    writer.close()
    return whole


async def health(port, until, seconds):
    """On one connection, so that the client's own queue of new ones is not measured."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while not until.is_set():
        began = time.monotonic()
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        seconds.append(time.monotonic() - began)
        await asyncio.sleep(0.02)
    writer.close()


async def run(server, count):
    port = int(server.url.rsplit(":", 1)[1])
    before, begun, seconds, over = resident(server)[0], [], [], asyncio.Event()
    began = time.monotonic()
    opening = asyncio.Semaphore(500)
    streams = [asyncio.create_task(stream(port, begun, opening)) for _ in range(count)]
    while len(begun) < count:
        await asyncio.sleep(0.05)
        for task in streams:
            if task.done():
                task.result()
    opened, held = max(begun) - began, resident(server)[0]
    watch = asyncio.create_task(health(port, over, seconds))
    whole = sum(await asyncio.gather(*streams))
    over.set()
    await watch
    seconds.sort()
    print(f"{count} streams: opened in {opened:.1f} s, {whole} whole after {time.monotonic() - began:.1f} s; "
          f"{(held - before) / count / 1024:.1f} KiB a stream; /health meanwhile: p50 "
          f"{1000 * seconds[len(seconds) // 2]:.1f} ms, p99 {1000 * seconds[len(seconds) * 99 // 100]:.1f} ms, "
          f"worst {1000 * seconds[-1]:.1f} ms of {len(seconds)}")
    assert whole == count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--streams", type=int, default=10_000)
    count = parser.parse_args().streams
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    many = str(count + 100)
    with serving("--max-connections", many, "--max-connections-per-client", many, "--max-requests-per-client",
                 many, "--max-queue", many, "--max-model-len", "256", "--max-num-seqs", "32",
                 "--log-level", "warning") as server:
        asyncio.run(run(server, count))


if __name__ == "__main__":
    main()
