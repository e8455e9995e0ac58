"""Keys that are not there, and keys that change."""

import os
import signal
import subprocess

import pytest
import requests
from conftest import BINARY, MODEL, eventually, serving


@pytest.mark.parametrize("by_flag", [True, False])
def test_an_empty_key_is_refused(by_flag):
    command = [BINARY, "serve", MODEL, "--port", "0"] + (["--api-key", ""] if by_flag else [])
    environment = os.environ | ({} if by_flag else {"FATHOM_API_KEY": ""})
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, env=environment)
    assert ended.returncode != 0
    assert "the key is empty" in ended.stderr


@pytest.mark.parametrize("key", [" ", "sk a", "sk-\u00e4"])
def test_a_key_that_no_client_could_send_is_refused(key):
    command = [BINARY, "serve", MODEL, "--port", "0", "--api-key", "sk-a", key]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert ended.returncode != 0
    assert "--api-key 2: a key has 1 to 512 visible ASCII signs" in ended.stderr


def test_keys_are_named_and_read_again(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("anna sk-anna requests-per-minute=1\nben sk-ben\n")
    with serving("--api-key-file", keys) as server:

        def status(key):
            headers = {"X-Api-Key": key}
            return requests.get(f"{server.url}/v1/models", headers=headers, timeout=10).status_code

        assert [status("sk-anna"), status("sk-anna"), status("sk-ben")] == [200, 429, 200]
        keys.write_text("ben new-ben\n")
        server.process.send_signal(signal.SIGHUP)
        assert eventually(lambda: "keys were read again" in server.output())
        assert [status("sk-anna"), status("sk-ben"), status("new-ben")] == [401, 401, 200]
        keys.write_text("ben\n")
        server.process.send_signal(signal.SIGHUP)
        assert eventually(lambda: "keys stay as they were" in server.output())
        assert status("new-ben") == 200
        assert server.metric("fathom:key_requests_total", key="anna", status="429") == 1
        log = server.output()
        assert "key anna" in log and "key ben" in log
        assert "sk-anna" not in log and "new-ben" not in log


def test_a_bad_file_of_keys_is_refused():
    ended = subprocess.run(
        [BINARY, "serve", MODEL, "--port", "0", "--api-key-file", "/nowhere/keys"],
        capture_output=True, text=True, timeout=30,
    )
    assert ended.returncode != 0
    assert "--api-key-file /nowhere/keys: there is no such file" in ended.stderr
