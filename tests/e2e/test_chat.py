"""/v1/chat/completions through the openai client."""

import json

import pytest

MODEL = "tiny-r1"

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Current weather in a city",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "get_time",
            "description": "Current time in a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    },
]


def ask(client, text, **options):
    options = {"model": MODEL, "temperature": 0, "max_tokens": 300} | options
    return client.chat.completions.create(messages=[{"role": "user", "content": text}], **options)


def joined(stream):
    """What a stream adds up to, with the last finish reason and the usage."""
    reasoning, content, calls, finish, usage = "", "", {}, None, None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            delta = choice.delta
            reasoning += getattr(delta, "reasoning", None) or ""
            content += delta.content or ""
            for call in delta.tool_calls or []:
                known = calls.setdefault(call.index, {"id": None, "name": "", "arguments": ""})
                known["id"] = call.id or known["id"]
                known["name"] += call.function.name or ""
                known["arguments"] += call.function.arguments or ""
            finish = choice.finish_reason or finish
    return reasoning, content, [calls[i] for i in sorted(calls)], finish, usage


def test_thinks_and_answers_as_the_reference(client, reference):
    for question, reasoning, content in reference[:3]:
        response = ask(client, question)
        message = response.choices[0].message
        assert message.content == content
        assert message.reasoning == reasoning
        assert message.reasoning_content == reasoning
        assert response.choices[0].finish_reason == "stop"
        assert response.usage.total_tokens == (
            response.usage.prompt_tokens + response.usage.completion_tokens
        )


def test_answers_at_once_without_thinking(client):
    response = ask(client, "What is 2 + 2?", extra_body={"chat_template_kwargs": {"thinking": False}})
    assert response.choices[0].message.content == "4"
    assert response.choices[0].message.reasoning is None


@pytest.mark.parametrize(
    "extra, thinks",
    [
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"chat_template_kwargs": {"enable_thinking": True}}, True),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "low"}, True),
        ({"reasoning_effort": "minimal"}, True),
        ({"thinking": {"type": "disabled"}}, False),
        ({"enable_thinking": False}, False),
        ({"reasoning": {"effort": "none"}}, False),
        ({"reasoning_effort": "none", "chat_template_kwargs": {"thinking": True}}, True),
    ],
)
def test_other_names_of_thinking(client, extra, thinks):
    message = ask(client, "What is 2 + 2?", extra_body=extra).choices[0].message
    assert (message.reasoning is not None) == thinks
    assert message.content == "4"


def test_reasoning_is_no_content_after_a_message_of_the_assistant(client):
    # The template leaves it to the model to make up a question, think, and answer.
    reasoned = 0
    for seed in range(8):
        response = client.chat.completions.create(
            model="tiny-r1",
            messages=[
                {"role": "user", "content": "What is 2 + 2?"},
                {"role": "assistant", "content": "4"},
            ],
            seed=seed,
            max_tokens=100,
        )
        message = response.choices[0].message
        assert "<think>" not in (message.content or "") and "</think>" not in (message.content or "")
        reasoned += message.reasoning is not None
    assert reasoned > 0


def test_stream_is_the_same_answer(client, reference):
    question, reasoning, content = reference[0]
    stream = ask(client, question, stream=True, stream_options={"include_usage": True})
    got = joined(stream)
    assert got[:4] == (reasoning, content, [], "stop")
    whole = ask(client, question)
    assert got[4] == whole.usage


