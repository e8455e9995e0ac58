"""`fathom compare`: against fathom itself, and against servers that deviate, lack, lie, hang."""

import http.server
import json
import subprocess
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

from conftest import BINARY, MODEL

CHAT = {"messages": [{"role": "user", "content": "What is 17 + 25?"}]}
TEXT = {"prompt": "The lighthouse keeper had not spoken to anyone since the autumn, when"}
IDS = {"prompt": [4082, 50, 60, 70, 80]}


def run(url, *arguments):
    command = [BINARY, "compare", MODEL, "--server", url, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """Flags for a short run."""
    path = tmp_path_factory.mktemp("compare") / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (CHAT, TEXT, IDS)))
    return ("--prompts", path, "--max-tokens", 12, "--loads", 0)


def report(url, *arguments, agrees=True):
    done = run(url, "--json", *arguments)
    assert done.returncode == (0 if agrees else 1) and done.stdout, done.stderr
    result = json.loads(done.stdout)
    assert (result["verdict"] == "agree") == agrees, result["why"]
    return result


def compared_prompt_tokens(result):
    """All but the first of each prompt, which has no probability."""
    return sum(prompt["prompt_tokens"] - 1 for prompt in result["prompts"])


def refused(url, *arguments):
    done = run(url, *arguments)
    assert done.returncode == 1 and not done.stdout
    return done.stderr


class Stand:
    """Between fathom compare and a server: what it is asked and what it answers may be changed."""

    def __init__(self, url):
        self.url = url
        self.paths = []
        self.piece, self.pause_s = 1 << 20, 0  # how it writes
        self.change = lambda path, request, reply: reply
        self.refuse = lambda path, request: None  # (status, bytes) instead of an answer

    def ask(self, path, body):
        headers = {"Content-Type": "application/json"}
        try:
            request = urllib.request.Request(self.url + path, body, headers)
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.status, reply.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def answer(self, path, body):
        self.paths.append(path)
        request = json.loads(body) if body else {}
        if answer := self.refuse(path, request):
            return answer
        status, reply = self.ask(path, body)
        if status != 200 or path == "/metrics" or request.get("stream"):
            return status, reply
        return status, json.dumps(self.change(path, request, json.loads(reply))).encode()


