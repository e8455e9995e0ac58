"""OpenAI's Responses API through OpenAI's own client."""

import json

import openai
import pytest
import requests
from conftest import serving

MODEL = "tiny-r1"
TOOLS = [
    {
        "type": "function",
        "name": name,
        "description": f"Current {what} in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    }
    for name, what in (("get_weather", "weather"), ("get_time", "time"))
]


def ask(client, text, **options):
    options = {"model": MODEL, "temperature": 0, "max_output_tokens": 300} | options
    return client.responses.create(input=text, **options)


def test_thinks_and_answers(client, reference):
    question, reasoning, content = reference[0]
    response = ask(client, question)
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert response.output[0].content[0].text == reasoning
    assert response.output_text == content
    assert (response.status, response.error, response.incomplete_details) == ("completed", None, None)
    usage = response.usage
    assert 0 < usage.output_tokens_details.reasoning_tokens < usage.output_tokens
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    at_once = ask(client, question, reasoning={"effort": "none"})
    assert [item.type for item in at_once.output] == ["message"]


def test_stream_is_the_same_answer(client, reference):
    with client.responses.stream(model=MODEL, input=reference[0][0], temperature=0) as stream:
        events = list(stream)
        streamed = stream.get_final_response()
    whole = ask(client, reference[0][0])
    assert streamed.output_text == whole.output_text
    assert [item.type for item in streamed.output] == [item.type for item in whole.output]
    assert streamed.usage == whole.usage
    assert [event.sequence_number for event in events if hasattr(event, "sequence_number")] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    for opened, closed in (
        ("response.output_item.added", "response.output_item.done"),
        ("response.content_part.added", "response.content_part.done"),
    ):
        assert kinds.count(opened) == kinds.count(closed) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_tools_and_their_results(client, stream):
    question = {"role": "user", "content": "What time is it in Oslo?"}
    if stream:
        with client.responses.stream(model=MODEL, input=[question], temperature=0, tools=TOOLS) as events:
            first = events.get_final_response()
    else:
        first = ask(client, [question], tools=TOOLS)
    call = next(item for item in first.output if item.type == "function_call")
    assert (call.name, json.loads(call.arguments)) == ("get_time", {"city": "Oslo"})
    output = {"type": "function_call_output", "call_id": call.call_id, "output": '{"time": "10:15"}'}
    # The conversation once by its id, once sent again.
    second = ask(client, [output], previous_response_id=first.id, tools=TOOLS)
    items = [item.model_dump(exclude_none=True) for item in first.output]
    again = ask(client, [question, *items, output], tools=TOOLS)
    assert "10:15" in second.output_text and second.output_text == again.output_text
    assert second.usage.input_tokens == again.usage.input_tokens
    assert second.previous_response_id == first.id


def test_instructions_do_not_go_on(client):
    plain = ask(client, "What is 2 + 2?")
    told = ask(client, "What is 2 + 2?", instructions="Answer briefly.")
    assert told.usage.input_tokens > plain.usage.input_tokens
    assert told.instructions == "Answer briefly."
    after_plain = ask(client, "What is 3 + 4?", previous_response_id=plain.id)
    after_told = ask(client, "What is 3 + 4?", previous_response_id=told.id)
    assert after_plain.usage.input_tokens == after_told.usage.input_tokens
    assert after_plain.output_text == "7"


def test_a_short_answer_to_a_long_conversation_is_read(client):
    """It was refused for the memory that the stored messages take: the limit was that of its own body."""
    turns = [{"role": role, "content": "x"} for _ in range(600) for role in ("user", "assistant")]
    first = ask(client, turns + [{"role": "user", "content": "And?"}], max_output_tokens=1)
    assert ask(client, "And?", previous_response_id=first.id, max_output_tokens=1).usage.input_tokens > 1200


def test_stored_responses(client):
    response = ask(client, "What is 2 + 2?")
    assert client.responses.retrieve(response.id) == response
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "x", previous_response_id=response.id)
    assert caught.value.code == "previous_response_not_found"
    kept = ask(client, "What is 2 + 2?", store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(kept.id)


def test_the_store_is_bounded():
    with serving("--max-stored-responses", "2") as server:
        client = server.client()
        ids = [ask(client, "What is 2 + 2?").id for _ in range(3)]
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(ids[0])
        assert [client.responses.retrieve(i).id for i in ids[1:]] == ids[1:]


def test_responses_are_their_keys_alone(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("anna sk-a\nben sk-b\n")
    with serving("--api-key-file", keys, "--max-stored-responses", "4") as server:
        anna, ben = server.client(api_key="sk-a"), server.client(api_key="sk-b")
        response = ask(anna, "What is 2 + 2?")
        for use in (ben.responses.retrieve, ben.responses.delete, ben.responses.cancel):
            with pytest.raises(openai.NotFoundError):
                use(response.id)
        with pytest.raises(openai.BadRequestError) as caught:
            ask(ben, "x", previous_response_id=response.id)
        assert caught.value.code == "previous_response_not_found"
        for _ in range(6):
            ask(ben, "What is 2 + 2?", max_output_tokens=1)
        assert anna.responses.retrieve(response.id) == response
        assert ask(anna, "And 3?", previous_response_id=response.id, max_output_tokens=1).id
        anna.responses.delete(response.id)
        with pytest.raises(openai.NotFoundError):
            anna.responses.retrieve(response.id)


def test_cancel_ends_what_is_being_written(server, client):
    stream = client.responses.create(
        model=MODEL, input="x", stream=True, extra_body={"ignore_eos": True, "max_output_tokens": 4000}
    )
    first = next(iter(stream))
    running = first.response.id
    assert client.responses.retrieve(running).status == "in_progress"
    assert client.responses.cancel(running).status == "cancelled"
    last = list(stream)[-1]
    assert last.response.status == "cancelled"
    assert client.responses.retrieve(running).status == "cancelled"


def test_length(client):
    response = ask(client, "What is 991 * 4?", max_output_tokens=3)
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"


@pytest.mark.parametrize(
    "named, options",
    [
        ("background", {"background": True}),
        ("text.format.type", {"text": {"format": {"type": "xml"}}}),
        ("tools[0].type", {"tools": [{"type": "web_search"}]}),
        ("tool_choice", {"tools": TOOLS, "tool_choice": {"type": "function", "name": "nothing"}}),
        ("input[0].content[0].type", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
        ("max_output_tokens", {"max_output_tokens": 0}),
        ("reasoning.effort", {"reasoning": {"effort": "much"}}),
        ("input", {"input": []}),
        ("input", {"input": "x " * 9000}),
        ("input[0].call_id", {"input": [{"type": "function_call_output", "call_id": "call_0", "output": "x"}]}),
        ("metadata.a", {"metadata": {"a": 1}}),
        ("n", {"extra_body": {"n": 2}}),
        ("max_tokens", {"extra_body": {"max_tokens": 5}}),
        ("structured_outputs.regex", {"extra_body": {"structured_outputs": {"regex": "(a"}}}),
    ],
)
def test_what_is_not_served_is_refused_by_name(client, named, options):
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**({"model": MODEL, "input": "x"} | options))
    assert caught.value.param == named


def test_what_codex_sends(server):
    body = {
        "model": MODEL,
        "instructions": "You are an agent.",
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Rules."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What is 2 + 2?"}]},
        ],
        "tools": [TOOLS[0] | {"strict": False}],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "session",
        # Not Codex's: what the model draws may be a call whose arguments are cut off, which is refused when it comes back.
        "temperature": 0,
    }
    answer = requests.post(f"{server.url}/v1/responses", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    events = [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: ")]
    assert events[-1]["type"] == "response.completed"
    replayed = body | {"input": body["input"] + events[-1]["response"]["output"]}
    assert requests.post(f"{server.url}/v1/responses", json=replayed, timeout=60).status_code == 200


def test_a_conversation_goes_on_for_several_turns(client):
    """What is stored of each turn is what would be sent again."""
    items, previous = [], None
    for question in ("What is 2 + 2?", "What is 3 + 4?", "What is 12 + 30?"):
        items.append({"role": "user", "content": question})
        by_id = ask(client, question, **({"previous_response_id": previous} if previous else {}))
        sent_again = ask(client, items, store=False)
        assert by_id.output_text == sent_again.output_text
        assert by_id.usage.input_tokens == sent_again.usage.input_tokens
        items += [item.model_dump(exclude_none=True) for item in by_id.output]
        previous = by_id.id


def test_fields_of_a_chat_do_what_they_do_there(client):
    held = ask(client, "What is 2 + 2?", extra_body={"structured_outputs": {"choice": ["seven"]}})
    assert held.output_text == "seven"
    cut = ask(client, "What is 2 + 2?", extra_body={"truncate_prompt_tokens": 3, "max_output_tokens": 1})
    assert cut.usage.input_tokens == 3


def test_some_tools_are_allowed(client):
    names = [tool["name"] for tool in TOOLS]
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": names[-1]}]}
    response = ask(client, "What is 2 + 2?", tools=TOOLS, tool_choice=allowed)
    assert {item.name for item in response.output if item.type == "function_call"} == {names[-1]}
