// What this browser keeps: talks, one by one, an index of them, and the settings. Another tab may
// change it, so that the index is read again before it is written.

const kIndex = 'fathom.talks';
const kTalk = 'fathom.talk.';
const kSettings = 'fathom.settings';
// Newest first; {id, title, updated}.
const kMostTalks = 500;

function readStored(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function writeStored(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

const store = {
  settings: () => readStored(kSettings, {}),
  saveSettings: (settings) => writeStored(kSettings, settings),

  list: () => readStored(kIndex, []),
  talk: (id) => readStored(kTalk + id, null),

  // False if the browser has no room left. Log-probabilities are not kept.
  save(talk) {
    const messages = talk.messages.map(({tokens, ...kept}) => kept);
    const entry = {id: talk.id, title: talk.title, updated: Date.now()};
    const others = this.list().filter((other) => other.id !== talk.id);
    for (const old of others.splice(kMostTalks - 1)) localStorage.removeItem(kTalk + old.id);
    return writeStored(kTalk + talk.id, {id: talk.id, title: talk.title, messages}) &&
      writeStored(kIndex, [entry, ...others]);
  },

  remove(id) {
    localStorage.removeItem(kTalk + id);
    writeStored(kIndex, this.list().filter((other) => other.id !== id));
  },

  removeAll() {
    for (const {id} of this.list()) localStorage.removeItem(kTalk + id);
    localStorage.removeItem(kIndex);
  },
};