@contextmanager
def standing(url):
    stand = Stand(url)

    class Handler(http.server.BaseHTTPRequestHandler):
        def serve(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, reply = stand.answer(self.path, body or None)
            try:
                self.send_response(status)
                self.end_headers()
                for at in range(0, len(reply), stand.piece):
                    self.wfile.write(reply[at : at + stand.piece])
                    time.sleep(stand.pause_s)
            except OSError:
                pass  # whoever asked has gone

        do_GET = do_POST = serve

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as fake:
        fake.daemon_threads = True
        threading.Thread(target=fake.serve_forever, args=(0.05,), daemon=True).start()
        stand.here = f"http://127.0.0.1:{fake.server_port}"
        yield stand
        fake.shutdown()


@pytest.fixture
def stand(server):
    with standing(server.url) as between:
        yield between


def of_completions(change):
    """`change(choice)` of every greedy completion."""

    def changed(path, request, reply):
        if path == "/v1/completions" and "response_format" not in request:
            change(reply["choices"][0])
        return reply

    return changed


def test_fathom_is_fathom_to_the_bit(server):
    result = report(server.url, "--loads", "1,3", "--load-input-len", 20, "--load-output-len", 8,
                    "--max-tokens", 20, "--against", server.url)
    for kind in ("prompt_logprobs", "answer_logprobs"):
        assert result["all"][kind]["max"] == 0 and result["all"][kind]["count"] > 100
    assert result["all"]["divergence"]["max"] < 1e-9
    assert result["all"]["equal_tokens"] == result["all"]["tokens"] > 100
    assert (result["server_owner"], result["prompt_logprobs_from"]) == ("fathom", "prompt_logprobs")
    assert len(result["prompts"]) == 11 and result["left_out"] == [] and result["partings"] == []
    assert result["tokenizers"] == {"asked": 11, "differing": []}
    assert result["repeats"]["equal_answers"] == result["repeats"]["answers"] == 11
    assert result["repeats"]["answer_logprobs"]["max"] == 0
    structured = result["structured"]
    assert structured["our_json"] and structured["their_json"] and structured["forbidden_at"] is None
    assert structured["equal_tokens"] == structured["our_tokens"] == structured["their_tokens"] > 5
    assert [load["concurrency"] for load in result["loads"]] == [1, 3]
    for load in result["loads"]:
        for side in ("server", "against"):
            assert load[side]["failed"] == 0 and load[side]["total_output_tokens"] == 8 * load[side]["completed"]


def test_the_page_has_it_all(server, few):
    done = run(server.url, *few[:-1], "2", "--load-input-len", 8, "--load-output-len", 4)
    assert done.returncode == 0, done.stderr
    for word in ("line 1", "tokenizers        2 of 2", "greedy", "KL, likeliest", "speculation", "structured output",
                 "valid JSON", " 2, the server", "They agree  "):
        assert word in done.stdout, word


def test_other_numbers_differ(server, few):
    result = report(server.url, *few, "--quantization", "int4", agrees=False)
    assert result["all"]["divergence"]["mean"] > 0.02
    assert all(part["tie"] == (part["our_gap"] is not None and part["our_gap"] + part["their_gap"] <= 0.5)
               for part in result["partings"] if part["their_gap"] is not None)


def test_shifted_logprobs_are_measured(stand, few):
    def shift(choice):
        logprobs = choice["logprobs"]
        logprobs["token_logprobs"] = [x - 0.25 for x in logprobs["token_logprobs"]]
        logprobs["top_logprobs"] = [{k: v - 0.25 for k, v in top.items()} for top in logprobs["top_logprobs"]]

    stand.change = of_completions(shift)
    result = report(stand.here, *few, agrees=False)
    assert result["all"]["answer_logprobs"]["mean"] == pytest.approx(0.25, abs=1e-4)
    assert result["all"]["prompt_logprobs"]["max"] == 0 and result["partings"] == []


def test_one_slip_is_one_slip(stand, few):
    """Another token at place 3: what follows is held against it, and nothing else differs there."""

    def part(choice):
        top = choice["logprobs"]["top_logprobs"][3]
        second = sorted(top, key=top.get)[-2]
        choice["token_ids"][3] = int(second.removeprefix("token_id:"))
        choice["logprobs"]["token_logprobs"][3] = top[second]

    stand.change = of_completions(part)
    result = report(stand.here, *few, agrees=False)
    parted = [(part["prompt"], part["position"]) for part in result["partings"]]
    assert {("line 1", 3), ("line 2", 3), ("line 3", 3)} <= set(parted)
    for part in result["partings"]:
        if part["position"] == 3:
            assert part["ours"] != part["theirs"] and part["our_gap"] > 0
            assert part["their_gap"] == pytest.approx(-part["our_gap"], abs=1e-4)
            assert part["tie"] == (2 * part["our_gap"] <= 0.5)
    for prompt in result["prompts"]:
        assert prompt["tokens"] == 12 and prompt["equal_answers"] == 0


def test_a_server_that_differs_from_itself(stand, few):
    drifts = iter(range(100))

    def drift(choice):
        by = 0.01 * next(drifts)
        choice["logprobs"]["token_logprobs"] = [x - by for x in choice["logprobs"]["token_logprobs"]]

    stand.change = of_completions(drift)
    repeats = report(stand.here, *few, "--mean-limit", 9)["repeats"]
    assert repeats["equal_answers"] == 3
    assert repeats["answer_logprobs"]["mean"] == pytest.approx(0.01, abs=1e-5)


def test_another_chat_template_is_noticed(stand, few):
    def reverse(path, request, reply):
        if path == "/tokenize" and "messages" in request:
            reply["tokens"].reverse()
        return reply

    stand.change = reverse
    result = report(stand.here, *few)
    assert result["tokenizers"] == {"asked": 2, "differing": ["line 1"]}


def test_echo_stands_in_for_prompt_logprobs(stand, few):
    def without(path, request, reply):
        if path == "/v1/completions":
            reply["choices"][0].pop("prompt_logprobs")
        return reply

    stand.change = without
    result = report(stand.here, *few)
    assert result["prompt_logprobs_from"] == "echo with logprobs"
    count = compared_prompt_tokens(result)
    assert result["all"]["prompt_logprobs"] == {"mean": 0, "p99": 0, "max": 0, "count": count}


def test_a_server_with_tokens_alone(stand, few):
    """No prompt_logprobs, no echo, no log-probabilities, no /tokenize, no response_format."""

    def refuse(path, request):
        if path in ("/tokenize", "/metrics"):
            return 404, b"{}"
        for field in ("prompt_logprobs", "echo", "response_format"):
            if field in request:
                return 400, json.dumps({"error": {"message": f"{field} is not known"}}).encode()
        return None

    stand.refuse = refuse
    stand.change = of_completions(lambda choice: choice.pop("logprobs"))
    result = report(stand.here, *few, agrees=False)
    assert result["verdict"] == "unknown" and "only greedy tokens" in result["why"]
    assert result["all"]["equal_tokens"] == result["all"]["tokens"] == 36
    assert result["prompt_logprobs_from"] == "" and result["tokenizers"]["asked"] == 0
    assert result["structured"] == {"refusal": "response_format is not known"}


def sglang(path, request, ask):
    """The answers of SGLang's own endpoint, made from completions."""
    sampling = request["sampling_params"]
    completion = {"model": "tiny-r1", "prompt": request["input_ids"], "temperature": 0, "logprobs": 10,
                  "max_tokens": sampling["max_new_tokens"], "prompt_logprobs": 10, "return_token_ids": True,
                  "return_tokens_as_token_ids": True, "repetition_penalty": 1}
    if "json_schema" in sampling:
        schema = {"name": "a", "schema": json.loads(sampling["json_schema"])}
        completion["response_format"] = {"type": "json_schema", "json_schema": schema}
    status, reply = ask("/v1/completions", json.dumps(completion).encode())
    assert status == 200, reply
    choice = json.loads(reply)["choices"][0]
    prompt = [(name, top) for name, top in zip(map(str, request["input_ids"]), choice["prompt_logprobs"])]
    meta = {
        "output_token_logprobs": [[x, id, None] for x, id in zip(choice["logprobs"]["token_logprobs"], choice["token_ids"])],
        "output_top_logprobs": [[[x, int(name.removeprefix("token_id:")), None] for name, x in top.items()]
                                for top in choice["logprobs"]["top_logprobs"]],
        "input_token_logprobs": [[top and top[name]["logprob"], int(name), None] for name, top in prompt],
        "input_top_logprobs": [top and [[entry["logprob"], int(id), None] for id, entry in top.items()] for _, top in prompt],
    }
    return 200, json.dumps({"text": choice["text"], "output_ids": choice["token_ids"], "meta_info": meta}).encode()


def test_sglang_is_asked_its_own_way(stand, few):
    stand.refuse = lambda path, request: sglang(path, request, stand.ask) if path == "/generate" else None
    stand.change = lambda path, request, reply: (
        reply["data"][0].update(owned_by="sglang") or reply if path == "/v1/models" else reply)
    result = report(stand.here, *few)
    assert (result["server_owner"], result["prompt_logprobs_from"]) == ("sglang", "SGLang's /generate")
    prompts = result["all"]["prompt_logprobs"]
    assert prompts["count"] == compared_prompt_tokens(result) > 30 and prompts["max"] == 0
    assert result["all"]["answer_logprobs"]["max"] == 0 and result["structured"]["their_json"]
    assert "/v1/completions" not in stand.paths and "/generate" in stand.paths


def test_speculation_is_counted_on_both_sides(stand, tmp_path):
    path = tmp_path / "repeats.jsonl"
    path.write_text(json.dumps({"prompt": "one two three four one two three four one two three four"}))
    counts = iter([(10, 40, 10), (20, 80, 25)])

    def metrics(path, request):
        if path != "/metrics":
            return None
        names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
        lines = [f'vllm:spec_decode_{name}_total{{engine="0"}} {n}' for name, n in zip(names, next(counts))]
        return 200, "\n".join(lines).encode()

    stand.refuse = metrics
    config = '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2, "prompt_lookup_min": 1}'
    result = report(stand.here, "--prompts", path, "--max-tokens", 40, "--loads", 0, "--speculative-config", config)
    theirs = result["speculation"]["theirs"]
    assert (theirs["accepted_share"], theirs["tokens_per_decode"]) == (15 / 40, 2.5)
    ours = result["speculation"]["ours"]
    assert ours["decodes"] > 0 and 0 <= ours["accepted"] <= ours["proposed"]
    assert result["all"]["answer_logprobs"]["max"] == 0


@pytest.mark.parametrize("reply, sentence", [
    (b"", "no JSON"),
    (b"<html>\x1b[31mBad gateway</html>", "no JSON"),
    (b"[" * 100_000, "no JSON"),
    (b'{"choices": []}', "no choices"),
    (b'{"choices": [{"token_ids": [999999]}]}', "none of the model's 4096"),
    (b'{"choices": [{"logprobs": {"tokens": ["a"]}}]}', "which tokens it generated"),
    (json.dumps({"choices": [{"token_ids": [1] * 13, "prompt_logprobs": None}]}).encode(), "13 tokens, and was asked for 12"),
    (b" " * (65 << 20), "more than 67108864 bytes"),
])
def test_rubbish_is_named(stand, few, reply, sentence):
    stand.refuse = lambda path, request: (200, reply) if path == "/v1/completions" else None
    error = refused(stand.here, *few)
    assert sentence in error and "prompt line 1" in error and "\x1b" not in error


def test_what_fails_is_said(stand, few):
    stand.refuse = lambda path, request: (500, b'{"error": {"message": "out of pages"}}')
    assert "HTTP 500: out of pages" in refused(stand.here, *few)
    stand.refuse = lambda path, request: (429, b'{"error": {"message": "too many"}}') if path != "/v1/models" else None
    assert "HTTP 429: too many" in refused(stand.here, *few)
    stand.refuse = lambda path, request: (503, b"no") if request.get("stream") else None
    assert "no request of the load of 2 was answered: HTTP 503: no" in refused(stand.here, *few[:-1], 2)
    assert "--server: GET /v1/models: cannot connect" in refused("http://127.0.0.1:1", *few)
    assert "--against: GET /v1/models: cannot connect" in refused(stand.here, *few, "--against", "http://127.0.0.1:1")
    assert "must begin with http://" in refused("https://127.0.0.1:1", *few)


@pytest.mark.parametrize("drips", [False, True])
def test_a_server_that_hangs_is_left(stand, few, drips):
    def hang(path, request):
        if path != "/v1/completions":
            return None
        if drips:
            stand.piece, stand.pause_s = 10, 0.05
        else:
            time.sleep(4)
        return 200, b" " * 1000

    stand.refuse = hang
    began = time.monotonic()
    error = refused(stand.here, *few, "--timeout", 1)
    assert "no complete answer within 1 s (--timeout)" in error and time.monotonic() - began < 30


def test_prompts_that_are_none(server, tmp_path):
    path = tmp_path / "prompts.jsonl"
    for line, sentence in (('{"text": "no"}', "line 2: it has neither"), ('{"prompt": [5000]}', "no token of the model"),
                           ("{", "not a JSON object"), (json.dumps({"prompt": [7] * 4090}), "more than the model's 4096"),
                           ('{"prompt": []}', "its prompt has no token")):
        path.write_text(json.dumps(TEXT) + "\n" + line + "\n")
        assert sentence in refused(server.url, "--prompts", path, "--loads", 0), line
