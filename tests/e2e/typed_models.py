"""Answers held against the typed models of the official clients: no field that they do not know, none
missing, none of another type. The clients themselves take anything."""

import json
import types
import typing

import anthropic.types as claude
import openai.types as oai
import openai.types.chat as chat
import openai.types.responses as responses
import pydantic
from anthropic.types import RawMessageStreamEvent

try:
    import httpx2 as httpx  # what the openai client is built on
except ImportError:
    import httpx

# What vLLM has beside OpenAI's fields, and its clients read.
VLLM = {
    "ChatCompletion": {"prompt_logprobs", "prompt_token_ids", "kv_transfer_params"},
    "ChatCompletionChunk": {"prompt_token_ids"},
    "ChatCompletionMessage": {"reasoning", "reasoning_content"},
    "ChoiceDelta": {"reasoning", "reasoning_content"},
    "Choice": {"stop_reason", "token_ids"},
    "CompletionChoice": {"stop_reason", "token_ids", "prompt_logprobs", "prompt_token_ids"},
    "Model": {"root", "parent", "max_model_len"},
    "ResponseFunctionCallArgumentsDoneEvent": {"name"},
}
FAULTS = []  # found since the last test


def faults(kind, value, at=""):
    """What of `value` is not as the annotation `kind` says."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return faults(args[0], value, at)
    if origin in (typing.Union, types.UnionType):
        each = [faults(one, value, at) for one in args]
        return [] if [] in each else min(each, key=len)
    if kind is typing.Any or kind is object:
        return []
    if origin is typing.Literal:
        return [] if value in args else [f"{at}: {value!r} is none of {args}"]
    if kind is type(None):
        return [] if value is None else [f"{at}: {value!r} is not null"]
    if origin in (list, typing.List):
        if not isinstance(value, list):
            return [f"{at}: {value!r} is no list"]
        return [f for i, v in enumerate(value) for f in faults(args[0], v, f"{at}[{i}]")]
    if origin is dict or kind is dict:
        if not isinstance(value, dict):
            return [f"{at}: {value!r} is no object"]
        return [f for k, v in value.items() if args for f in faults(args[1], v, f"{at}.{k}")]
    if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
        return model_faults(kind, value, at)
    if kind is float:
        kind = (int, float)
    if isinstance(value, bool) and kind is not bool:
        return [f"{at}: {value!r} is no {kind}"]
    return [] if isinstance(value, kind) else [f"{at}: {value!r} is no {kind}"]


def model_faults(model, value, at):
    if not isinstance(value, dict):
        return [f"{at}: {value!r} is no {model.__name__}"]
    known = {field.alias or name: field for name, field in model.model_fields.items()}
    allowed = VLLM.get(model.__name__, set())
    found = []
    for name, field in known.items():
        if name not in value:
            if field.is_required():
                found.append(f"{at}: {name} of {model.__name__} is missing")
        else:
            found += faults(field.annotation, value[name], f"{at}.{name}")
    return found + [f"{at}: {name} is no field of {model.__name__}" for name in value if name not in known and name not in allowed]


def without_known_nulls(path, value):
    """OpenAI sends null where its own types have none: in what goes on, and before the first token."""
    if path != "/v1/completions":
        return value
    for choice in value["choices"]:
        choice["finish_reason"] = choice["finish_reason"] or "stop"
        for name in ("token_logprobs", "top_logprobs"):
            if choice["logprobs"]:
                choice["logprobs"][name] = [v for v in choice["logprobs"][name] if v is not None]
    return value


def whole(path):
    """The model of a whole answer of `path`, and of a stream's events."""
    return {
        "/v1/chat/completions": (chat.ChatCompletion, chat.ChatCompletionChunk),
        "/v1/completions": (oai.Completion, oai.Completion),
        "/v1/messages": (claude.Message, RawMessageStreamEvent),
        "/v1/messages/count_tokens": (claude.MessageTokensCount, None),
        "/v1/responses": (responses.Response, responses.ResponseStreamEvent),
    }.get(path)


def check(path, status, text):
    """Adds what is wrong to FAULTS."""
    models = whole(path)
    if models is None or status != 200 or not text:  # a client may leave before the first byte
        return
    if not text.startswith(("data:", "event:", ":")):
        found = faults(models[0], without_known_nulls(path, json.loads(text)), path)
        FAULTS.extend(found)
        return
    for event in text.split("\n\n")[:-1]:
        for line in event.split("\n"):
            if not line.startswith("data: {"):
                continue
            data = json.loads(line.removeprefix("data: "))
            if "error" in data and "choices" not in data or data.get("type") in ("ping", "error"):
                continue
            FAULTS.extend(faults(models[1], without_known_nulls(path, data), f"{path} stream"))


class Tee(httpx.SyncByteStream):
    def __init__(self, stream, done):
        self.stream, self.done, self.seen = stream, done, b""

    def __iter__(self):
        for chunk in self.stream:
            self.seen += chunk
            yield chunk

    def close(self):
        self.stream.close()
        self.done(self.seen.decode(errors="replace"))


class CheckedTransport(httpx.HTTPTransport):
    def handle_request(self, request):
        response = super().handle_request(request)
        path, status = request.url.path, response.status_code
        response.stream = Tee(response.stream, lambda text: check(path, status, text))
        return response


def http_client():
    return httpx.Client(transport=CheckedTransport(), timeout=60)
