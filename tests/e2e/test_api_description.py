"""schemathesis asks what /openapi.json describes, in every form that it can think of, and holds the
answers against the description."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import requests
from conftest import serving

# Checks that are not for us: what is valid by itself may contradict what stands beside it
# (stream_options without stream), and null counts as left out, though no schema says so.
NOT_OURS = "positive_data_acceptance,negative_data_rejection"


def test_answers_are_as_described(tmp_path):
    with serving("--api-key", "sk-a", "--max-model-len", "256", "--max-num-seqs", "8") as server:
        document = tmp_path / "openapi.json"
        description = requests.get(f"{server.url}/openapi.json", timeout=10).json()
        for path in ("/v1/messages", "/v1/responses"):
            # It holds an event that has a name, with that name, against the schema of what it carries;
            # test_openapi.py does without the name.
            description["paths"][path]["post"]["responses"]["200"]["content"]["text/event-stream"] = {}
        document.write_text(json.dumps(description))
        ran = subprocess.run(
            [Path(sys.executable).parent / "st", "run", document, "-u", server.url,
             "-H", "Authorization: Bearer sk-a", "--checks", "all", "--exclude-checks", NOT_OURS,
             "-n", os.environ.get("FATHOM_EXAMPLES", "10"), "--seed", "16", "--request-timeout", "60",
             "--continue-on-failure", "--no-shrink"],
            cwd=tmp_path, capture_output=True, text=True, timeout=600)
        assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
        assert re.search(r"Tested: [1-9]", ran.stdout)
        assert server.process.poll() is None
