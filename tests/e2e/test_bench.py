"""`fathom bench`: what it counts and reports, against servers that answer, refuse and break off."""

import http.server
import json
import pathlib
import subprocess
import threading
import time
from contextlib import contextmanager

import pytest

from conftest import BINARY, MODEL, ROOT, serving


def run(*arguments):
    command = [BINARY, "bench", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def report(*arguments):
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def load(server, *arguments):
    return report("serve", "--base-url", server.url, *arguments)


SOURCES = subprocess.run(
    ["cmake", "-P", ROOT / "cmake" / "source_hashes.cmake"], capture_output=True, text=True, check=True
).stdout.strip()
SMALL = ("--random-input-len", 20, "--random-output-len", 12)


def test_fixed_lengths_are_kept_and_counted(server):
    before = server.metric("vllm:generation_tokens_total")
    result = load(server, "--num-prompts", 12, "--max-concurrency", 4, "--num-warmups", 1, *SMALL)
    assert (result["completed"], result["failed"], result["short_answers"]) == (12, 0, 0)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (12 * 20, 12 * 12)
    assert server.metric("vllm:generation_tokens_total") - before == 13 * 12
    assert result["model"] == "tiny-r1"
    assert result["sources"] == SOURCES
    duration = result["duration"]
    assert result["request_throughput"] == pytest.approx(12 / duration)
    assert result["output_throughput"] == pytest.approx(144 / duration)
    assert result["total_token_throughput"] == pytest.approx(384 / duration)
    for name in ("ttft", "tpot", "itl", "e2el"):
        low, high = result[f"median_{name}_ms"], result[f"p99_{name}_ms"]
        assert 0 < low <= high and 0 < result[f"mean_{name}_ms"] <= high, name
    assert result["median_e2el_ms"] > result["median_ttft_ms"]
    # A request's time is its first token's and eleven more.
    assert result["mean_e2el_ms"] == pytest.approx(
        result["mean_ttft_ms"] + 11 * result["mean_tpot_ms"], rel=1e-6
    )


def test_base_url_as_clients_write_it(server):
    result = report("serve", "--base-url", f"{server.url}/v1/", "--num-prompts", 2, *SMALL)
    assert result["completed"] == 2


def test_concurrency_is_bounded(server):
    slow = load(server, "--num-prompts", 6, "--max-concurrency", 1, *SMALL)
    assert slow["duration"] * 1e3 >= 6 * slow["mean_e2el_ms"] * 0.999


def test_rate_is_kept(server):
    """Thirty arrivals at twenty a second take about 1.5 s, however fast the server is."""
    result = load(server, "--num-prompts", 30, "--request-rate", 20, "--seed", 1, *SMALL)
    assert result["completed"] == 30 and result["duration"] > 0.8


def test_chat(server):
    result = load(server, "--endpoint", "/v1/chat/completions", "--num-prompts", 3, *SMALL)
    assert (result["completed"], result["total_output_tokens"]) == (3, 36)
    assert result["total_input_tokens"] >= 3 * 20


def test_goodput(server):
    args = ("--num-prompts", 4, *SMALL)
    easy = load(server, *args, "--goodput", "ttft:60000", "e2el:60000")
    assert easy["request_goodput"] == pytest.approx(easy["request_throughput"])
    assert load(server, *args, "--goodput", "e2el:0.001")["request_goodput"] == 0
    refused = run("serve", "--base-url", server.url, "--goodput", "speed:3")
    assert refused.returncode == 1 and "ttft:MS" in refused.stderr


def test_prompts_of_a_file(server, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "What is 2 + 2?"}\n\n{"prompt": [5, 6, 7], "max_tokens": 3}\n')
    result = load(server, "--num-prompts", 4, "--dataset-path", path, "--output-len", 5)
    assert result["total_output_tokens"] == 2 * (5 + 3)
    path.write_text('{"prompt": "fine"}\n{"text": "no"}\n')
    refused = run("serve", "--base-url", server.url, "--dataset-path", path)
    assert refused.returncode == 1 and "line 2" in refused.stderr


def test_the_table_has_the_figures(server):
    done = run("serve", "--base-url", server.url, "--num-prompts", 2, *SMALL)
    assert done.returncode == 0, done.stderr
    for word in ("requests/s", "output tokens/s", "time to first token", "end to end", "median", "p99"):
        assert word in done.stdout


def test_what_a_server_refuses_is_said(server):
    too_long = run("serve", "--base-url", server.url, "--random-input-len", 100_000)
    assert too_long.returncode == 1 and "maximum context length" in too_long.stderr
    nobody = run("serve", "--base-url", "http://127.0.0.1:1")
    assert nobody.returncode == 1 and "cannot connect" in nobody.stderr


def test_drafts_are_counted_of_this_load_alone():
    config = '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 2}'
    args = ("--num-prompts", 3, "--random-input-len", 20, "--random-output-len", 60)
    with serving("--speculative-config", config) as speculating:
        load(speculating, *args, "--seed", 1)
        names = {"num_drafts": "num_drafts", "draft_tokens": "num_draft_tokens", "accepted_tokens": "num_accepted_tokens"}
        counts = {key: speculating.metric(f"vllm:spec_decode_{name}_total") for key, name in names.items()}
        result = load(speculating, *args, "--seed", 1, "--num-warmups", 0)
        for key, name in names.items():
            assert result[f"spec_decode_{key}"] == speculating.metric(f"vllm:spec_decode_{name}_total") - counts[key]
        decodes, proposed, stood = (speculating.metric(f"vllm:spec_decode_{name}_total") for name in names.values())
        assert speculating.metric("vllm:spec_decode_draft_acceptance_rate") == pytest.approx(stood / proposed)
        assert speculating.metric("fathom:spec_decode_mean_accepted_length") == pytest.approx(1 + stood / decodes)
        table = run("serve", "--base-url", speculating.url, *args)
    drafts, accepted = result["spec_decode_draft_tokens"], result["spec_decode_accepted_tokens"]
    assert drafts > accepted > 0
    assert result["spec_decode_acceptance_rate"] == pytest.approx(100 * accepted / drafts)
    assert result["spec_decode_acceptance_length"] == pytest.approx(1 + accepted / result["spec_decode_num_drafts"])
    assert "accepted drafts" in table.stdout and "tokens a decode" in table.stdout


CHAT = ("--endpoint", "/v1/chat/completions")
TALKS = (*CHAT, "--dataset", "multi-turn")


def test_talks_grow_and_find_their_beginning(server):
    result = load(server, *TALKS, "--turns", 3, "--num-prompts", 6, "--think-time", 0.01,
                  "--random-input-len", 200, "--random-output-len", 8, "--seed", 5)
    assert (result["completed"], result["turns"], result["dataset"]) == (6, 3, "multi-turn")
    turns = result["by_turn"]
    assert [turn["turn"] for turn in turns] == [1, 2, 3]
    tokens = [turn["total_input_tokens"] for turn in turns]
    # Each question has 200 words, so that a turn is longer by that than the one before.
    assert tokens[1] - tokens[0] >= 2 * 200 and tokens[2] - tokens[1] >= 2 * 200
    assert sum(tokens) == result["total_input_tokens"]
    # Of the question before, three pages of 64 tokens are found.
    assert turns[1]["cached_share"] >= 3 * 64 * 2 / tokens[1] and turns[2]["cached_share"] > turns[1]["cached_share"]
    assert result["cached_share"] == pytest.approx(result["total_cached_tokens"] / result["total_input_tokens"])


def test_talks_take_their_time(server):
    """Two talks at once, each with three pauses of which the mean is 0.2 s."""
    result = load(server, *TALKS, "--turns", 4, "--num-prompts", 8, "--think-time", 0.2, "--seed", 3, *SMALL)
    assert result["completed"] == 8 and result["duration"] > 0.15
    one = load(server, *TALKS, "--turns", 4, "--num-prompts", 8, "--think-time", 0.2, "--seed", 3, "--max-concurrency", 1, *SMALL)
    assert one["duration"] > result["duration"]


def test_talks_are_refused_where_they_cannot_be(server):
    def refused(*arguments):
        done = run("serve", "--base-url", server.url, *arguments)
        assert done.returncode == 1
        return done.stderr

    assert "add --endpoint /v1/chat/completions" in refused("--dataset", "multi-turn")
    assert "talks have 5 turns each" in refused(*TALKS, "--num-prompts", 6)
    assert "leave --dataset-path out" in refused(*TALKS, "--num-prompts", 5, "--dataset-path", __file__)


@contextmanager
def fake_server(answer):
    """A server whose n-th completion has the status and the events that answer(n) gives."""

    class Handler(http.server.BaseHTTPRequestHandler):
        count = 0

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            Handler.count += 1
            status, events = answer(Handler.count)
            self.send_response(status)
            self.end_headers()
            for event in events:
                self.wfile.write(event.encode())
                self.wfile.flush()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as fake:
        threading.Thread(target=fake.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{fake.server_port}"
        fake.shutdown()


def event(**fields):
    return f"data: {json.dumps(fields)}\n\n"


def test_failures_are_counted_and_named():
    good = [
        event(choices=[{"text": "a", "finish_reason": None}]),
        event(choices=[{"text": "b", "finish_reason": "stop"}]),
        "data: [DONE]\n\n",
    ]
    answers = {
        1: (200, good),  # the warm-up
        2: (200, good),
        3: (200, good[:1]),
        4: (200, [event(error={"message": "out of pages"})]),
        5: (503, ['{"error": {"message": "too busy"}}']),
        6: (200, ["data: {\n\n"]),
    }
    with fake_server(answers.get) as url:
        args = ("--base-url", url, "--model", "m", "--num-prompts", 5, "--max-concurrency", 1, *SMALL)
        done = run("serve", *args, "--json")
    assert done.returncode == 1 and "4 of 5 requests failed" in done.stderr
    result = json.loads(done.stdout)
    assert "spec_decode_num_drafts" not in result  # it has no /metrics
    assert (result["completed"], result["failed"], result["short_answers"]) == (1, 4, 1)
    assert result["total_output_tokens"] == 2  # without usage: events with text
    errors = " ".join(result["errors"])
    for reason in ("ended before its answer", "out of pages", "HTTP 503: too busy", "not a JSON object"):
        assert reason in errors


def test_a_server_that_hangs_is_given_up():
    def hang():
        yield event(choices=[{"text": "a"}])
        time.sleep(3)

    with fake_server(lambda _: (200, hang())) as url:
        args = ("--base-url", url, "--model", "m", "--num-prompts", 1, "--timeout", 0.5, *SMALL)
        done = run("serve", *args)
    assert done.returncode == 1 and "no complete answer within" in done.stderr


def test_offline():
    args = ("--batch-size", "2,3", "--input-len", 24, "--output-len", 6, "--repeats", 2, "--read-bytes", "64MiB")
    result = report("offline", MODEL, *args)
    assert [r["batch_size"] for r in result["results"]] == [2, 3]
    assert result["sources"] == SOURCES
    first = result["results"][0]
    for name in ("decode_tokens_per_s", "prefill_tokens_per_s", "bandwidth_share", "peak_share"):
        assert result[name] == first[name] > 0
    assert result["read_bandwidth_gb_s"] > 0 and result["fp32_peak_gflops"] > 0
    # Between one decode at a time and two of the whole model.
    assert 2e6 < result["unique_bytes_per_step"] < result["weight_bytes"]
    share = first["unique_bytes_per_step"] * first["decode_tokens_per_s"] / 2
    assert first["bandwidth_share"] == pytest.approx(share / (1e9 * result["read_bandwidth_gb_s"]))
    # While the last prompt is computed the first request may decode.
    assert 24 <= first["decode_context"] <= 24 + 2 + 6
    assert result["prefills"] == []
    least = first["unique_bytes_per_step"] / (1e9 * result["read_bandwidth_gb_s"])
    assert first["decode_floor_ms"] >= 999.9 * least
    names = ("fp32_peak_gflops", "bf16_peak_gflops", "int8_peak_gops", "fp8_peak_gflops")
    peaks = sum(result[name] is not None for name in names)  # not every processor has them all
    assert run("offline", MODEL, *args).stdout.count("%") == 2 * (3 + peaks)


def test_offline_of_several_lengths():
    args = ("--batch-size", "1,2", "--input-len", "8,24", "--prefill-len", "64,300", "--output-len", 4, "--repeats", 1)
    result = report("offline", MODEL, *args, "--read-bytes", "16MiB")
    assert [(r["batch_size"], r["input_len"]) for r in result["results"]] == [(1, 8), (2, 8), (1, 24), (2, 24)]
    assert not any("prefill_tokens_per_s" in r for r in result["results"])
    assert [(r["input_len"], len(r["prefill_runs"])) for r in result["prefills"]] == [(64, 3), (300, 3)]
    for r in result["prefills"]:
        work = r["prefill_operations_per_token"] * r["input_len"]
        fastest = max(result[name] or 0 for name in ("fp32_peak_gflops", "bf16_peak_gflops", "int8_peak_gops"))
        assert r["prefill_floor_ms"] >= 999.9 * work / (1e9 * fastest)


def test_offline_with_random_weights():
    args = ("--input-len", 8, "--output-len", 2, "--repeats", 1, "--read-bytes", "16MiB")
    tiny = report("offline", MODEL, "--load-format", "dummy", "--dtype", "bf16", "--num-layers", 2, *args)
    assert (tiny["weights"], tiny["num_layers"], tiny["load_format"]) == ("bf16", 2, "dummy")
    for wrong, sentence in (
        ((), "no model"),
        (("--config-preset", "v3"), "add --load-format dummy"),
        (("--load-format", "dummy"), "v2-lite"),
        ((MODEL, "--load-format", "dummy", "--num-layers", "7"), "the model has 6"),
    ):
        done = run("offline", *wrong)
        assert done.returncode == 1 and sentence in done.stderr, done.stderr


@pytest.mark.parametrize("layout", ["-pp 2", "-tp 2", "-dp 2", "-dp 2 -ep", "-tp 2 -pp 2"])
def test_offline_on_several_ranks(layout):
    args = ("--input-len", 8, "--output-len", 4, "--repeats", 1, "--read-bytes", "16MiB")
    ranks = report("offline", MODEL, "--batch-size", 4, *layout.split(), *args)
    # Two pipeline stages have the requests between their steps.
    one = report("offline", MODEL, "--batch-size", 2 if "-pp 2" in layout else 4, *args)
    # All of it is somewhere, and not all of it on two ranks: attention is every group's.
    assert one["weight_bytes"] <= ranks["weight_bytes"] < 2 * one["weight_bytes"]
    # A request may enter a step later than the others, and the timed steps then see longer contexts.
    assert ranks["operations_per_step"] == pytest.approx(one["operations_per_step"], rel=0.02)


def test_offline_with_drafts_that_stand_by_chance():
    args = ("--batch-size", 4, "--input-len", 8, "--output-len", 40, "--repeats", 1, "--read-bytes", "16MiB")
    drafts = ("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 2}', "--synthetic-routing", "uniform")
    per_row = {}
    for share in (0, 0.8, 1):
        result = report("offline", MODEL, *drafts, "--synthetic-acceptance", share, *args)
        assert result["synthetic_acceptance"] == share and "num_speculative_tokens" in result["speculative_config"]
        per_row[share] = result["decode_tokens_per_step"] / 4
    assert per_row[0] == 1 and per_row[1] == 3 and 2.1 < per_row[0.8] < 2.8  # 1 + 0.8 + 0.64
    # Beside a step without drafts: thrice the tokens, the draft layer for four, and two heads more.
    plain = report("offline", MODEL, "--synthetic-routing", "uniform", *args)
    assert 3 < result["operations_per_step"] / plain["operations_per_step"] < 5
    done = run("offline", MODEL, "--synthetic-acceptance", "0.5", *args)
    assert done.returncode == 1 and "add --speculative-config" in done.stderr, done.stderr


def test_offline_with_experts_drawn_at_random(tmp_path):
    config = json.loads((pathlib.Path(MODEL) / "config.json").read_text())
    experts, topk = config["n_routed_experts"], config["num_experts_per_tok"]
    shares = tmp_path / "shares.txt"
    shares.write_text(" ".join(["1"] * topk + ["0"] * (experts - topk)) + "\n")
    args = ("--batch-size", 16, "--input-len", 8, "--output-len", 4, "--repeats", 1, "--read-bytes", "16MiB")
    distinct = {}
    for routing in ("uniform", "zipf", shares):
        result = report("offline", MODEL, "--synthetic-routing", routing, *args)
        assert result["synthetic_routing"] == str(routing)
        distinct[str(routing)] = result["experts_per_layer"]
    assert distinct[str(shares)] == topk < distinct["zipf"] <= distinct["uniform"] <= experts
    table = run("offline", MODEL, "--synthetic-routing", shares, *args).stdout.splitlines()
    ends = table[-3].index("distinct") + len("distinct")
    assert table[-1][:ends].split()[-1] == str(topk)


def test_offline_refuses_synthetic_routing_that_does_not_fit(tmp_path):
    config = json.loads((pathlib.Path(MODEL) / "config.json").read_text())
    layer = " ".join(["1"] * config["n_routed_experts"]) + "\n"
    layers = config["num_hidden_layers"] - config["first_k_dense_replace"]
    args = ("--output-len", 4, "--read-bytes", "16MiB")
    shares = tmp_path / "shares.txt"
    for text, sentence in (("1 2 three\n", "line 1 has something else than numbers"),
                           ("1 2\n", f"line 1 has 2 shares: a layer of the model has {config['n_routed_experts']} experts"),
                           (layer * (layers + 1), f"{layers + 1} lines of shares: {layers} layers of the model have experts; "
                                                  "write a line for each of them, or one line for all")):
        shares.write_text(text)
        done = run("offline", MODEL, "--synthetic-routing", shares, *args)
        assert done.returncode == 1 and f"--synthetic-routing {shares}: {sentence}" in done.stderr, done.stderr
    shares.write_text(layer.replace("1", "0"))
    done = run("offline", MODEL, "--synthetic-routing", shares, *args)
    assert done.returncode == 1 and f"{shares}: --synthetic-routing: shares are numbers from 0" in done.stderr, done.stderr
    done = run("offline", MODEL, "--synthetic-routing", "even", *args)
    assert done.returncode == 1 and "uniform, zipf or a file" in done.stderr, done.stderr
    done = run("offline", MODEL, "--synthetic-routing", "", *args)
    assert done.returncode != 0 and "say uniform, zipf or a file, or leave it out" in done.stderr, done.stderr
    done = run("offline", MODEL, "--load-format", "dummy", "--num-layers", 1, "--synthetic-routing", "uniform", *args)
    assert done.returncode == 1 and "uniform: no layer of the model has experts" in done.stderr, done.stderr


def test_random_weights_are_served_with_a_folders_tokenizer():
    with serving("--load-format", "dummy", "--num-layers", "2") as dummy:
        assert load(dummy, "--num-prompts", 3, *SMALL)["total_output_tokens"] == 36


def test_turns_behind_one_that_failed_are_not_sent():
    asked = []

    def answer(count):
        asked.append(count)
        if count == 2:
            return 500, ['{"error": {"message": "broken"}}']
        text = event(choices=[{"delta": {"content": "yes"}, "finish_reason": "stop"}])
        return 200, [text, "data: [DONE]\n\n"]

    with fake_server(answer) as url:
        done = run("serve", "--base-url", url, *TALKS, "--turns", 3, "--num-prompts", 3, "--num-warmups", 0,
                   "--think-time", 0, "--model", "m", "--json")
    assert asked == [1, 2] and done.returncode == 1
    result = json.loads(done.stdout)
    assert (result["completed"], result["failed"]) == (1, 2) and "broken" in result["errors"][0]
