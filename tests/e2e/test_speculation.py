"""Speculation over HTTP: answers are those of a server without it, bit by bit, and metrics say how many drafts stood."""

import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from conftest import BINARY, MODEL, serving

CONFIG = '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 4}'


@pytest.fixture(scope="module")
def drafting():
    with serving("--speculative-config", CONFIG) as server:
        yield server


@pytest.fixture(scope="module")
def plain():
    with serving("--speculative-config", CONFIG, "--no-speculation") as server:
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
        {"temperature": 0, "max_tokens": 7},
    )
]


def counted(server, name):
    text = requests.get(f"{server.url}/metrics", timeout=10).text
    return sum(float(value) for value in re.findall(rf"^vllm:spec_decode_{name}_total{{.*}} (.*)$", text, re.M))


def test_answers_are_those_without(drafting, plain):
    with ThreadPoolExecutor(16) as pool:
        for with_drafts, without in zip(pool.map(lambda b: ask(drafting, b), BODIES), pool.map(lambda b: ask(plain, b), BODIES)):
            assert with_drafts == without
    drafts, tokens, accepted = (counted(drafting, f"num_{what}") for what in ("drafts", "draft_tokens", "accepted_tokens"))
    assert 0 < accepted < tokens <= 3 * drafts
    assert counted(drafting, "num_accepted_tokens_per_pos") == accepted
    assert counted(plain, "num_drafts") == 0


@pytest.mark.parametrize(
    "config, sentence",
    [
        ("ngram", "is not a JSON object"),
        ('{"num_speculative_tokens": 2}', "method is missing"),
        ('{"method": "eagle", "num_speculative_tokens": 2}', 'fathom has "ngram"'),
        ('{"method": "ngram"}', "num_speculative_tokens is 0: it must be between 1 and 15"),
        ('{"method": "ngram", "num_speculative_tokens": "2"}', "must be a whole number"),
        ('{"method": "ngram", "num_speculative_tokens": 2, "model": "x"}', "model is not known"),
        ('{"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 33}', "must be between 1 and 32"),
    ],
)
def test_what_cannot_be_is_refused(config, sentence):
    done = subprocess.run([BINARY, "generate", MODEL, "hi", "--speculative-config", config], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and sentence in done.stderr, done.stderr
