"""A `fathom serve` of models/tiny-r1 for the tests, and the openai client that talks to it.

FATHOM_BINARY names the binary; otherwise build/bin/fathom."""

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import anthropic
import openai
import pytest
import requests
import typed_models

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "tiny-r1"
BINARY = Path(os.environ.get("FATHOM_BINARY", ROOT / "build" / "bin" / "fathom")).resolve()
START_TIMEOUT_S = 60


class Server:
    def __init__(self, *flags, model=MODEL, stderr=subprocess.STDOUT, **popen):
        self.log = tempfile.TemporaryFile("w+")
        port = [] if "--uds" in flags else ["--port", "0"]
        command = [BINARY, "serve", model, *port, *flags]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=stderr, **popen)
        self.url = self._wait_for_url()

    def output(self):
        # Opened anew: a seek here would move the place that the server writes at.
        return Path(f"/proc/self/fd/{self.log.fileno()}").read_text()

    def _wait_for_url(self):
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            if found := re.search(r"serves \S+ on (\S+) \(ready", self.output()):
                return found[1]
            time.sleep(0.05)
        self.process.kill()
        pytest.fail(f"the server did not get ready:\n{self.output()[-4000:]}")

    def client(self, **options):
        """Whose answers are held against its own types, see typed_models.py."""
        options = {"api_key": "none", "max_retries": 0, "timeout": 60} | options
        options.setdefault("http_client", typed_models.http_client())
        return openai.OpenAI(base_url=f"{self.url}/v1", **options)

    def claude(self, **options):
        """Anthropic's."""
        options = {"api_key": "none", "max_retries": 0, "timeout": 60} | options
        return anthropic.Anthropic(base_url=self.url, http_client=typed_models.http_client(), **options)

    def metric(self, name, **labels):
        """The sum over the series of a metric that have these labels."""
        total = 0.0
        for line in requests.get(f"{self.url}/metrics", timeout=10).text.splitlines():
            series, _, value = line.rpartition(" ")
            if series.split("{")[0] == name and all(f'{k}="{v}"' in series for k, v in labels.items()):
                total += float(value)
        return total

    def stop(self, timeout_s=30):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.log.close()


@contextlib.contextmanager
def serving(*flags, **popen):
    server = Server(*flags, **popen)
    try:
        yield server
    finally:
        server.kill()


def eventually(condition, timeout_s=10):
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


@pytest.fixture(scope="session")
def server():
    with serving() as running:
        yield running
        assert running.process.poll() is None, running.output()[-4000:]
        assert running.stop() == 0, running.output()[-4000:]


@pytest.fixture(scope="session")
def client(server):
    return server.client()


@pytest.fixture(scope="session")
def claude(server):
    return server.claude()


@pytest.fixture(autouse=True)
def answers_are_as_their_clients_types():
    typed_models.FAULTS.clear()
    yield
    assert not typed_models.FAULTS, "\n".join(sorted(set(typed_models.FAULTS)))


@pytest.fixture(scope="session")
def reference():
    """Questions and the reference's greedy answers."""
    import json

    path = ROOT / "tests" / "golden" / "tiny-r1" / "reference.json"
    answers = []
    for entry in json.loads(path.read_text()):
        reasoning, _, content = entry["greedy"].partition("</think>")
        answers.append((entry["question"], reasoning, content.removesuffix("<｜end▁of▁sentence｜>")))
    return answers
