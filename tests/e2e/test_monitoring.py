"""What deploy/ has for Prometheus and Grafana, held against /metrics and by promtool."""

import json
import os
import re
import socket
import subprocess
import time
from pathlib import Path

import requests
from conftest import ROOT, eventually, serving

BOARD = json.loads((ROOT / "deploy" / "grafana.json").read_text())
ALERTS = ROOT / "deploy" / "alerts.yml"
QUERIES = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
NAME = re.compile(r"\b(?:(?:vllm|fathom):\w+|http_\w+)")


def promtool(*arguments):
    ran = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_promtool_takes_alerts_and_queries(tmp_path):
    promtool("check", "rules", ALERTS)
    promtool("test", "rules", ROOT / "tests" / "e2e" / "alerts_test.yml")
    queries = [query.replace("$__rate_interval", "1m") for query in QUERIES]
    rules = [{"record": f"query:{i}", "expr": query} for i, query in enumerate(queries)]
    (tmp_path / "board.yml").write_text(json.dumps({"groups": [{"name": "board", "rules": rules}]}))
    promtool("check", "rules", tmp_path / "board.yml")


def series_of(text):
    """(name, labels) of each series that `text`, a query or an exposition, names with labels."""
    return [(name, re.findall(r'(\w+)(=~|!=|!~|=)"([^"]*)"', labels))
            for name, labels in re.findall(rf"({NAME.pattern}){{([^}}]*)}}", text)]  # fmt: skip


def is_there(wanted, there):
    """Whether a series of `there` has the name and each label that is wanted, values as well."""
    name, matchers = wanted
    assert all(how in ("=", "=~") for _, how, _ in matchers), f"not understood: {wanted}"
    return any(
        name == other and all(label in labels and re.fullmatch(value if how == "=~" else re.escape(value), labels[label])
                              for label, how, value in matchers)
        for other, labels in there)  # fmt: skip


def test_every_metric_that_is_asked_for_is_there(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("anna sk-a requests-per-minute=2\n")
    with serving("--api-key-file", keys) as server:
        client = server.client(api_key="sk-a")
        client.completions.create(model="tiny-r1", prompt="What is", max_tokens=3)
        for status in (200, 429):
            chat = {"model": "tiny-r1", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
            key = {"Authorization": "Bearer sk-a"}
            answer = requests.post(f"{server.url}/v1/chat/completions", json=chat, headers=key, timeout=30)
            assert answer.status_code == status
        told = lambda: requests.get(f"{server.url}/metrics", timeout=10).text  # noqa: E731
        assert eventually(lambda: 'status="429"' in told())
        text = told()
        assert "/metrics needs no key, and names those of" in server.output()
    there = {re.split(r"[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}
    queries = [*QUERIES, ALERTS.read_text()]
    asked = {name for query in queries for name in NAME.findall(query)}
    assert len(asked) > 20
    assert asked - there == set()
    exposed = [(name, {label: value for label, _, value in labels}) for name, labels in series_of(text)]
    # What the board and the alerts choose by, and what the alerts are tested with.
    chosen = [series for query in queries for series in series_of(query.replace("$model", "tiny-r1"))]
    fed = series_of((ROOT / "tests" / "e2e" / "alerts_test.yml").read_text())
    fed = [(name, [one for one in labels if one[0] != "instance"]) for name, labels in fed]
    fed = [one for one in fed if ("handler", "=", "/health") not in one[1]]  # 503: not ready, so no metrics yet
    assert len(chosen) > 20 and len(fed) > 10
    assert [series for series in chosen + fed if not is_there(series, exposed)] == []


def test_the_process_says_what_it_takes():
    with serving() as server:
        of = Path(f"/proc/{server.process.pid}")
        fields = (of / "stat").read_text().rpartition(")")[2].split()
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
        assert abs(server.metric("process_start_time_seconds") - (time.time() - age)) < 1
        resident = int((of / "statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
        assert abs(server.metric("process_resident_memory_bytes") / resident - 1) < 0.2
        assert server.metric("process_virtual_memory_bytes") > server.metric("process_resident_memory_bytes")
        before = server.metric("process_cpu_seconds_total")
        server.client().completions.create(model="tiny-r1", prompt="What is", max_tokens=500, extra_body={"ignore_eos": True})
        used = sum(map(int, (of / "stat").read_text().rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")
        assert before < server.metric("process_cpu_seconds_total") and abs(server.metric("process_cpu_seconds_total") - used) < 1
        files = len(list((of / "fd").iterdir()))
        held = [socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1]))) for _ in range(20)]
        assert eventually(lambda: 20 <= server.metric("process_open_fds") - files <= 22)
        assert server.metric("process_max_fds") >= 1024
        for one in held:
            one.close()


def test_each_rank_has_its_series():
    """Of two stages of two groups: memory by what for, steps, and the time that they took."""
    with serving("-pp", "2", "-dp", "2", "-ep", "--no-speculation") as server:
        server.client().completions.create(model="tiny-r1", prompt="What is", max_tokens=20, extra_body={"ignore_eos": True})
        for rank, (stage, group) in enumerate((("0", "0"), ("0", "1"), ("1", "0"), ("1", "1"))):
            of = {"rank": str(rank), "stage": stage, "engine": group}
            assert server.metric("fathom:rank_steps_total", **of) >= 20
            assert 0 < server.metric("fathom:rank_busy_seconds_total", **of) < 60
            kinds = ("weights", "kv_cache", "activations", "exchange")
            assert all(server.metric("fathom:rank_memory_bytes", kind=kind, **of) > 0 for kind in kinds)
        busy = server.metric("fathom:rank_busy_seconds_total", rank="0")
        time.sleep(1)
        assert server.metric("fathom:rank_busy_seconds_total", rank="0") - busy < 0.5, "idle is not busy"


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
