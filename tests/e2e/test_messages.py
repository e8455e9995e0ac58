"""Anthropic's Messages API through Anthropic's own client."""

import anthropic
import pytest
import requests

MODEL = "tiny-r1"
GREEDY = {"temperature": 0}  # which the client has no name for any more
TOOLS = [
    {
        "name": "get_weather",
        "description": "Current weather in a city",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
    {
        "name": "get_time",
        "description": "Current time in a city",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
]


def ask(claude, text, **options):
    options = {"model": MODEL, "max_tokens": 300, "extra_body": GREEDY} | options
    return claude.messages.create(messages=[{"role": "user", "content": text}], **options)


def test_answers(claude):
    message = ask(claude, "What is 2 + 2?")
    assert [(block.type, block.text) for block in message.content] == [("text", "4")]
    assert (message.stop_reason, message.stop_sequence, message.role) == ("end_turn", None, "assistant")
    assert message.id.startswith("msg_") and message.usage.output_tokens > 0


def test_thinks_when_told_to(claude, reference):
    question, reasoning, content = reference[0]
    thinking = {"type": "enabled", "budget_tokens": 1024}
    message = ask(claude, question, max_tokens=2000, thinking=thinking)
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert (message.content[0].thinking, message.content[1].text) == (reasoning, content)
    assert 0 < message.usage.output_tokens_details.thinking_tokens < message.usage.output_tokens
    off = ask(claude, question, thinking={"type": "disabled"})
    assert [block.type for block in off.content] == ["text"]


def test_stream_is_the_same_answer(claude, reference):
    options = {"model": MODEL, "max_tokens": 2000, "extra_body": GREEDY, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    with claude.messages.stream(messages=[{"role": "user", "content": reference[0][0]}], **options) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_message()
    whole = ask(claude, reference[0][0], **options)
    shown = [block.model_dump(exclude={"parsed_output"}) for block in streamed.content]
    assert shown == [block.model_dump() for block in whole.content]
    assert streamed.stop_reason == whole.stop_reason
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"


@pytest.mark.parametrize("stream", [False, True])
def test_tools(claude, stream):
    question = "What is the weather in Oslo and in Rome?"
    options = {"model": MODEL, "max_tokens": 300, "extra_body": GREEDY, "tools": TOOLS}
    messages = [{"role": "user", "content": question}]
    if stream:
        with claude.messages.stream(messages=messages, **options) as events:
            message = events.get_final_message()
    else:
        message = claude.messages.create(messages=messages, **options)
    calls = [block for block in message.content if block.type == "tool_use"]
    assert [(call.name, call.input) for call in calls] == [
        ("get_weather", {"city": "Oslo"}),
        ("get_weather", {"city": "Rome"}),
    ]
    assert message.stop_reason == "tool_use"


def test_tool_results_come_back(claude):
    question = {"role": "user", "content": "What time is it in Oslo?"}
    first = ask(claude, question["content"], tools=TOOLS)
    call = next(block for block in first.content if block.type == "tool_use")
    second = claude.messages.create(
        model=MODEL,
        max_tokens=300,
        extra_body=GREEDY,
        tools=TOOLS,
        messages=[
            question,
            {"role": "assistant", "content": [block.model_dump() for block in first.content]},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": call.id, "content": '{"time": "10:15"}'}
                ],
            },
        ],
    )
    assert "10:15" in second.content[-1].text


def test_system_stop_and_length(claude):
    plain = ask(claude, "What is 2 + 2?")
    told = ask(claude, "What is 2 + 2?", system=[{"type": "text", "text": "Answer briefly."}])
    assert told.usage.input_tokens > plain.usage.input_tokens
    story = ask(claude, "What is 991 * 4?", max_tokens=2, thinking={"type": "enabled", "budget_tokens": 1024})
    assert story.stop_reason == "max_tokens"
    stopped = ask(claude, "What is 2 + 2?", stop_sequences=["4"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "4")


def test_the_last_message_of_the_assistant_goes_on(claude):
    question = "Umar is 40 years old, works as a lawyer and lives in Hanoi. Answer in JSON."
    whole = ask(claude, question).content[0].text
    begun = whole[: whole.index(",") + 1]
    message = claude.messages.create(
        model=MODEL,
        max_tokens=100,
        extra_body=GREEDY,
        messages=[{"role": "user", "content": question}, {"role": "assistant", "content": begun}],
    )
    assert begun + message.content[0].text == whole


def test_tokens_are_counted(claude):
    messages = [{"role": "user", "content": "What is 2 + 2?"}]
    counted = claude.messages.count_tokens(model=MODEL, messages=messages)
    assert counted.input_tokens == ask(claude, "What is 2 + 2?").usage.input_tokens
    more = claude.messages.count_tokens(model=MODEL, messages=messages, tools=TOOLS, system="Hello")
    assert more.input_tokens > counted.input_tokens


@pytest.mark.parametrize(
    "named, options",
    [
        ("messages[0].content[0].type", {"messages": [{"role": "user", "content": [{"type": "image"}]}]}),
        ("tool_choice.type", {"tools": TOOLS, "tool_choice": {"type": "some"}}),
        ("tools[0].type", {"tools": [{"type": "web_search_20260209", "name": "web_search"}]}),
        ("max_tokens", {"max_tokens": 0}),
        ("temperature", {"extra_body": {"temperature": -1}}),
        ("thinking.type", {"thinking": {"type": "sometimes"}}),
        ("mcp_servers", {"extra_body": {"mcp_servers": ["x"]}}),
        ("messages[0].content", {"messages": [{"role": "user", "content": []}]}),
        ("n is not supported", {"extra_body": {"n": 2}}),
        ("stop_sequences", {"stop_sequences": [""]}),
        ("tools[0].input_schema.type", {"tools": [TOOLS[0] | {"input_schema": {"type": "array"}}]}),
        ("messages[0].content[0].tool_use_id", {"messages": [
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_0", "content": "x"}]}]}),
        # What is found wrong while it is compiled.
        ("structured_outputs.regex", {"extra_body": {"structured_outputs": {"regex": "(a"}}}),
        ("output_config.format.schema", {"extra_body": {
            "output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}}}),
    ],
)
def test_what_is_not_served_is_refused_by_name(claude, named, options):
    with pytest.raises(anthropic.BadRequestError) as caught:
        asked = {"model": MODEL, "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
        claude.messages.create(**(asked | options))
    assert caught.value.body["type"] == "error"
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    assert named in str(caught.value)


def test_another_model_is_not_found(claude):
    with pytest.raises(anthropic.NotFoundError):
        ask(claude, "x", model="claude")


def test_what_claude_code_sends(server):
    """The shape of its requests: system in parts with cache_control, metadata, tools, betas."""
    body = {
        "model": MODEL,
        "max_tokens": 32000,
        "stream": True,
        "metadata": {"user_id": "user_0_account_0_session_0"},
        "system": [
            {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        ],
        "tools": [TOOLS[0] | {"cache_control": {"type": "ephemeral"}}],
        "thinking": {"type": "enabled", "budget_tokens": 31999},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "<system-reminder>none</system-reminder>"},
                    {"type": "text", "text": "What is 2 + 2?", "cache_control": {"type": "ephemeral"}},
                ],
            }
        ],
    }
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "interleaved-thinking-2025-05-14", "x-api-key": "k"}
    answer = requests.post(f"{server.url}/v1/messages?beta=true", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.text.rstrip().endswith('data: {"type":"message_stop"}')


def test_fields_of_a_chat_do_what_they_do_there(claude):
    held = ask(claude, "What is 2 + 2?", extra_body={"structured_outputs": {"choice": ["seven"]}})
    assert held.content[0].text == "seven"
    cut = ask(claude, "What is 2 + 2?", max_tokens=1, extra_body={"truncate_prompt_tokens": 3})
    assert cut.usage.input_tokens == 3
