"""Answers that are held to a grammar, from the fields of the API to the text."""

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Literal, Optional, Union

import anthropic
import jsonschema
import openai
import pydantic
import pytest
import requests

from conftest import serving
from hostile_grammars import HOSTILE, MORE_HOSTILE, send_all
from random_schemas import ask_all

MODEL = "tiny-r1"
MESSAGES = [{"role": "user", "content": "What is 2 + 2?"}]
# Of random schemas: 300 take half a minute.
SCHEMAS = int(os.environ.get("FATHOM_SCHEMAS", "30"))


def ask(client, thinking=False, **options):
    extra = {"chat_template_kwargs": {"thinking": thinking}} | options.pop("extra_body", {})
    options = {"model": MODEL, "messages": MESSAGES, "max_tokens": 400, "seed": 1} | options
    return client.chat.completions.create(extra_body=extra, **options).choices[0]


def format_of(schema, strict=False):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": strict}}


class Step(pydantic.BaseModel):
    kind: Literal["add", "multiply"]
    operands: list[int] = pydantic.Field(max_length=3)


class Solution(pydantic.BaseModel):
    steps: list[Step] = pydantic.Field(max_length=2)
    result: int = pydantic.Field(ge=0, le=99)
    certain: bool
    remark: Optional[Literal["easy", "hard"]]


def test_parse_of_a_pydantic_model(client):
    for seed in range(3):
        completion = client.chat.completions.parse(
            model=MODEL, messages=MESSAGES, response_format=Solution, seed=seed, temperature=1,
            max_tokens=400, extra_body={"chat_template_kwargs": {"thinking": False}})  # fmt: skip
        assert isinstance(completion.choices[0].message.parsed, Solution)


