"""Speculation over HTTP: answers are those of a server without it, bit by bit, and metrics say how many drafts stood."""

import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from conftest import BINARY, MODEL, serving

MTP = '{"method": "mtp", "num_speculative_tokens": 2}'
CONFIG = '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 4}'


@pytest.fixture(scope="module", params=[CONFIG, MTP], ids=["ngram", "mtp"])
def drafting(request):
    with serving("--speculative-config", request.param) as server:
        yield server


@pytest.fixture(scope="module")
def plain():
    with serving("--no-speculation") as server:
        yield server


def ask(server, body):
    answer = requests.post(f"{server.url}/v1/chat/completions", json={"model": "tiny-r1"} | body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


BODIES = [
    {"messages": [{"role": "user", "content": question}], "max_tokens": 120, "logprobs": True, "top_logprobs": 2, "seed": seed} | options
    for seed, question in enumerate(["Reverse the word slipped.", "What is 12 * 34?", "Remember these codes. a is 387. b is 731. What is b?"])
    for options in (
        {"temperature": 0},
        {"temperature": 1},
        {"temperature": 0.7, "top_p": 0.9, "frequency_penalty": 0.5, "presence_penalty": 0.3},
        {"temperature": 0, "stop": ["8"]},
        {"temperature": 1, "min_tokens": 40, "n": 2},
        {"temperature": 1, "logprob_token_ids": [20, 4000, 5]},
        {"temperature": 0, "max_tokens": 7},
    )
]


def counted(server, name, label=""):
    text = requests.get(f"{server.url}/metrics", timeout=10).text
    return sum(float(value) for value in re.findall(rf"^vllm:spec_decode_{name}_total{{.*{label}.*}} (.*)$", text, re.M))


def test_answers_are_those_without(drafting, plain):
    with ThreadPoolExecutor(16) as pool:
        for with_drafts, without in zip(pool.map(lambda b: ask(drafting, b), BODIES), pool.map(lambda b: ask(plain, b), BODIES)):
            assert with_drafts == without
    drafts, tokens, accepted = (counted(drafting, f"num_{what}") for what in ("drafts", "draft_tokens", "accepted_tokens"))
    assert 0 < accepted < tokens <= 3 * drafts
    assert counted(drafting, "num_accepted_tokens_per_pos", 'position="0"') > accepted / 3
    assert counted(drafting, "num_accepted_tokens_per_pos") == accepted
    assert counted(plain, "num_drafts") == 0


SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer"}, "sure": {"enum": ["yes", "perhaps"]}},
          "required": ["answer", "sure"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "add", "strict": True, "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"], "additionalProperties": False}}}
GUIDED = [
    {"messages": [{"role": "user", "content": question}], "max_tokens": 120, "logprobs": True, "top_logprobs": 2, "seed": seed, "temperature": heat} | options
    for seed, question in enumerate(["Compute 7 + 8 and answer in JSON.", "What is 12 * 34?", "Reverse the word slipped."])
    for heat in (0, 1)
    for options in (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "sum", "schema": SCHEMA}}},
        {"response_format": {"type": "json_object"}, "chat_template_kwargs": {"thinking": True}},
        {"structured_outputs": {"regex": "(yes|no)( and (yes|no)){3,9}"}},
        {"structured_outputs": {"choice": ["one hundred", "one thousand", "two"]}},
        {"tools": [TOOL], "tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": "auto"},
        {"bad_words": ["=", " 3"]},
    )
]


def test_guided_answers_are_those_without(drafting, plain):
    """A draft's own mask says what may follow it: that of the token before would let other tokens stand."""
    before = counted(drafting, "num_accepted_tokens")
    with ThreadPoolExecutor(16) as pool:
        for body, with_drafts, without in zip(GUIDED, pool.map(lambda b: ask(drafting, b), GUIDED), pool.map(lambda b: ask(plain, b), GUIDED)):
            assert comparable(with_drafts) == comparable(without), body
    assert counted(drafting, "num_accepted_tokens") > before + 100
    for body in GUIDED[:5]:
        assert comparable(ask(drafting, body)) == comparable(ask(plain, body)), body


def comparable(choices):
    """All but the ids of calls, which are drawn anew."""
    return re.sub(r"call_\w+|chatcmpl-tool-\w+", "", str(choices))


@pytest.mark.parametrize(
    "config, sentence",
    [
        ("ngram", "is not a JSON object"),
        ('{"num_speculative_tokens": 2}', "method is missing"),
        ('{"method": "eagle", "num_speculative_tokens": 2}', 'fathom has "mtp" and "ngram"'),
        ('{"method": "mtp", "num_speculative_tokens": 2, "prompt_lookup_max": 3}', 'are for method "ngram"'),
        ('{"method": "ngram", "num_speculative_tokens": 0}', "num_speculative_tokens is 0: it must be between 1 and 15"),
        ('{"method": "ngram", "num_speculative_tokens": "2"}', "must be a whole number"),
        ('{"method": "ngram", "num_speculative_tokens": 2, "model": "x"}', "model is not known"),
        ('{"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 33}', "must be between 1 and 32"),
    ],
)
def test_what_cannot_be_is_refused(config, sentence):
    done = subprocess.run([BINARY, "generate", MODEL, "hi", "--speculative-config", config], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and sentence in done.stderr, done.stderr


def test_the_models_own_drafts_are_mostly_right():
    """tiny-r1's draft layer learnt what the model says on such questions; what it is wrong about is counted too."""
    with serving("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 1}') as server:
        for question in ("What is 12 * 34?", "Reverse the word slipped.", "What is 77 + 88?"):
            ask(server, {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 200})
        assert counted(server, "num_accepted_tokens") > 0.9 * counted(server, "num_draft_tokens") > 0


@pytest.mark.parametrize("layout", ["-pp 2", "-tp 2", "-dp 2 -ep", "-tp 2 -pp 2"])
def test_drafts_on_several_ranks(layout):
    """The rank that proposes tells those that do not."""
    def answer(*flags):
        prompt = ("What is 12 * 34?", "--temperature", "0", "--max-tokens", "120")
        return subprocess.run([BINARY, "generate", MODEL, *prompt, *flags], capture_output=True, text=True, timeout=120, check=True).stdout

    assert answer("--speculative-config", MTP, *layout.split()) == answer("--no-speculation")
