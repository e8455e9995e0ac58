"""The life of a server: disconnects, concurrency, metrics, shutdown; and the other commands."""

import contextlib
import json
import os
import pty
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
import requests

from conftest import BINARY, MODEL, eventually, serving

MESSAGES = [{"role": "user", "content": "What is 2 + 2?"}]


def endless(client):
    return client.chat.completions.create(
        model="tiny-r1", messages=MESSAGES, stream=True, extra_body={"ignore_eos": True}
    )


def test_small_endpoints(server):
    assert requests.get(f"{server.url}/health", timeout=10).status_code == 200
    assert requests.get(f"{server.url}/ping", timeout=10).status_code == 200
    version = requests.get(f"{server.url}/version", timeout=10).json()["version"]
    assert subprocess.run([BINARY, "--version"], capture_output=True, text=True, check=True).stdout == (
        f"fathom {version}\n"
    )
    model = requests.get(f"{server.url}/v1/models", timeout=10).json()["data"][0]
    assert (model["id"], model["object"], model["max_model_len"]) == ("tiny-r1", "model", 4096)


def test_request_ids_come_back_and_are_logged(server):
    answer = requests.post(
        f"{server.url}/v1/chat/completions",
        json={"messages": MESSAGES, "max_tokens": 2},
        headers={"X-Request-Id": "trace-42"},
        timeout=30,
    )
    assert answer.headers["X-Request-Id"] == "trace-42"
    assert answer.json()["id"] == "chatcmpl-trace-42"
    assert eventually(lambda: "id trace-42" in server.output())
    assert len(requests.get(f"{server.url}/version", timeout=10).headers["X-Request-Id"]) == 32


def test_a_disconnect_frees_the_request(server, client):
    aborted = server.metric("vllm:request_success_total", finished_reason="abort")
    stream = endless(client)
    for _ in zip(range(3), stream):
        pass
    assert server.metric("vllm:num_requests_running") == 1
    stream.close()
    assert eventually(lambda: server.metric("vllm:num_requests_running") == 0)
    assert eventually(lambda: server.metric("vllm:kv_cache_usage_perc") == 0)
    assert server.metric("vllm:request_success_total", finished_reason="abort") == aborted + 1


def test_many_at_once_get_their_own_answers(client):
    def ask(i):
        response = client.chat.completions.create(
            model="tiny-r1",
            temperature=0,
            messages=[{"role": "user", "content": f"What is {i} + 7?"}],
            max_tokens=300,
        )
        return response.choices[0].message.content

    alone = ask(12)
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(16)))
    assert answers[12] == alone == "19"
    assert sum(answer == str(i + 7) for i, answer in enumerate(answers)) >= 15


def test_metrics_count(server, client):
    names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
    before = [server.metric(name) for name in names]
    stopped = server.metric("vllm:request_success_total", finished_reason="stop")
    usage = client.chat.completions.create(
        model="tiny-r1", messages=MESSAGES, temperature=0
    ).usage
    after = [server.metric(name) for name in names]
    assert after[0] - before[0] == usage.prompt_tokens
    assert after[1] - before[1] == usage.completion_tokens
    assert server.metric("vllm:request_success_total", finished_reason="stop") == stopped + 1
    for name in (
        "vllm:time_to_first_token_seconds_count",
        "vllm:inter_token_latency_seconds_count",
        "vllm:e2e_request_latency_seconds_count",
        "vllm:request_prompt_tokens_count",
        "vllm:request_generation_tokens_count",
    ):
        assert server.metric(name, model_name="tiny-r1") > 0


def test_sampling_defaults_come_from_the_model_unless_told_otherwise(server):
    # The model's own are temperature 0.6 and top_p 0.95; vllm's are 1 and 1.
    def text(running, **sampling):
        response = running.client().chat.completions.create(
            model="tiny-r1",
            messages=[{"role": "user", "content": "Tell me a story."}],
            seed=3,
            max_tokens=40,
            **sampling,
        )
        return response.choices[0].message.reasoning, response.choices[0].message.content

    assert text(server) == text(server, temperature=0.6, top_p=0.95)
    with serving("--generation-config", "vllm") as plain:
        assert text(plain) == text(server, temperature=1, top_p=1)