class Closed(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")


class Square(Closed):
    kind: Literal["square"]
    side: int = pydantic.Field(ge=0, le=9)


class Circle(Closed):
    kind: Literal["circle"]
    radius: bool


class Shape(Closed):
    shape: Union[Square, Circle] = pydantic.Field(discriminator="kind")
    size: Union[Annotated[int, pydantic.Field(ge=0, le=9)], Annotated[str, pydantic.Field(max_length=3)]]


@pytest.mark.parametrize("strict", [False, True])
def test_a_union_of_models_told_apart_by_a_field(client, strict):
    """Pydantic's own schema has oneOf, with references to objects whose `kind` is a constant."""
    schema = Shape.model_json_schema()
    assert schema["properties"]["shape"]["oneOf"] == [{"$ref": "#/$defs/Square"}, {"$ref": "#/$defs/Circle"}]
    kinds = set()
    for seed in range(6):
        said = ask(client, seed=seed, temperature=1.5, response_format=format_of(schema, strict))
        assert said.finish_reason == "stop"
        jsonschema.Draft202012Validator(schema).validate(json.loads(said.message.content))
        kinds.add(type(Shape.model_validate_json(said.message.content).shape))
        completion = client.chat.completions.parse(
            model=MODEL, messages=MESSAGES, response_format=Shape, seed=seed, temperature=1.5,
            max_tokens=400, extra_body={"chat_template_kwargs": {"thinking": False}})  # fmt: skip
        assert isinstance(completion.choices[0].message.parsed, Shape)
    assert kinds == {Square, Circle}


def test_one_of(client):
    for schema in ({"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 3}]},
                   {"oneOf": [{"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"], "maxProperties": 1}, {"type": "null"}]},
                   {"oneOf": [{"type": "array", "items": {"enum": [1, 2]}, "maxItems": 3}, {"type": "integer"}]}):  # fmt: skip
        said = ask(client, temperature=1.5, response_format=format_of(schema)).message.content
        jsonschema.Draft202012Validator(schema).validate(json.loads(said))


def test_strict_forbids_what_is_not_named(client):
    """Where an object names no property, it has none; what says that it is open stays so."""
    bare = {"type": "object", "properties": {"a": {"type": "object"}, "b": {"type": ["object", "array"]}}, "required": ["a", "b"]}
    for seed in range(4):
        options = {"seed": seed, "temperature": 1.5}
        assert json.loads(ask(client, response_format=format_of({"type": "object"}, strict=True), **options).message.content) == {}
        said = json.loads(ask(client, response_format=format_of(bare, strict=True), **options).message.content)
        assert said in ({"a": {}, "b": {}}, {"a": {}, "b": []})
        for parameters in ({}, {"parameters": {"type": "object"}}, {"parameters": {}}):
            tool = {"type": "function", "function": {"name": "f", "strict": True} | parameters}
            (call,) = ask(client, tools=[tool], tool_choice="required", **options).message.tool_calls
            assert json.loads(call.function.arguments) == {}


def test_required_may_name_what_properties_do_not(client):
    schema = {"type": "object", "required": ["a"], "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 9}, "maxProperties": 1}
    said = json.loads(ask(client, response_format=format_of(schema)).message.content)
    assert list(said) == ["a"] and 0 <= said["a"] <= 9
    with pytest.raises(openai.BadRequestError, match="#/required: .*a.* is not among the properties"):
        ask(client, response_format=format_of(schema | {"additionalProperties": False}))


def test_the_grammar_begins_behind_the_thinking(client):
    free = ask(client, thinking=True, temperature=0).message
    assert free.reasoning
    choice = ask(client, thinking=True, temperature=0, response_format=format_of(
        {"type": "object", "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 9}},
         "required": ["sum"], "additionalProperties": False}))  # fmt: skip
    assert choice.finish_reason == "stop"
    assert choice.message.reasoning == free.reasoning
    assert list(json.loads(choice.message.content)) == ["sum"]


def test_streams_are_the_same_text(client):
    options = {"response_format": format_of(Solution.model_json_schema()), "temperature": 1}
    whole = ask(client, **options).message.content
    chunks = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=400, seed=1, stream=True,
        extra_body={"chat_template_kwargs": {"thinking": False}}, **options)  # fmt: skip
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole


@pytest.mark.parametrize(
    "fields, pattern",
    [
        ({"structured_outputs": {"regex": r"[0-9]{2,4}-[a-f]+\."}}, r"[0-9]{2,4}-[a-f]+\."),
        ({"guided_regex": r"(yes|no)!"}, r"(yes|no)!"),
        ({"guided_choice": ["four", "4.", "(4)"]}, r"four|4\.|\(4\)"),
        ({"structured_outputs": {"choice": ["4"]}}, r"4"),
        ({"guided_grammar": 'root ::= "<" [0-9] item* ">"\nitem ::= "," [0-9]'}, r"<[0-9](,[0-9])*>"),
        ({"structured_outputs": {"json": {"type": "integer", "minimum": 3, "maximum": 7}}}, r"[3-7]"),
        ({"guided_json": {"enum": ["a", "b"]}}, r'"[ab]"'),
    ],
)
def test_other_fields(client, fields, pattern):
    for seed in range(4):
        choice = ask(client, seed=seed, temperature=1, extra_body=fields)
        if choice.finish_reason == "stop":
            assert re.fullmatch(pattern, choice.message.content), choice.message.content
        else:  # a pattern may go on for ever
            assert "+" in pattern or "*" in pattern
    text = client.completions.create(model=MODEL, prompt="It is", max_tokens=200, seed=5, extra_body=fields)
    if text.choices[0].finish_reason == "stop":
        assert re.fullmatch(pattern, text.choices[0].text)


def test_json_object(client):
    choices = [ask(client, seed=seed, response_format={"type": "json_object"}) for seed in range(8)]
    ended = [choice for choice in choices if choice.finish_reason == "stop"]
    assert ended and all(isinstance(json.loads(choice.message.content), dict) for choice in ended)


def test_responses(client):
    response = client.responses.create(
        model=MODEL, input="What is 2 + 2?", max_output_tokens=400,
        text={"format": {"type": "json_schema", "name": "n", "schema": {"enum": [4, 5]}, "strict": True}},
    )  # fmt: skip
    assert json.loads(response.output_text) in (4, 5)
    assert response.text.format.type == "json_schema"


TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Of a place.", "parameters": {
        "type": "object", "properties": {"place": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["place"], "additionalProperties": False}}},
    {"type": "function", "function": {"name": "stop", "description": "No more.", "parameters": {
        "type": "object", "properties": {}, "additionalProperties": False}}},
]  # fmt: skip


@pytest.mark.parametrize("thinking", [False, True])
def test_forced_calls(client, thinking):
    for seed in range(6):
        named = {"type": "function", "function": {"name": "weather"}}
        choice = ask(client, thinking, tools=TOOLS, tool_choice=named, seed=seed, temperature=1)
        assert choice.finish_reason == "tool_calls" and not choice.message.content
        assert bool(choice.message.reasoning) == thinking
        (call,) = choice.message.tool_calls
        assert call.function.name == "weather"
        jsonschema.validate(json.loads(call.function.arguments), TOOLS[0]["function"]["parameters"])

        choice = ask(client, thinking, tools=TOOLS, tool_choice="required", parallel_tool_calls=False,
                     seed=seed, temperature=1)  # fmt: skip
        (call,) = choice.message.tool_calls
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
        jsonschema.validate(json.loads(call.function.arguments), schemas[call.function.name])


