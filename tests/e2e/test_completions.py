"""/v1/completions, /tokenize and /detokenize."""

import openai
import pytest
import requests

MODEL = "tiny-r1"
PROMPT = "<｜begin▁of▁sentence｜><｜User｜>What is 2 + 2?<｜Assistant｜></think>"


def complete(client, prompt, **options):
    return client.completions.create(**({"model": MODEL, "temperature": 0} | options), prompt=prompt)


def test_text_and_token_prompts_agree(client, server):
    tokens = requests.post(
        f"{server.url}/tokenize", json={"prompt": PROMPT, "return_token_strs": True}, timeout=10
    ).json()
    assert tokens["count"] == len(tokens["tokens"]) == len(tokens["token_strs"])
    assert tokens["max_model_len"] == 4096
    back = requests.post(
        f"{server.url}/detokenize", json={"tokens": tokens["tokens"]}, timeout=10
    ).json()
    assert back == {"prompt": PROMPT}
    by_text = complete(client, PROMPT)
    by_tokens = complete(client, tokens["tokens"])
    assert by_text.choices[0].text == by_tokens.choices[0].text == "4"
    assert by_text.usage == by_tokens.usage
    assert by_text.usage.prompt_tokens == tokens["count"]


def test_batches_and_choices(client):
    response = complete(client, [PROMPT, PROMPT.replace("2 + 2", "3 + 4")], n=2)
    assert [c.index for c in response.choices] == [0, 1, 2, 3]
    assert [c.text for c in response.choices] == ["4", "4", "7", "7"]
    streamed = ["", "", "", ""]
    for chunk in complete(client, [PROMPT, PROMPT.replace("2 + 2", "3 + 4")], n=2, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert streamed == ["4", "4", "7", "7"]


def test_legacy_logprobs(client):
    response = complete(client, PROMPT, logprobs=2)
    logprobs = response.choices[0].logprobs
    assert logprobs.tokens[0] == "4"
    assert logprobs.token_logprobs[0] == pytest.approx(logprobs.top_logprobs[0]["4"])
    assert len(logprobs.top_logprobs[0]) == 2
    assert logprobs.text_offset[0] == 0


@pytest.mark.parametrize("stream", [False, True])
def test_echo_scores_the_prompt(client, stream):
    text = "Once upon a time there was"
    options = {"max_tokens": 2, "echo": True, "logprobs": 1}
    if stream:
        tokens, token_logprobs, whole = [], [], ""
        for chunk in complete(client, text, stream=True, **options):
            whole += chunk.choices[0].text
            if chunk.choices[0].logprobs:
                tokens += chunk.choices[0].logprobs.tokens
                token_logprobs += chunk.choices[0].logprobs.token_logprobs
    else:
        choice = complete(client, text, **options).choices[0]
        tokens, token_logprobs, whole = (
            choice.logprobs.tokens,
            choice.logprobs.token_logprobs,
            choice.text,
        )
    assert whole.startswith(text) and len(whole) > len(text)
    assert "".join(tokens) == whole
    assert token_logprobs[0] is None and all(p <= 0 for p in token_logprobs[1:])


def test_a_prompt_can_be_scored_without_generating(client):
    text = "Once upon a time there was"
    scored = complete(client, text, max_tokens=0, echo=True, logprobs=0)
    assert scored.choices[0].text == text
    assert scored.usage.completion_tokens == 0
    longer = complete(client, text, max_tokens=2, echo=True, logprobs=0)
    count = len(scored.choices[0].logprobs.tokens)
    assert scored.choices[0].logprobs.token_logprobs[1:] == pytest.approx(
        longer.choices[0].logprobs.token_logprobs[1:count], abs=1e-4
    )


def test_a_prompt_that_fills_the_context_can_be_scored(client):
    prompt = [100 + i % 50 for i in range(4096)]  # the whole of max_model_len
    scored = complete(client, prompt, max_tokens=0, echo=True, logprobs=0)
    assert scored.usage.prompt_tokens == 4096 and scored.usage.completion_tokens == 0
    assert len(scored.choices[0].logprobs.token_logprobs) == 4096
    for tokens, options in ((prompt, {"max_tokens": 1}), (prompt + prompt[:1], {"max_tokens": 0})):
        with pytest.raises(openai.BadRequestError, match="maximum context length is 4096"):
            complete(client, tokens, echo=True, **options)


def test_penalties_change_the_text(client):
    plain = complete(client, "a a a a a a a a", max_tokens=16).choices[0].text
    penal = complete(
        client,
        "a a a a a a a a",
        max_tokens=16,
        presence_penalty=2,
        frequency_penalty=2,
        extra_body={"repetition_penalty": 2.0},
    )
    assert penal.choices[0].text != plain