def test_sigterm_lets_requests_finish_and_then_ends_them():
    with serving("--shutdown-timeout", "1") as server:
        client = server.client()
        endless_stream = endless(client)
        next(endless_stream)
        began = time.monotonic()
        server.process.terminate()
        with pytest.raises(openai.APIError, match="shutting down"):
            for _ in endless_stream:
                pass
        assert server.process.wait(10) == 0
        assert 0.5 < time.monotonic() - began < 5
    with serving() as server:
        client = server.client()
        stream = client.chat.completions.create(
            model="tiny-r1", messages=MESSAGES, temperature=0, stream=True
        )
        next(stream)
        server.process.terminate()
        finish = [c.choices[0].finish_reason for c in stream if c.choices]
        assert finish[-1] == "stop"
        assert server.process.wait(10) == 0


def test_a_server_that_leaves_serves_on_for_a_while():
    with serving("--drain-delay", "2") as server:
        server.process.terminate()
        assert eventually(lambda: requests.get(f"{server.url}/health", timeout=10).status_code == 503)
        assert requests.get(f"{server.url}/live", timeout=10).status_code == 200
        answer = server.client().chat.completions.create(model="tiny-r1", messages=MESSAGES)
        assert answer.choices[0].finish_reason == "stop"
        assert server.process.wait(10) == 0
        assert "not ready any more" in server.output()


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_stops_at_once(end):
    with serving() as server:
        server.process.send_signal(end)
        assert server.process.wait(5) == 0


def test_a_second_interrupt_ends_streams_with_an_error():
    with serving() as server:
        stream = endless(server.client())
        next(stream)
        server.process.send_signal(signal.SIGINT)
        assert eventually(lambda: "a second signal ends them at once" in server.output())
        server.process.send_signal(signal.SIGINT)
        with pytest.raises(openai.APIError, match="shutting down"):
            for _ in stream:
                pass
        assert server.process.wait(5) == 0
        line = next(l for l in server.output().splitlines() if " POST " in l)
        assert " 200 " in line and line.endswith("ended by an error: The server is shutting down.")


def test_a_request_that_was_still_arriving_at_the_end_has_its_line():
    with serving("--shutdown-timeout", "0.2") as server:
        port = int(server.url.rsplit(":", 1)[1])
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                           b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
            time.sleep(0.2)
            server.process.terminate()
            began = time.monotonic()
            assert server.process.wait(5) == 0
            assert time.monotonic() - began < 2
        assert server.output().count(" POST /v1/completions 499 ") == 1


def run(*arguments, **options):
    return subprocess.run(
        [BINARY, *arguments], capture_output=True, text=True, timeout=60, **options
    )


def test_a_taken_port_is_said_plainly(server):
    port = server.url.rsplit(":", 1)[1]
    result = run("serve", MODEL, "--port", port)
    assert result.returncode == 1
    assert f"port {port} of 127.0.0.1 is taken" in result.stderr and "--port" in result.stderr
    assert "make serve PORT=" in result.stderr


def test_wrong_flags_and_models_are_said_plainly(tmp_path):
    result = run("serve", tmp_path, "--port", "0")
    assert result.returncode == 1 and "config.json" in result.stderr
    for command in ([], ["serve"], ["generate"], ["inspect"], ["verify"]):
        result = run(*command, "--help")
        assert result.returncode == 0 and "--help" in result.stdout


def test_a_hub_id_in_the_local_cache_is_enough(tmp_path):
    folder = tmp_path / "models--someone--tiny"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    (folder / "snapshots").mkdir()
    (folder / "snapshots" / "abc").symlink_to(MODEL)
    environment = {"HF_HUB_CACHE": str(tmp_path)}
    asked = run("generate", "someone/tiny", "What is 2 + 2?", "--temperature", "0", env=environment)
    assert asked.returncode == 0 and asked.stdout == "4\n"
    absent = run("inspect", "someone/other", env=environment)
    assert absent.returncode == 1 and "hf download someone/other" in absent.stderr


