// How a message looks. A view is made once; update() brings it up to its message, and does no more
// than what changed, because an answer calls it before every frame.

function prettyJson(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;  // not whole yet
  }
}

const seconds = (ms) => `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;

// The speed after the first tokens, as the time before them is the prompt's. What comes in one
// burst says when the network had it, not how fast it was written.
const kBurstMs = 250;
function speedOf(message) {
  const tokens = (message.usage?.completion_tokens ?? 0) - (message.firstTokens ?? 0);
  const took = message.lastAt - message.firstAt;
  return tokens > 0 && took >= kBurstMs ? `${(1000 * tokens / took).toFixed(1)} tokens/s` : '';
}

function statsOf(message) {
  const count = message.usage?.completion_tokens;
  if (!count) return '';
  const cached = message.usage.prompt_tokens_details?.cached_tokens;
  return [
    `${count} ${count === 1 ? 'token' : 'tokens'}`, speedOf(message),
    message.firstAt && `first after ${seconds(message.firstAt - message.askedAt)}`,
    `prompt ${message.usage.prompt_tokens}${cached ? `, ${cached} of it cached` : ''}`,
  ].filter(Boolean).join(' · ');
}

const kEnds = {
  length: 'Cut off: the answer has as many tokens as it may have.',
  content_filter: 'The server cut this off.',
  stopped: 'Stopped.',
};

class UserView {
  // `actions`: {edit(text)}.
  constructor(message, actions) {
    this.message = message;
    this.text = element('div', {class: 'said'}, message.content);
    const edit = button('Edit', 'Edit this message, and drop what follows',
      () => this.edit(actions));
    const copy = button('Copy', 'Copy this message', () => copyText(message.content, copy));
    this.foot = element('div', {class: 'foot'}, edit, copy);
    this.root = element('article', {class: 'message user', 'aria-label': 'You'}, this.text,
      this.foot);
  }

  edit(actions) {
    const area = element('textarea', {'aria-label': 'Edited message', rows: '3'});
    area.value = this.message.content;
    const close = () => {
      form.replaceWith(this.text);
      this.foot.hidden = false;
      this.foot.firstElementChild.focus();
    };
    const send = () => { if (area.value.trim()) actions.edit(area.value.trim()); };
    const onsubmit = (event) => { event.preventDefault(); send(); };
    const form = element('form', {class: 'edit', onsubmit}, area,
      element('div', {class: 'buttons'}, button('Cancel', 'Leave it as it was', close),
        element('button', {type: 'submit', class: 'strong'}, 'Send again')));
    area.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') close();
      if (isSend(event)) { event.preventDefault(); send(); }
    });
    this.foot.hidden = true;
    this.text.replaceWith(form);
    area.focus();
  }

  update() {}
  finish() {}
}

class ToolView {
  constructor(message) {
    const label = `Result of ${message.name}`;
    this.root = element('article', {class: 'message tool', 'aria-label': label},
      element('div', {class: 'label'}, label),
      element('pre', {tabindex: '0'}, message.content));
  }

  update() {}
  finish() {}
}

class AnswerView {
  // `actions`: {again(), results([text])}.
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.summary = element('summary', {}, 'Thinking');
    this.thought = document.createTextNode('');
    this.thinking = element('details', {class: 'thinking', hidden: true}, this.summary,
      element('div', {class: 'thought'}, this.thought));
    this.text = element('div', {class: 'text'});
    this.tokenPlace = element('div', {class: 'tokens', hidden: true});
    this.calls = element('div', {class: 'calls'});
    this.note = element('p', {class: 'note', hidden: true});
    this.stats = element('span', {class: 'stats'});
    this.toggle = button('Tokens', 'Show token by token',
      () => this.showTokens(this.tokenPlace.hidden));
    this.toggle.hidden = true;
    this.toggle.setAttribute('aria-pressed', 'false');
    const copy = button('Copy', 'Copy this answer', () => copyText(message.content, copy));
    const again = button('Regenerate', 'Answer again, and drop what follows',
      () => actions.again());
    this.foot = element('div', {class: 'foot'}, again, copy, this.toggle, this.stats);
    this.root = element('article',
      {class: 'message answer', 'aria-label': 'Answer', 'aria-busy': 'true'},
      this.thinking, this.text, this.tokenPlace, this.calls, this.note, this.foot);
    this.markdown = new GrowingMarkdown(this.text);
  }

  update(now) {
    const {message} = this;
    const more = message.reasoning.slice(this.thought.length);
    if (more) {
      this.thought.appendData(more);
      this.thinking.hidden = false;
    }
    if (message.reasoning) this.labelThinking(now);
    if (message.content && !this.done) this.markdown.update(message.content, now);
    if (message.tokens) {
      this.toggle.hidden = false;
      if (!this.tokenPlace.hidden) this.tokenView.update(message.tokens);
    }
    if (message.calls.length) this.showCalls();
    const stats = statsOf(message);
    if (stats !== this.said) this.stats.textContent = this.said = stats;
  }

  labelThinking(now) {
    const ended = this.message.thoughtAt ?? (this.done && this.message.lastAt);
    const took = (ended ?? now) - this.message.firstAt;
    const time = took < 50 ? 'briefly' : `for ${(took / 1000).toFixed(1)} s`;
    const label = `${ended ? 'Thought' : 'Thinking'} ${time}`;
    if (label !== this.summary.textContent) this.summary.textContent = label;
  }

  showTokens(shown) {
    this.tokenView ??= new TokenView(this.tokenPlace);
    this.tokenPlace.hidden = !shown;
    this.text.hidden = this.thinking.hidden = shown;
    if (!this.message.reasoning) this.thinking.hidden = true;
    this.toggle.setAttribute('aria-pressed', String(shown));
    if (shown) this.tokenView.update(this.message.tokens);
  }

  showCalls() {
    this.message.calls.forEach((call, at) => {
      const card = this.calls.children[at] ?? this.calls.appendChild(element('div', {class: 'call'},
        element('div', {class: 'label'}), element('pre', {tabindex: '0', class: 'code'})));
      card.firstElementChild.textContent = `Calls ${call.name}`;
      card.lastElementChild.textContent = prettyJson(call.arguments);
    });
  }

  // Once no more comes.
  finish() {
    const {message} = this;
    this.done = true;
    this.update(Infinity);
    this.markdown.finish(message.content);
    this.root.setAttribute('aria-busy', 'false');
    const said = message.fault || kEnds[message.finish] || '';
    this.note.textContent = said;
    this.note.hidden = !said;
    this.note.classList.toggle('fault', Boolean(message.fault));
  }

  // A field for what each call gave, for the last message of a talk.
  askForResults() {
    const areas = this.message.calls.map(({name}) => element('textarea',
      {'aria-label': `Result of ${name}`, placeholder: `What ${name} gives`, rows: '2'}));
    const onsubmit = (event) => {
      event.preventDefault();
      this.actions.results(areas.map((area) => area.value));
    };
    this.calls.append(element('form', {class: 'results', onsubmit}, ...areas,
      element('button', {type: 'submit'}, areas.length > 1 ? 'Send results' : 'Send result')));
  }
}

function viewOf(message, actions) {
  if (message.role === 'user') return new UserView(message, actions);
  if (message.role === 'tool') return new ToolView(message);
  return new AnswerView(message, actions);
}

// Enter, unless it begins a line or ends a word of an input method.
const isSend = (event) => event.key === 'Enter' && !event.shiftKey && !event.isComposing;
