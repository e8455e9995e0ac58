// The list of talks beside the page; on narrow screens it comes when it is asked for.

function showMenu(shown) {
  byId('talks').classList.toggle('open', shown);
  byId('shade').classList.toggle('open', shown);
  byId('menu').setAttribute('aria-expanded', String(shown));
  if (shown) byId('new-talk').focus();
}

function titleOf(text) {
  const line = text.trim().split('\n')[0];
  return line.length > 60 ? `${line.slice(0, 59)}…` : line;
}

// `open(id)` and `remove(id)` are what a click does.
function listTalks(currentId, open, remove) {
  byId('talk-list').replaceChildren(...store.list().map(({id, title}) => {
    const link = element('button', {type: 'button', class: 'talk', onclick: () => open(id)}, title);
    if (id === currentId) link.setAttribute('aria-current', 'true');
    const erase = button('×', `Delete the talk: ${title}`, () => remove(id, title));
    erase.className = 'erase';
    return element('li', {}, link, erase);
  }));
}

function setUpMenu() {
  byId('menu').addEventListener('click', () => showMenu(!byId('talks').classList.contains('open')));
  byId('shade').addEventListener('click', () => showMenu(false));
  byId('talks').addEventListener('keydown', (event) => {
    if (event.key !== 'Escape') return;
    showMenu(false);
    byId('menu').focus();
  });
}
