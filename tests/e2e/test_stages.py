"""Pipeline stages, each at work on other requests: nothing of that shows in any answer."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from conftest import ROOT, serving

QUESTIONS = [q["question"] for q in json.loads((ROOT / "tests" / "golden" / "tiny-r1" / "questions.json").read_text())]
REQUESTS = 48
SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"], "additionalProperties": False}
KINDS = (
    {"temperature": 0},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "sum", "schema": SCHEMA}}},
    {"min_tokens": 30, "presence_penalty": 0.7},
    {"n": 2},
    {"stop": ["77"], "temperature": 2, "messages": [{"role": "user", "content": "Whatever comes to your mind."}]},
)


def body(number):
    """A request of some kind; every sixth has a prompt of several chunks."""
    question = QUESTIONS[number] * (12 if number % 6 == 0 else 1)
    return {"messages": [{"role": "user", "content": question}], "seed": number, "temperature": 0.8, "max_tokens": 90,
            "logprobs": True, "top_logprobs": 2} | KINDS[number % len(KINDS)]


def ask(server, number, **options):
    answer = requests.post(f"{server.url}/v1/chat/completions", json=body(number) | options, timeout=120)
    assert answer.status_code == 200, answer.text
    return [(c["message"], c["logprobs"], c["finish_reason"]) for c in answer.json()["choices"]]


def answers(server):
    with ThreadPoolExecutor(24) as pool:
        return list(pool.map(lambda number: ask(server, number), range(REQUESTS)))


@pytest.fixture(scope="module")
def expected():
    with serving("--max-num-seqs", "16", "--prefill-chunk", "64") as server:
        yield answers(server)


@pytest.mark.parametrize("flags", [["-pp", "2"], ["-pp", "3", "--no-speculation"], ["-pp", "2", "-dp", "2", "-ep"]], ids=" ".join)
def test_answers_are_those_of_one_stage(flags, expected):
    with serving("--max-num-seqs", "16", "--prefill-chunk", "64", *flags) as server:
        assert answers(server) == expected
        assert [ask(server, number) for number in range(5)] == expected[:5], "alone, with steps that move others on"
        assert server.stop() == 0


def test_other_seeds_say_something_else(expected):
    """The canary: the comparison above would see it."""
    with serving("-pp", "2") as server:
        assert [ask(server, number, seed=number + 999) for number in range(5)] != expected[:5]
