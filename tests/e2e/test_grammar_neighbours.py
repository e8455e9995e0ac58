"""Rows with a grammar and rows without one share steps: neither changes a bit of the other."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from conftest import serving

QUESTIONS = ["What is 2 + 2?", "Name three colours.", "What is 17 times 3?", "Write a poem about the sea."]
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "pattern": "^[^a]{3,40}$"},
                                           "sums": {"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 9}},
          "required": ["name", "sums"], "additionalProperties": False}  # fmt: skip
GRAMMARS = [
    {"guided_json": SCHEMA},
    {"response_format": {"type": "json_object"}},
    {"guided_regex": "([a-z]{1,9} ){4,30}"},
    {"guided_grammar": 'root ::= "(" root ")" | [0-9]{1,9} | root "+" root'},
    {"guided_choice": ["four", "five"]},
    {"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}]},
]


def bodies(fields):
    """Greedy and sampled, with all that there is of log-probabilities."""
    for i, question in enumerate(QUESTIONS):
        yield {"model": "tiny-r1", "messages": [{"role": "user", "content": question}], "max_tokens": 80, "seed": i,
               "temperature": (0, 1)[i % 2], "logprobs": True, "top_logprobs": 20,
               "chat_template_kwargs": {"thinking": False}} | fields  # fmt: skip


def ask(server, body):
    answer = requests.post(f"{server.url}/v1/chat/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    for call in choice["message"].get("tool_calls") or []:
        call["id"] = ""  # it is drawn anew each time
    return choice


@pytest.mark.parametrize("flags", [("--no-speculation",), ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}')])
def test_rows_beside_grammars_keep_their_bits(flags):
    free = list(bodies({}))
    held = [body for grammar in GRAMMARS for body in bodies(grammar)]
    with serving("--no-enable-prefix-caching", *flags) as server:
        alone = [ask(server, body) for body in free + held]
        with ThreadPoolExecutor(len(free + held)) as pool:
            together = list(pool.map(lambda body: ask(server, body), free + held))
        assert server.metric("vllm:num_requests_running") == 0
        assert server.stop() == 0
    assert all(choice["logprobs"]["content"] for choice in alone[: len(free)])
    for body, one, other in zip(free + held, alone, together):
        assert one == other, body
    # What a grammar does to the rows that have it.
    assert all(one["message"] != other["message"] for one, other in zip(alone[: len(free)], alone[len(free) :]))
