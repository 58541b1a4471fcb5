"""serve_openai.py KAKEYA - `kakeya serve` as OpenAI's own client sees it."""

import json
import sys

import openai

from serving import Server, run_tests

KAKEYA = sys.argv[1]
USER = [{"role": "user", "content": "What is 17 + 25?"}]
WEATHER = [{"role": "user", "content": "What is the weather in Oslo?"}]
TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                   "required": ["city"]}}}]


def client(s, **more):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{s.port}/v1", api_key="none", max_retries=0,
                         **more)


def test_models(s):
    models = client(s).models.list()
    assert [m.id for m in models] == ["small"]
    assert client(s).models.retrieve("small").id == "small"


def test_chat(s):
    answer = client(s).chat.completions.create(
        model="small", messages=USER, temperature=0, max_completion_tokens=40)
    choice = answer.choices[0]
    assert choice.message.content == "17 + 25 = 42" and choice.finish_reason == "stop", choice
    assert choice.message.role == "assistant" and choice.logprobs is None
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    u = answer.usage
    assert u.total_tokens == u.prompt_tokens + u.completion_tokens and u.prompt_tokens > 10
    assert u.completion_tokens_details.reasoning_tokens == 0
    drafted = u.completion_tokens_details
    assert drafted.accepted_prediction_tokens + drafted.rejected_prediction_tokens > 0, drafted


def test_stream(s):
    with client(s).chat.completions.create(
            model="small", messages=USER, temperature=0, stream=True,
            stream_options={"include_usage": True}) as stream:
        chunks = list(stream)
    said = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert said == "17 + 25 = 42", said
    assert chunks[-1].usage.completion_tokens > 4 and chunks[-1].choices == []
    assert chunks[-2].choices[0].finish_reason == "stop"


def test_completion(s):
    answer = client(s).completions.create(model="small", prompt="def add(", max_tokens=8,
                                          temperature=0, n=2, logprobs=2)
    assert len(answer.choices) == 2 and answer.choices[0].finish_reason == "length"
    logprobs = answer.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == 8
    assert "".join(logprobs.tokens) == answer.choices[0].text
    assert logprobs.text_offset == [sum(map(len, logprobs.tokens[:i])) for i in range(8)]
    text = "".join(c.choices[0].text for c in client(s).completions.create(
        model="small", prompt="def add(", max_tokens=8, temperature=0, stream=True))
    assert text == answer.choices[0].text


def test_tools(s):
    """A call, streamed and whole, and the answer to its result."""
    ask = dict(model="small", messages=WEATHER, tools=TOOLS, temperature=0)
    answer = client(s).chat.completions.create(**ask)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None, choice
    call = choice.message.tool_calls[0]
    assert call.function.name == "get_weather" and call.type == "function"
    assert json.loads(call.function.arguments) == {"city": "Oslo"}

    deltas, finish = [], None
    for chunk in client(s).chat.completions.create(stream=True, **ask):
        deltas += chunk.choices[0].delta.tool_calls or []
        finish = chunk.choices[0].finish_reason
    assert finish == "tool_calls" and deltas[0].index == 0 and deltas[0].id != call.id
    assert deltas[0].function.name == "get_weather"
    whole = "".join(d.function.arguments or "" for d in deltas)
    assert json.loads(whole) == {"city": "Oslo"}

    again = client(s).chat.completions.create(
        model="small", tools=TOOLS, temperature=0, max_tokens=40,
        messages=WEATHER + [choice.message,
                            {"role": "tool", "tool_call_id": call.id, "content": "sunny"}])
    assert again.choices[0].message.content, again
    cached = again.usage.prompt_tokens_details.cached_tokens
    assert cached >= answer.usage.prompt_tokens - 64, again.usage
    none = client(s).chat.completions.create(**dict(ask, tool_choice="none", max_tokens=20))
    assert none.choices[0].message.tool_calls is None
    assert none.usage.prompt_tokens < answer.usage.prompt_tokens


def test_stop_and_logprobs(s):
    answer = client(s).chat.completions.create(model="small", messages=USER, temperature=0,
                                               stop=["= 4"], logprobs=True, top_logprobs=3)
    choice = answer.choices[0]
    assert choice.message.content == "17 + 25 " and choice.finish_reason == "stop", choice
    assert all(len(t.top_logprobs) == 3 for t in choice.logprobs.content)
    assert choice.logprobs.content[0].bytes == list(choice.logprobs.content[0].token.encode())


def test_errors(s):
    def fails(kind, **more):
        try:
            client(s).chat.completions.create(**{"model": "small", "messages": USER, **more})
        except kind as e:
            return e
        raise AssertionError(f"{more} is not refused")

    assert fails(openai.BadRequestError, temperature=-1).param == "temperature"
    e = fails(openai.BadRequestError,
              messages=[{"role": "user", "content": "many words " * 9000}])
    assert e.code == "context_length_exceeded" and e.body["n_ctx"] == 4096, e.body
    e = fails(openai.InternalServerError, response_format={"type": "json_object"})
    assert e.status_code == 501 and "response_format" in e.message
    try:
        client(s).responses.create(model="small", input="x")
        raise AssertionError("responses are answered")
    except openai.InternalServerError as e:
        assert e.status_code == 501


with Server(KAKEYA, "-a", "small") as server:
    run_tests([f for name, f in list(globals().items()) if name.startswith("test_")], server)