def test_a_forced_call_that_is_cut_shows_no_markers(server, client):
    """Wherever max_tokens cuts it: the name once it is whole, and the arguments so far."""
    whole = ask(client, tools=TOOLS, tool_choice="required", temperature=0, parallel_tool_calls=False).message.tool_calls[0].function
    seen = set()
    for length in range(1, 24):
        options = {"tools": TOOLS, "tool_choice": "required", "temperature": 0, "max_tokens": length, "parallel_tool_calls": False}
        cut = ask(client, **options)
        assert cut.finish_reason == "length" and not cut.message.content, cut
        calls = [(call.function.name, call.function.arguments) for call in cut.message.tool_calls or []]
        assert not calls or (calls[0][0] == whole.name and whole.arguments.startswith(calls[0][1])), calls
        seen.add(len(calls))
        chunks = list(client.chat.completions.create(model=MODEL, messages=MESSAGES, seed=1, stream=True,
                                                     extra_body={"chat_template_kwargs": {"thinking": False}}, **options))  # fmt: skip
        assert not any(chunk.choices[0].delta.content for chunk in chunks)
        deltas = [call.function for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
        assert "".join(delta.name or "" for delta in deltas) == "".join(name for name, _ in calls)
        assert "".join(delta.arguments or "" for delta in deltas) == "".join(arguments for _, arguments in calls)
    assert seen == {0, 1}


def test_what_stops_a_form_early_is_said(server, client):
    options = {"tools": TOOLS, "tool_choice": "required", "temperature": 0}
    for stop in ("{", '"', "function", "json"):
        cut = ask(client, stop=[stop], **options)
        assert cut.finish_reason in ("stop", "tool_calls") and not cut.message.content
        if cut.finish_reason == "tool_calls":  # the call has no such text
            json.loads(cut.message.tool_calls[0].function.arguments)
            assert cut.stop_reason is None
        else:
            assert cut.stop_reason == stop
    cut = ask(client, stop=["{"], **options)
    assert cut.finish_reason == "stop" and cut.message.tool_calls[0].function.arguments == ""
    (comma,) = requests.post(f"{server.url}/tokenize", json={"prompt": ":", "add_special_tokens": False}, timeout=10).json()["tokens"]
    said = ask(client, response_format={"type": "json_object"}, extra_body={"stop_token_ids": [comma]}, seed=3, temperature=1)
    assert said.finish_reason == "stop"
    claude = server.claude()
    tool = {"name": "f", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}
    cut = claude.messages.create(model=MODEL, max_tokens=100, messages=MESSAGES, tools=[tool], tool_choice={"type": "any"}, stop_sequences=["{"])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", "{")


def test_several_calls_may_be_forced(client):
    for seed in range(6):
        choice = ask(client, tools=TOOLS, tool_choice="required", seed=seed, temperature=1)
        calls = choice.message.tool_calls
        assert calls and all(call.function.name in ("weather", "stop") for call in calls)
        if choice.finish_reason != "length":
            assert all(isinstance(json.loads(call.function.arguments), dict) for call in calls)


def test_answers_that_are_json_anyway_stay_right(client):
    """tiny-r1's questions that want JSON, behind its thinking: a grammar makes none of them worse."""
    asked = json.loads((Path(__file__).parents[1] / "golden" / "tiny-r1" / "questions.json").read_text())
    asked = [question for question in asked if question["task"] == "to_json"][:: 1 if SCHEMAS > 30 else 4]

    def right(question, **options):
        messages = [{"role": "user", "content": question["question"]}]
        return ask(client, True, messages=messages, temperature=0, **options).message.content == question["answer"]

    with ThreadPoolExecutor(4) as pool:
        free = sum(pool.map(right, asked))
        held = sum(pool.map(lambda question: right(question, response_format={"type": "json_object"}), asked))
    print(f"of {len(asked)} questions {free} are right without a grammar, {held} with one")
    assert held >= free > 0.9 * len(asked)


WEATHER = {"role": "user", "content": "What is the weather in Oslo and in Rome?"}


def strict_tools(**schema):
    schema = {"type": "object", "properties": {"city": schema}, "required": ["city"], "additionalProperties": False}
    weather = {"name": "get_weather", "description": "Current weather in a city", "parameters": schema}
    return [{"type": "function", "function": weather | {"strict": True}}]


def test_strict_tools_hold_the_calls_of_a_free_answer(client):
    """The model asks for Oslo and Rome; a schema that has neither takes its place."""
    tools = strict_tools(enum=["Paris", "Vienna"])
    loose = [{"type": "function", "function": tools[0]["function"] | {"strict": False}}]
    options = {"messages": [WEATHER], "temperature": 0}

    def cities(**more):
        choice = ask(client, **options, **more)
        assert choice.finish_reason == "tool_calls"
        return [json.loads(call.function.arguments)["city"] for call in choice.message.tool_calls]

    assert cities(tools=loose) == ["Oslo", "Rome"]
    held = cities(tools=tools)
    assert held and set(held) <= {"Paris", "Vienna"}
    assert len(cities(tools=tools, parallel_tool_calls=False)) == 1
    assert len(cities(tools=loose, parallel_tool_calls=False)) == 1
    assert cities(tools=strict_tools(type="string")) == ["Oslo", "Rome"]
    # What calls nothing says what it says without them.
    plain = {"messages": [{"role": "user", "content": "What is 2 + 2?"}], "temperature": 0}
    held, free = (ask(client, tools=given, **plain) for given in (tools, loose))
    assert (held.message.content, held.finish_reason) == (free.message.content, free.finish_reason)
    thought = ask(client, thinking=True, tools=tools, **options).message  # the calls are behind it
    assert thought.reasoning and {"Paris", "Vienna"} >= {
        json.loads(call.function.arguments)["city"] for call in thought.tool_calls or []}  # fmt: skip


def test_a_strict_tool_that_cannot_be_held_is_refused(client):
    with pytest.raises(openai.BadRequestError, match="tools: get_weather: #/properties/city: .*uniqueItems") as caught:
        ask(client, tools=strict_tools(type="array", uniqueItems=True))
    assert caught.value.param == "tools"


def test_a_deep_schema_of_a_tool(client):
    schema = {"type": "string"}
    for _ in range(17):  # two levels of JSON each
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}
    function = {"name": "f", "parameters": schema, "strict": True}
    assert ask(client, tools=[{"type": "function", "function": function}]).finish_reason


def test_json_or_calls(client):
    """Tools beside a form: the model asks for Oslo and Rome, and answers another question in JSON."""
    (tool,) = strict_tools(type="string")
    loose = {"type": "function", "function": tool["function"] | {"strict": False}}
    person = [{"role": "user", "content": "Umar is 40 years old, works as a lawyer and lives in Hanoi. Answer in JSON."}]
    free = ask(client, messages=person, temperature=0).message.content
    schema = {"type": "object", "properties": {key: {"enum": [f"not {value}"]} for key, value in json.loads(free).items()},
              "required": list(json.loads(free)), "additionalProperties": False}  # fmt: skip
    for response_format in ({"type": "json_object"}, format_of(schema, strict=True)):
        for given in (tool, loose):
            options = {"response_format": response_format, "temperature": 0, "tools": [given]}
            said = ask(client, messages=person, **options)
            assert said.finish_reason == "stop" and not said.message.tool_calls
            if response_format["type"] == "json_object":
                assert said.message.content == free
            else:
                jsonschema.validate(json.loads(said.message.content), schema)
            called = ask(client, messages=[WEATHER], **options)
            assert called.finish_reason == "tool_calls" and not called.message.content
            assert [json.loads(call.function.arguments)["city"] for call in called.message.tool_calls] == ["Oslo", "Rome"]
    thought = ask(client, thinking=True, messages=person, **options).message
    assert thought.reasoning and (thought.tool_calls or json.loads(thought.content))
    forced = ask(client, tools=[tool], tool_choice="required", response_format=format_of({"type": "object"}))
    assert forced.message.tool_calls
    for unfit, named in ((format_of({"type": "object"}), "tools"),
                         (format_of({"type": "object", "properties": {"a": {"not": {}}}}, strict=True),
                          "response_format.json_schema.schema")):  # fmt: skip
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, tools=[tool], response_format=unfit)
        assert caught.value.param == named


