"""What people do on their first day with the libraries that they talk to models with."""

import asyncio
import os
from typing import Literal

import pydantic
import pytest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no look at the network
os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"

MODEL = "tiny-r1"
QUESTION = "What is 2 + 2?"
MESSAGES = [{"role": "user", "content": QUESTION}]
DIRECT = {"chat_template_kwargs": {"thinking": False}}


class Sum(pydantic.BaseModel, extra="forbid"):
    """The sum of two numbers."""

    sign: Literal["plus", "minus"]
    total: int = pydantic.Field(ge=0, le=99)


@pytest.fixture(scope="module")
def base_url(server):
    return f"{server.url}/v1"


@pytest.fixture(scope="module")
def answer(client):
    """What OpenAI's own client hears."""
    asked = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=200, temperature=0, extra_body=DIRECT)
    return asked.choices[0].message.content


@pytest.fixture(scope="module")
def langchain(base_url):
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model=MODEL, base_url=base_url, api_key="none", temperature=0, max_tokens=200, max_retries=0, extra_body=DIRECT)


def test_langchain_invokes_and_streams(langchain, answer):
    whole = langchain.invoke(QUESTION)
    assert whole.content == answer
    assert whole.usage_metadata["output_tokens"] > 0
    chunks = list(langchain.stream(QUESTION))
    assert len(chunks) > 2 and "".join(chunk.content for chunk in chunks) == answer
    assert [one.content for one in langchain.batch([QUESTION, QUESTION])] == [answer, answer]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_with_structured_output(langchain, method):
    assert isinstance(langchain.with_structured_output(Sum, method=method).invoke(QUESTION), Sum)


def test_langchain_with_json_mode(langchain):
    asked = f"Answer in JSON. {QUESTION}"
    assert isinstance(langchain.with_structured_output(None, method="json_mode").invoke(asked), dict)


@pytest.mark.parametrize("choice", ["any", "Sum"])
def test_langchain_binds_tools(langchain, choice):
    called = langchain.bind_tools([Sum], tool_choice=choice).invoke(QUESTION)
    assert [call["name"] for call in called.tool_calls] == ["Sum"] and not called.invalid_tool_calls
    Sum.model_validate(called.tool_calls[0]["args"])
    from langchain_core.messages import HumanMessage, ToolMessage

    told = [HumanMessage(QUESTION), called, ToolMessage("4", tool_call_id=called.tool_calls[0]["id"])]
    assert langchain.invoke(told).response_metadata["finish_reason"] in ("stop", "length")


@pytest.fixture(scope="module")
def litellm(base_url):
    import functools

    import litellm as library

    library.completion_of = functools.partial(
        library.completion, model=f"hosted_vllm/{MODEL}", api_base=base_url, api_key="none", max_tokens=200, temperature=0,
        messages=MESSAGES, extra_body=DIRECT)  # fmt: skip
    return library


def test_litellm_completes_and_streams(litellm, answer):
    assert litellm.completion_of().choices[0].message.content == answer
    chunks = litellm.completion_of(stream=True, stream_options={"include_usage": True})
    assert litellm.stream_chunk_builder(list(chunks)).choices[0].message.content == answer


def test_litellm_reads_the_reasoning(litellm, client):
    told = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=200, temperature=0).choices[0].message
    heard = litellm.completion_of(extra_body={}).choices[0].message
    assert heard.reasoning_content == told.reasoning and heard.content == told.content


def test_litellm_has_tools_and_schemas(litellm):
    tool = {"type": "function", "function": {"name": "sum", "parameters": Sum.model_json_schema()}}
    called = litellm.completion_of(tools=[tool], tool_choice="required").choices[0]
    assert called.finish_reason == "tool_calls"
    Sum.model_validate_json(called.message.tool_calls[0].function.arguments)
    Sum.model_validate_json(litellm.completion_of(response_format=Sum).choices[0].message.content)


def test_litellm_knows_a_refusal_for_one(litellm):
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        litellm.completion_of(temperature=-1)


class Anything(pydantic.BaseModel, extra="allow"):
    """A JSON object: mode JSON holds an answer to no more."""


@pytest.mark.parametrize("mode, kind", [("TOOLS", Sum), ("JSON_SCHEMA", Sum), ("JSON", Anything)])
def test_instructor_makes_objects(client, mode, kind):
    import instructor

    asked = instructor.from_openai(client, mode=instructor.Mode[mode]).chat.completions.create(
        model=MODEL, messages=MESSAGES, response_model=kind, max_retries=0, max_tokens=400, temperature=0, extra_body=DIRECT)  # fmt: skip
    assert isinstance(asked, kind)


@pytest.fixture
def llm_model(base_url):
    from llm.default_plugins.openai_models import Chat

    model = Chat(MODEL, model_name=MODEL, api_base=base_url, supports_schema=True, supports_tools=True)
    model.key = "none"
    return model


def test_llm_prompts_streams_and_goes_on(llm_model):
    talk = llm_model.conversation()
    first = talk.prompt(QUESTION, stream=True, temperature=0, max_tokens=200)
    assert "".join(first) == first.text() and first.usage().output > 0
    assert talk.prompt("And 3 + 3?", stream=False, temperature=0, max_tokens=200).text()


def test_llm_with_a_schema(llm_model):
    Sum.model_validate_json(llm_model.prompt(QUESTION, schema=Sum, stream=False, temperature=0, max_tokens=400).text())


@pytest.mark.parametrize("api", ["chat_completions", "responses"])
def test_openai_agents_call_a_tool_and_answer(base_url, api):
    import agents
    from openai import AsyncOpenAI

    asked = []

    @agents.function_tool(strict_mode=False)
    def total(a: Literal[2, 3], b: Literal[2, 3]) -> str:
        """The sum of two numbers."""
        asked.append((a, b))
        return str(a + b)

    async def run():
        async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
            kinds = {"chat_completions": agents.OpenAIChatCompletionsModel, "responses": agents.OpenAIResponsesModel}
            agent = agents.Agent(
                name="adder", instructions="Add.", tools=[total], model=kinds[api](model=MODEL, openai_client=client),
                model_settings=agents.ModelSettings(tool_choice="required", temperature=0, max_tokens=400))  # fmt: skip
            return await agents.Runner.run(agent, QUESTION, max_turns=3)

    result = asyncio.run(run())
    assert len(asked) == 1 and result.final_output is not None
