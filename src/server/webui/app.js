// The talk that is shown, the answer that is being written, and what the buttons do.

const kSaveEveryMs = 1000;
const newTalk = () => ({
  id: `${Date.now().toString(36)}-${Math.random().toString(36).slice(2)}`, title: '', messages: [],
});

let talk = newTalk();
let views = [];      // of the talk's messages
let answer = null;   // {talk, message, abort}: one at a time, perhaps of a talk that is not shown
let atEnd = true;    // the page follows what is written
let models = [];

// Before the next frame, however many tokens came since the last one.
let frameAsked = false;
function showSoon() {
  if (frameAsked) return;
  frameAsked = true;
  requestAnimationFrame((now) => {
    frameAsked = false;
    views.find((view) => view.message === answer?.message)?.update(now);
    follow();
    if (answer) showSoon();  // what GrowingMarkdown put off, and the time of thinking
  });
}

// Beyond the end is the end; to ask where it is would lay out the page twice.
function follow() {
  if (atEnd) byId('scroll').scrollTop = 1e9;
}

function save(which = talk) {
  if (!store.save(which)) announceFault('This browser has no room left for talks: delete some.');
}

function announceFault(text) {
  byId('hint').textContent = text;
  byId('hint').classList.add('fault');
}

function actionsOf(message) {
  const at = () => talk.messages.indexOf(message);
  return {
    edit: (text) => say(text, at()),
    again: () => { if (!answer) { cutAt(at()); respond(); } },
    results: (texts) => giveResults(message, texts),
  };
}

function addView(message) {
  const view = viewOf(message, actionsOf(message));
  views.push(view);
  byId('messages').append(view.root);
  return view;
}

// The talk's messages before number `at` stay.
function cutAt(at) {
  talk.messages.length = at;
  for (const view of views.splice(at)) view.root.remove();
}

function showTalk(shown) {
  talk = shown;
  views = [];
  byId('messages').replaceChildren();
  for (const message of talk.messages) {
    const view = addView(message);
    if (message === answer?.message) continue;
    // By a reload.
    if (message.role === 'assistant' && !message.fault) message.finish ??= 'stopped';
    view.finish();
  }
  awaitResults();
  byId('greeting').hidden = talk.messages.length > 0;
  nameTalk(talk);
  atEnd = true;
  follow();
  showList();
  showMenu(false);
}

// A reload comes back to it.
function nameTalk({id, messages}) {
  history.replaceState(null, '', messages.length ? `#${id}` : location.pathname);
}

function showList() {
  listTalks(talk.id, (id) => {
    const other = id === answer?.talk.id ? answer.talk : store.talk(id);
    showTalk(other ?? newTalk());
    byId('entry').focus();
  }, (id, title) => {
    if (!confirm(`Delete the talk “${title}”?`)) return;
    if (answer?.talk.id === id) stop();
    store.remove(id);
    if (talk.id === id) showTalk(newTalk()); else showList();
  });
}

// Says `text` as message number `at`, in place of what was there and after it.
function say(text, at = talk.messages.length) {
  if (answer) return;
  cutAt(at);
  const message = {role: 'user', content: text};
  talk.messages.push(message);
  if (at === 0) talk.title = titleOf(text);
  addView(message);
  respond();
}

function giveResults({calls}, texts) {
  if (answer) return;
  calls.forEach((call, at) => {
    const message = {role: 'tool', call: call.id, name: call.name, content: texts[at]};
    talk.messages.push(message);
    addView(message);
  });
  respond();
}

function awaitResults() {
  const last = talk.messages.at(-1);
  if (last?.role === 'assistant' && last.calls.length && last !== answer?.message) {
    views.at(-1).askForResults();
  }
}

function showBusy() {
  byId('send').hidden = answer !== null;
  byId('stop').hidden = answer === null;
}

