"""What deploy/ has for Prometheus and Grafana, held against /metrics and by promtool."""

import json
import re
import shutil
import subprocess

import requests
from conftest import ROOT, serving

BOARD = json.loads((ROOT / "deploy" / "grafana.json").read_text())
ALERTS = ROOT / "deploy" / "alerts.yml"
QUERIES = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
NAME = re.compile(r"\b(?:(?:vllm|fathom):\w+|http_\w+)")


def promtool(*arguments, **more):
    ran = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=60, **more)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_promtool_takes_alerts_and_queries(tmp_path):
    promtool("check", "rules", ALERTS)
    shutil.copy(ALERTS, tmp_path)
    shutil.copy(ROOT / "tests" / "e2e" / "alerts_test.yml", tmp_path)
    promtool("test", "rules", "alerts_test.yml", cwd=tmp_path)
    queries = [query.replace("$__rate_interval", "1m") for query in QUERIES]
    rules = [{"record": f"query:{i}", "expr": query} for i, query in enumerate(queries)]
    (tmp_path / "board.yml").write_text(json.dumps({"groups": [{"name": "board", "rules": rules}]}))
    promtool("check", "rules", tmp_path / "board.yml")


def test_every_metric_that_is_asked_for_is_there(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("anna sk-a\n")
    with serving("--api-key-file", keys) as server:
        server.client(api_key="sk-a").completions.create(model="tiny-r1", prompt="What is", max_tokens=3)
        text = requests.get(f"{server.url}/metrics", timeout=10).text
    there = {re.split(r"[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}
    asked = {name for query in [*QUERIES, ALERTS.read_text()] for name in NAME.findall(query)}
    assert len(asked) > 20
    assert asked - there == set()
    # Labels by which the board and the alerts choose.
    assert 'vllm:num_requests_running{engine="0",model_name="tiny-r1"}' in text
    for label in ('finished_reason="error"', 'status="200"', 'handler="/v1/completions"', 'kind="prompt"'):
        assert label in text


def test_each_group_has_its_series():
    """As vLLM's engines have; what runs in all is their sum."""
    with serving("-dp", "2", "-ep", "--no-speculation") as server:
        stream = {"model": "tiny-r1", "prompt": "What is", "max_tokens": 1500, "stream": True, "extra_body": {"ignore_eos": True}}
        streams = [server.client().completions.create(**stream) for _ in range(2)]
        for one in streams:
            next(iter(one))
        assert [server.metric("vllm:num_requests_running", engine=group) for group in ("0", "1")] == [1, 1]
        assert all(0 < server.metric("vllm:kv_cache_usage_perc", engine=group) < 1 for group in ("0", "1"))
        for one in streams:
            one.close()