def test_structural_tags(client):
    """vLLM's two forms, in its two fields: text, and a schema between two strings."""
    schema = {"enum": [4, 5]}
    newer = {"type": "structural_tag", "format": {"type": "sequence", "elements": [
        {"type": "const_string", "value": "So: "},
        {"type": "tag", "begin": "<n>", "content": {"type": "json_schema", "json_schema": schema}, "end": "</n>"}]}}  # fmt: skip
    older = {"type": "structural_tag", "triggers": ["<n"],
             "structures": [{"begin": "<n>", "schema": schema, "end": "</n>"}]}  # fmt: skip
    for fields in ({"response_format": newer}, {"extra_body": {"structured_outputs": {"structural_tag": json.dumps(newer)}}}):
        choice = ask(client, **fields)
        assert choice.finish_reason == "stop"
        assert re.fullmatch("So: <n>[45]</n>", choice.message.content)
    choice = ask(client, response_format=older, temperature=0)  # free text, which the model ends itself
    assert choice.message.content == ask(client, temperature=0).message.content
    with pytest.raises(openai.BadRequestError, match="format/elements"):
        ask(client, response_format={"type": "structural_tag", "format": {"type": "or", "elements": []}})


def test_messages(server):
    """Anthropic's: any tool, a named one, strict ones, and a form of the text."""
    claude = server.claude()
    weather = {"name": "get_weather", "description": "Current weather in a city", "input_schema": {
        "type": "object", "properties": {"city": {"enum": ["Paris", "Vienna"]}},
        "required": ["city"], "additionalProperties": False}}  # fmt: skip
    end = {"name": "stop", "description": "No more.", "input_schema": {"type": "object", "additionalProperties": False}}

    def blocks(question="What is the weather in Oslo?", **options):
        options = {"model": MODEL, "max_tokens": 400, "extra_body": {"seed": 1}} | options
        messages = [{"role": "user", "content": question}]
        return claude.messages.create(messages=messages, **options).content

    (call,) = blocks(tools=[weather, end], tool_choice={"type": "tool", "name": "get_weather"})
    assert call.type == "tool_use" and call.input["city"] in ("Paris", "Vienna")
    for question in ("What is 2 + 2?", "What is the weather in Oslo?"):
        (call,) = blocks(question, tools=[weather, end], tool_choice={"type": "any", "disable_parallel_tool_use": True})
        assert call.type == "tool_use" and call.name in ("get_weather", "stop")
    free = blocks(tools=[weather | {"strict": True}])
    assert all(block.input["city"] in ("Paris", "Vienna") for block in free if block.type == "tool_use")
    form = {"type": "json_schema", "schema": {"enum": [7, 8]}}
    (text,) = blocks("What is 2 + 2?", extra_body={"seed": 1, "output_config": {"format": form}})
    assert json.loads(text.text) in (7, 8)
    bad = {"type": "json_schema", "schema": {"not": {}}}
    with pytest.raises(anthropic.BadRequestError, match="output_config.format"):
        blocks("What is 2 + 2?", extra_body={"output_config": {"format": bad}})
    with pytest.raises(anthropic.BadRequestError, match="tool_choice"):
        blocks(tools=[weather], tool_choice={"type": "tool", "name": "nothing"})