// Asks for the next message of the talk, and shows it while it comes.
async function respond() {
  for (const form of byId('messages').querySelectorAll('.results')) form.remove();
  const message = {
    role: 'assistant', content: '', reasoning: '', calls: [], askedAt: performance.now(),
  };
  const asked = talk;
  const before = [...asked.messages];
  asked.messages.push(message);
  answer = {talk: asked, message, abort: new AbortController()};
  addView(message);
  byId('greeting').hidden = true;
  byId('hint').textContent = '';
  nameTalk(asked);
  atEnd = true;
  save(asked);
  showList();
  showBusy();
  showSoon();
  announce('Answering');
  try {
    const body = requestBody(before, byId('model').value);
    const reply = await ask('v1/chat/completions', settings.key, body, answer.abort.signal);
    let saved = performance.now();
    for await (const chunk of eventsOf(reply)) {
      const now = performance.now();
      takeChunk(message, chunk, now);
      if (now - saved > kSaveEveryMs) {
        saved = now;
        save(asked);
      }
    }
  } catch (error) {
    noteFailure(message, error);
  }
  settle(asked, message);
}

function noteFailure(message, error) {
  if (error.name === 'AbortError') {
    message.finish = 'stopped';
    return;
  }
  message.fault = error instanceof TypeError ? 'The server cannot be reached.' : error.message;
  if (error.status === 401) {
    openSettings('key');
    byId('settings-fault').textContent = 'This server needs a key.';
  }
}

function settle(asked, message) {
  answer = null;
  message.calls = message.calls.filter(Boolean);
  if (message.finish === 'stopped') message.calls = [];  // they may not be whole
  if (store.list().some(({id}) => id === asked.id)) save(asked);
  views.find((view) => view.message === message)?.finish();
  if (asked === talk) {
    awaitResults();
    follow();
  }
  showBusy();
  announce(message.fault || `The answer is complete. ${message.content.slice(0, 500)}`);
}

function stop() {
  answer?.abort.abort();
}

async function meetServer() {
  try {
    const [list, info] = await Promise.all([askJson('v1/models', settings.key),
      askJson('server_info', settings.key)]);
    models = list.data.map(({id}) => id);
    showDefaults(info);
  } catch (error) {
    announceFault(error.status === 401 ? 'This server needs a key: it goes into the settings.' :
      'The server cannot be reached.');
    return;
  }
  byId('hint').classList.remove('fault');
  byId('model').replaceChildren(...models.map((id) => element('option', {}, id)));
  byId('model').hidden = models.length < 2;
  byId('model-name').textContent = models.length < 2 ? models[0] : 'fathom';
  document.title = `${models[0]} · fathom`;
}

function setUpComposer() {
  const entry = byId('entry');
  const fit = () => {
    entry.style.height = 'auto';
    entry.style.height = `${entry.scrollHeight + 2}px`;
  };
  const send = () => {
    const text = entry.value.trim();
    if (!text || answer) return;
    entry.value = '';
    fit();
    say(text);
  };
  byId('composer').addEventListener('submit', (event) => { event.preventDefault(); send(); });
  entry.addEventListener('input', fit);
  entry.addEventListener('keydown', (event) => {
    if (isSend(event)) { event.preventDefault(); send(); }
  });
  byId('stop').addEventListener('click', () => { stop(); entry.focus(); });
}

function setUp() {
  setUpComposer();
  setUpMenu();
  setUpSettings(meetServer);
  byId('new-talk').addEventListener('click', () => { showTalk(newTalk()); byId('entry').focus(); });
  byId('forget').addEventListener('click', () => {
    if (!confirm('Delete all talks of this browser?')) return;
    stop();
    store.removeAll();
    byId('settings').close();
    showTalk(newTalk());
  });
  document.addEventListener('keydown', (event) => {
    if (event.key === 'Escape' && !byId('settings').open) stop();
  });
  const scroll = byId('scroll');
  scroll.addEventListener('scroll', () => {
    atEnd = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 40;
  }, {passive: true});
  for (const leaving of ['beforeunload', 'pagehide']) {
    addEventListener(leaving, () => {
      if (answer) save(answer.talk);
      stop();
    });
  }
  showTalk(store.talk(location.hash.slice(1)) ?? newTalk());
  byId('entry').focus();
  meetServer();
}

setUp();
