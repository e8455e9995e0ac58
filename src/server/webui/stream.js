// The server, as seen from here. Paths are relative, so that the page may lie below any other path.

class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(path, key, body, signal) {
  const headers = {};
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body) headers['Content-Type'] = 'application/json';
  const answer = await fetch(path, {
    method: body ? 'POST' : 'GET', headers, body: body && JSON.stringify(body), signal,
    cache: 'no-store',
  });
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => null);
  throw new ServerError(answer.status,
    said?.error?.message ?? `The server answered ${answer.status}.`);
}

const askJson = async (path, key) => (await ask(path, key)).json();

// The data of server-sent events, one by one, parsed.
async function* eventsOf(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const {value, done} = await reader.read();
    if (done) throw new ServerError(0, 'The connection broke off before the answer was complete.');
    text += value;
    let from = 0;
    for (let end; (end = text.indexOf('\n\n', from)) >= 0; from = end + 2) {
      const event = text.slice(from, end);
      if (!event.startsWith('data: ')) continue;
      const data = event.slice(6);
      if (data === '[DONE]') return;
      yield JSON.parse(data);
    }
    text = text.slice(from);
  }
}

// Adds what a delta brings to `message`: {content, reasoning, calls, tokens, finish, usage, times}.
function takeChunk(message, chunk, now) {
  if (chunk.error) throw new ServerError(chunk.error.code ?? 0, chunk.error.message);
  if (chunk.usage) message.usage = chunk.usage;
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const {delta} = choice;
  const thought = delta.reasoning_content ?? '';
  if (thought || delta.content || delta.tool_calls) {
    message.firstAt ??= now;
    message.lastAt = now;
    if (message.firstTokens === undefined && chunk.usage) {
      message.firstTokens = chunk.usage.completion_tokens;
    }
  }
  if (thought) message.reasoning += thought;
  if (delta.content) message.content += delta.content;
  if (message.content || delta.tool_calls) message.thoughtAt ??= now;
  for (const part of delta.tool_calls ?? []) {
    const call = message.calls[part.index] ??= {id: '', name: '', arguments: ''};
    call.id ||= part.id ?? '';
    call.name += part.function?.name ?? '';
    call.arguments += part.function?.arguments ?? '';
  }
  for (const {token, logprob, top_logprobs: others} of choice.logprobs?.content ?? []) {
    (message.tokens ??= []).push({token, logprob, others});
  }
  if (choice.finish_reason) message.finish = choice.finish_reason;
}

// An answer that failed before its first word does not.
const saysSomething = (message) =>
  message.role !== 'assistant' || message.content !== '' || message.calls.length > 0;

// What the talk says, in the API's words. Thinking is not sent back, as DeepSeek's API wants it.
function toApi(message) {
  if (message.role === 'tool') {
    return {role: 'tool', tool_call_id: message.call, content: message.content};
  }
  if (message.role !== 'assistant') return {role: message.role, content: message.content};
  const calls = message.calls.map((call) => ({
    id: call.id, type: 'function', function: {name: call.name, arguments: call.arguments},
  }));
  return {role: 'assistant', content: message.content, ...(calls.length && {tool_calls: calls})};
}
