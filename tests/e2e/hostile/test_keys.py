"""A key that is not there."""

import os
import subprocess

import pytest
from conftest import BINARY, MODEL


@pytest.mark.parametrize("by_flag", [True, False])
def test_an_empty_key_is_refused(by_flag):
    command = [BINARY, "serve", MODEL, "--port", "0"] + (["--api-key", ""] if by_flag else [])
    environment = os.environ | ({} if by_flag else {"FATHOM_API_KEY": ""})
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, env=environment)
    assert ended.returncode != 0
    assert "the key is empty" in ended.stderr