def test_inspect_says_what_each_rank_gets():
    alone = json.loads(run("inspect", MODEL, "--json").stdout)
    assert [rank["layers"] for rank in alone["ranks"]] == [[0, 6]]
    ranks = json.loads(run("inspect", MODEL, "-pp", "2", "-dp", "2", "-ep", "--json").stdout)["ranks"]
    assert [(rank["stage"], rank["group"], rank["layers"], rank["experts"]) for rank in ranks] == [
        (0, 0, [0, 4], [0, 8]), (0, 1, [0, 4], [8, 16]), (1, 0, [4, 6], [0, 8]), (1, 1, [4, 6], [8, 16])]
    assert [rank["head"] for rank in ranks] == [False, False, True, True]
    cut = json.loads(run("inspect", MODEL, "-tp", "2", "-dp", "2", "--json").stdout)["ranks"]
    assert [(rank["heads"], rank["experts"], rank["expert_channels"]) for rank in cut] == [
        ([0, 2], [0, 16], [0, 32]), ([2, 4], [0, 16], [32, 64]), ([0, 2], [0, 16], [64, 96]), ([2, 4], [0, 16], [96, 128])]
    assert "their channels" in run("inspect", MODEL, "-dp", "2").stdout
    assert all(0 < rank["weight_bytes"] < alone["ranks"][0]["weight_bytes"] for rank in ranks)
    refused = run("inspect", MODEL, "-tp", "3")
    assert refused.returncode == 1 and "4 heads cannot be shared out evenly; 1, 2, 4 would do" in refused.stderr


def test_inspect_reports_the_tokenizer(tmp_path):
    whole = json.loads(run("inspect", MODEL, "--json").stdout)
    assert whole["tokenizer"] == {"vocab_size": 4096, "chat_template": True}
    assert (whole["parameters"], whole["mtp_parameters"]) == (16673872, 2742160)  # "19 million"
    for file in MODEL.iterdir():
        if file.name != "tokenizer.json":
            (tmp_path / file.name).symlink_to(file)
    result = run("inspect", tmp_path)
    assert result.returncode == 1
    assert "every tensor" in result.stdout and "tokenizer.json" in result.stderr
    (tmp_path / "tokenizer.json").write_text("{}")
    result = run("inspect", tmp_path, "--json")
    assert result.returncode == 1
    assert "tokenizer.json" in json.loads(result.stdout)["tokenizer"]["error"]


def test_inspect_says_at_once_what_is_wrong_with_weights_and_tokenizer(tmp_path):
    for file in MODEL.iterdir():
        if file.name not in ("tokenizer.json", "model-00003-of-00003.safetensors"):
            (tmp_path / file.name).symlink_to(file)
    (tmp_path / "tokenizer.json").write_text("{")
    result = run("inspect", tmp_path)
    assert result.returncode == 1 and result.stdout == ""
    assert "model-00003-of-00003.safetensors" in result.stderr and "tokenizer.json" in result.stderr


def test_a_bad_chat_template_is_refused_before_the_weights_are_read(tmp_path):
    for file in MODEL.iterdir():
        if file.name != "tokenizer_config.json":
            (tmp_path / file.name).symlink_to(file)
    config = json.loads((MODEL / "tokenizer_config.json").read_text())
    config["chat_template"] = "{% for %}"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    for command in (["serve", tmp_path, "--port", "0"], ["generate", tmp_path, "hi", "--log-level", "info"]):
        result = run(*command)
        assert result.returncode == 1
        assert "the chat template: " in result.stderr and "loading weights" not in result.stderr
    raw = run("generate", tmp_path, "--raw", "What is", "--max-tokens", "2")  # needs none
    assert raw.returncode == 0


