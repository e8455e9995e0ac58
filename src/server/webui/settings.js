// The dialog of settings, and the request that they make.

const kNumbers = ['temperature', 'top_p', 'top_k', 'min_p', 'repetition_penalty', 'max_tokens',
  'seed'];

let settings = store.settings();

function parseTyped(text, what, isRight) {
  if (!text?.trim()) return undefined;
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`${what}: this is not JSON: ${error.message}`);
  }
  if (!isRight(value)) throw new Error(`${what}: this is JSON of another kind`);
  return value;
}

const toolsOf = (typed) => parseTyped(typed.tools, 'Tools', Array.isArray);
const fieldsOf = (typed) => parseTyped(typed.fields, 'Further fields',
  (value) => value !== null && typeof value === 'object' && !Array.isArray(value));

// The body that asks for the next message of `messages`.
function requestBody(messages, model) {
  const body = {
    model, stream: true, stream_options: {include_usage: true, continuous_usage_stats: true},
  };
  const system = settings.system?.trim();
  body.messages = [...(system ? [{role: 'system', content: system}] : []),
    ...messages.filter(saysSomething).map(toApi)];
  for (const name of kNumbers) {
    if (settings[name]) body[name] = Number(settings[name]);
  }
  if (settings.thinking) body.chat_template_kwargs = {thinking: settings.thinking === 'on'};
  if (settings.logprobs) Object.assign(body, {logprobs: true, top_logprobs: 5});
  const tools = toolsOf(settings);
  if (tools?.length) Object.assign(body, {tools, tool_choice: settings.tool_choice || 'auto'});
  return Object.assign(body, fieldsOf(settings));
}

function applyTheme() {
  document.documentElement.dataset.theme = settings.theme || 'system';
}

// What the server does with fields that are empty.
function showDefaults(info) {
  const given = info?.default_sampling_params ?? {};
  for (const name of kNumbers) {
    const value = given[name];
    byId('settings').querySelector(`[name=${name}]`).placeholder =
      value === null || value === undefined ? 'default' : String(value);
  }
}

function readDialog() {
  const typed = {};
  for (const field of byId('settings').querySelectorAll('[name]')) {
    const value = field.type === 'checkbox' ? field.checked : field.value;
    if (value) typed[field.name] = value;
  }
  return typed;
}

// `changed` is called when it was closed with other settings.
function openSettings(focused = 'system') {
  for (const field of byId('settings').querySelectorAll('[name]')) {
    if (field.type === 'checkbox') field.checked = Boolean(settings[field.name]);
    else field.value = settings[field.name] ?? '';
  }
  byId('settings-fault').textContent = '';
  byId('settings').showModal();
  byId('settings').querySelector(`[name=${focused}]`).focus();
}

// Escape closes as it does everywhere, and keeps nothing.
function setUpSettings(changed) {
  const dialog = byId('settings');
  dialog.querySelector('form').addEventListener('submit', (event) => {
    const typed = readDialog();
    try {
      toolsOf(typed);
      fieldsOf(typed);
    } catch (error) {
      event.preventDefault();
      dialog.querySelector('details').open = true;
      byId('settings-fault').textContent = error.message;
      return;
    }
    settings = typed;
    if (!store.saveSettings(settings)) announce('The browser keeps no settings');
    applyTheme();
    changed();
  });
  byId('open-settings').addEventListener('click', () => openSettings());
  applyTheme();
}