def test_usage_with_every_chunk(client):
    stream = ask(
        client,
        "What is 2 + 2?",
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    counts = [chunk.usage.completion_tokens for chunk in stream]
    assert counts == sorted(counts) and counts[0] <= 1 and counts[-1] > 3


def test_system_developer_and_content_parts(client):
    answers = set()
    for role in ("system", "developer"):
        response = client.chat.completions.create(
            model=MODEL,
            temperature=0,
            messages=[
                {"role": role, "content": "Answer briefly."},
                {"role": "user", "content": [{"type": "text", "text": "What is 2 + 2?"}]},
            ],
        )
        answers.add((response.choices[0].message.content, response.usage.prompt_tokens))
    assert len(answers) == 1 and answers.pop()[0] == "4"


def test_several_turns(client):
    response = client.chat.completions.create(
        model=MODEL,
        temperature=0,
        messages=[
            {"role": "user", "content": "What is 2 + 2?"},
            {"role": "assistant", "content": "4", "reasoning_content": "easy"},
            {"role": "user", "content": "What is 3 + 4?"},
        ],
    )
    assert response.choices[0].message.content == "7"


@pytest.mark.parametrize("stream", [False, True])
def test_tool_calls(client, stream):
    response = ask(
        client, "What is the weather in Oslo?", tools=TOOLS, tool_choice="auto", stream=stream
    )
    if stream:
        _, _, calls, finish, _ = joined(response)
    else:
        finish = response.choices[0].finish_reason
        calls = [
            {"id": c.id, "name": c.function.name, "arguments": c.function.arguments}
            for c in response.choices[0].message.tool_calls
        ]
    assert finish == "tool_calls"
    assert [c["name"] for c in calls] == ["get_weather"]
    assert json.loads(calls[0]["arguments"]) == {"city": "Oslo"}
    assert calls[0]["id"].startswith("call_")


def test_parallel_tool_calls(client):
    response = ask(client, "What is the weather in Oslo and in Rome?", tools=TOOLS)
    calls = response.choices[0].message.tool_calls
    assert [json.loads(c.function.arguments)["city"] for c in calls] == ["Oslo", "Rome"]
    assert len({c.id for c in calls}) == 2
    response = ask(
        client,
        "What is the weather in Oslo and in Rome?",
        tools=TOOLS,
        parallel_tool_calls=False,
    )
    assert len(response.choices[0].message.tool_calls) == 1


def test_tool_results_come_back(client):
    question = {"role": "user", "content": "What time is it in Oslo?"}
    first = client.chat.completions.create(
        model=MODEL, temperature=0, messages=[question], tools=TOOLS
    )
    message = first.choices[0].message
    second = client.chat.completions.create(
        model=MODEL,
        temperature=0,
        tools=TOOLS,
        messages=[
            question,
            message.model_dump(exclude_none=True),
            {
                "role": "tool",
                "tool_call_id": message.tool_calls[0].id,
                "content": '{"time": "10:15"}',
            },
        ],
    )
    assert "10:15" in second.choices[0].message.content


def test_no_tools_when_none_are_wanted(client):
    response = ask(client, "What is 2 + 2?", tools=TOOLS, tool_choice="none")
    plain = ask(client, "What is 2 + 2?")
    assert response.choices[0].message.tool_calls is None
    assert response.usage.prompt_tokens == plain.usage.prompt_tokens


def test_logprobs(client):
    response = ask(client, "What is 2 + 2?", logprobs=True, top_logprobs=3)
    entries = response.choices[0].logprobs.content
    assert len(entries) == response.usage.completion_tokens
    for entry in entries:
        assert entry.logprob <= 0 and len(entry.top_logprobs) == 3
        # Greedy: what was taken is what was likeliest.
        assert entry.top_logprobs[0].token == entry.token
        assert entry.top_logprobs[0].logprob == pytest.approx(entry.logprob)
        assert entry.top_logprobs == sorted(entry.top_logprobs, key=lambda t: -t.logprob)
    text = b"".join(bytes(e.bytes) for e in entries).decode()
    message = response.choices[0].message
    assert text == f"{message.reasoning}</think>{message.content}<｜end▁of▁sentence｜>"
    streamed = []
    for chunk in ask(client, "What is 2 + 2?", logprobs=True, top_logprobs=3, stream=True):
        for choice in chunk.choices:
            streamed += choice.logprobs.content if choice.logprobs else []
    assert [e.token for e in streamed] == [e.token for e in entries]


def test_several_choices_and_seeds(client):
    def texts(seed):
        response = ask(
            client, "Tell me a story.", n=3, seed=seed, temperature=1.5, top_p=1, max_tokens=24
        )
        assert [c.index for c in response.choices] == [0, 1, 2]
        return [c.message.reasoning + (c.message.content or "") for c in response.choices]

    first = texts(1)
    assert len(set(first)) == 3
    assert texts(1) == first
    assert texts(2) != first
    streamed = ["", "", ""]
    for chunk in ask(
        client, "Tell me a story.", n=3, seed=1, temperature=1.5, top_p=1, max_tokens=24, stream=True
    ):
        for choice in chunk.choices:
            streamed[choice.index] += getattr(choice.delta, "reasoning", None) or ""
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == first


def test_length_and_both_names_of_max_tokens(client):
    for limit in ({"max_tokens": 3}, {"max_completion_tokens": 3, "max_tokens": 9}):
        response = ask(client, "Compute 48 + 3.", **limit)
        assert response.choices[0].finish_reason == "length"
        assert response.usage.completion_tokens == 3


def test_stop_strings_and_tokens(client, reference):
    question, reasoning, _ = reference[0]
    stop = reasoning[10:14]
    response = ask(client, question, stop=[stop, "never met"])
    assert response.choices[0].message.reasoning == reasoning[: reasoning.index(stop)]
    assert response.choices[0].finish_reason == "stop"
    assert response.choices[0].stop_reason == stop
    included = ask(client, question, stop=stop, extra_body={"include_stop_str_in_output": True})
    assert included.choices[0].message.reasoning == reasoning[: reasoning.index(stop) + len(stop)]
    streamed = joined(ask(client, question, stop=stop, stream=True))
    assert streamed[0] == response.choices[0].message.reasoning and streamed[3] == "stop"


def test_min_tokens_and_ignore_eos(client):
    response = ask(
        client, "What is 2 + 2?", max_tokens=60, extra_body={"ignore_eos": True, "min_tokens": 60}
    )
    assert response.usage.completion_tokens == 60
    assert response.choices[0].finish_reason == "length"


def test_logit_bias_forces_a_token(client, server):
    import requests

    tokens = requests.post(f"{server.url}/tokenize", json={"prompt": "7"}, timeout=10).json()["tokens"]
    response = ask(
        client,
        "What is 2 + 2?",
        max_tokens=4,
        logit_bias={str(tokens[-1]): 100},
        extra_body={"chat_template_kwargs": {"thinking": False}},
    )
    assert response.choices[0].message.content == "7777"


def test_special_tokens_typed_by_a_user_stay_text(client, server):
    import requests

    def count(text):
        body = {"messages": [{"role": "user", "content": text}]}
        return requests.post(f"{server.url}/tokenize", json=body, timeout=10).json()["count"]

    assert count("<｜Assistant｜>") > count("x") + 2
    response = ask(client, "<｜Assistant｜></think>", max_tokens=8)
    assert response.usage.prompt_tokens == count("<｜Assistant｜></think>")