def test_web_pages_of_allowed_origins(server):
    origins = ["http://a:1", "http://b"]
    with serving("--allowed-origins", json.dumps(origins)) as open_server:
        for origin in origins:
            answer = requests.get(f"{open_server.url}/v1/models", headers={"Origin": origin}, timeout=10)
            assert answer.headers["Access-Control-Allow-Origin"] == origin
    answer = requests.get(f"{server.url}/v1/models", headers={"Origin": "http://b"}, timeout=10)
    assert "Access-Control-Allow-Origin" not in answer.headers
    assert run("serve", MODEL, "--allowed-origins", "http://a/page").returncode == 2


def test_a_talk_goes_on_after_a_question_that_is_too_long():
    flags = ["--temperature", "0", "--max-model-len", "120"]
    result = talk("generate", MODEL, *flags, lines=["word " * 200, "What is 2 + 2?"])
    assert "prompt and answer together have room for 120" in result
    assert result.rstrip().endswith(">") and "The sum is 4." in result


def talk(*arguments, lines):
    """What a command writes on a terminal on which these lines are typed."""
    terminal, its_end = pty.openpty()
    process = subprocess.Popen([BINARY, *arguments], stdin=its_end, stdout=its_end, stderr=its_end)
    os.close(its_end)
    for line in [*lines, "\x04"]:
        os.write(terminal, f"{line}\n".encode())
    os.write(terminal, b"\x04")
    text = b""
    with contextlib.suppress(OSError):  # the end of a terminal is an error
        while more := os.read(terminal, 4096):
            text += more
    process.wait(60)
    os.close(terminal)
    return text.decode().replace("\r", "")


def test_generate_answers_in_the_terminal():
    result = run("generate", MODEL, "What is 2 + 2?", "--temperature", "0")
    assert result.returncode == 0
    assert result.stdout == "4\n"  # the reasoning goes to stderr
    assert "2 + 2" in result.stderr
    piped = run("generate", MODEL, "--temperature", "0", "--no-thinking", input="What is 2 + 2?\n")
    assert piped.stdout == "4\n"
    raw = run(
        "generate", MODEL, "--raw", "--temperature", "0", "--max-tokens", "4",
        "<｜begin▁of▁sentence｜><｜User｜>What is 2 + 2?<｜Assistant｜></think>",
    )  # fmt: skip
    assert raw.stdout == "4\n"


def test_the_service_manager_hears_how_the_server_is(tmp_path):
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(60)
        with serving(env=os.environ | {"NOTIFY_SOCKET": path}) as server:
            assert manager.recv(100) == b"STATUS=loading the model"
            assert manager.recv(100) == b"READY=1"
            server.process.send_signal(signal.SIGHUP)  # a reload, with nothing to read again
            assert requests.get(f"{server.url}/health", timeout=10).status_code == 200
            assert server.stop() == 0
            assert manager.recv(100) == b"STOPPING=1"


def test_logs_in_json():
    with serving("--log-format", "json") as server:
        answer = server.client().chat.completions.create(
            model="tiny-r1", messages=MESSAGES, extra_headers={"X-Request-Id": "of-a-test"}
        )
        requests.get(f'{server.url}/"\u00e9%ff', timeout=10)
        assert server.stop() == 0
        lines = [json.loads(line) for line in server.output().splitlines() if line.startswith("{")]
        assert all({"time", "level", "message"} <= set(line) for line in lines)
        assert sum("stopping" in line["message"] for line in lines) == 1
        line = next(l for l in lines if l.get("id") == "of-a-test")
        assert (line["method"], line["path"], line["status"]) == ("POST", "/v1/chat/completions", 200)
        assert line["generated_tokens"] == answer.usage.completion_tokens and line["ms"] > 0
        assert any(l.get("status") == 404 for l in lines)
        # The prompt for the reader of stdout and the log are all that there is.
        rest = [l for l in server.output().splitlines() if not l.startswith("{")]
        assert not any(" info " in l or " warning " in l for l in rest)