def test_responses_force_a_named_tool(client):
    function = {key: value for key, value in TOOLS[0]["function"].items() if key != "description"}
    response = client.responses.create(
        model=MODEL, input="What is 2 + 2?", max_output_tokens=400, tools=[{"type": "function"} | function],
        tool_choice={"type": "function", "name": "weather"})  # fmt: skip
    (call,) = [item for item in response.output if item.type == "function_call"]
    jsonschema.validate(json.loads(call.arguments), function["parameters"])


def test_answers_validate(server):
    """Of schemas at random, at a high temperature, half of them by random weights. An answer that its length cut says nothing."""
    with serving("--load-format", "dummy") as random_weights:
        for url, seeds in ((server.url, range(SCHEMAS // 2)), (random_weights.url, range(SCHEMAS // 2, SCHEMAS))):
            outcomes = [outcome for _, outcome, _ in ask_all(url, seeds)]
            assert not outcomes.count("invalid") and not outcomes.count("refused")
            assert outcomes.count("valid") > 0.8 * len(seeds), outcomes


def test_hostile_grammars_are_refused_or_bounded():
    """While they are compiled, /health answers, and so does a request without a grammar."""
    with serving() as server:
        answers, health = send_all(server.url, HOSTILE + (MORE_HOSTILE if os.environ.get("FATHOM_HOSTILE") else []))
        for fields, status, seconds, text in answers:
            assert status in (200, 400, 503), (fields, text)
            assert seconds < 70, fields
        assert max(health) < 2
        assert ask(server.client(), temperature=0).message.content == "4"
        assert server.stop() == 0


def test_what_cannot_be_held_to_is_named(client):
    def refused(**options):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, **options)
        return caught.value

    error = refused(response_format=format_of({"type": "object", "properties": {"a": {"not": {}}}}))
    assert error.param == "response_format.json_schema.schema" and "#/properties/a: " in error.message
    assert refused(extra_body={"guided_regex": "(a"}).param == "guided_regex"
    assert "uniqueItems" in refused(extra_body={"guided_json": {"type": "array", "uniqueItems": True}}).message
    assert refused(extra_body={"guided_json": "{"}).param == "guided_json"
