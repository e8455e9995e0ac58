// Makes elements. Text is always text: nothing here, or in the files after it, makes HTML of a
// string but markdown.js.

const byId = (id) => document.getElementById(id);

// element('p', {class: 'note', onclick: f}, 'text', child)
function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith('on')) {
      made.addEventListener(name.slice(2), value);
    } else if (typeof value === 'boolean') {
      made.toggleAttribute(name, value);
    } else {
      made.setAttribute(name, value);
    }
  }
  made.append(...children);
  return made;
}

function button(text, label, onclick) {
  return element('button', {type: 'button', 'aria-label': label, title: label, onclick}, text);
}

// For those who do not see the page: said once, when they have nothing else to listen to.
function announce(text) {
  byId('status').textContent = text;
}

// Browsers give pages a clipboard by TLS and on this machine alone.
function copyWithoutTls(text) {
  const focused = document.activeElement;
  const area = element('textarea', {class: 'unseen'});
  area.value = text;
  document.body.append(area);
  area.select();
  const copied = document.execCommand('copy');
  area.remove();
  focused.focus();
  if (!copied) throw new Error('not copied');
}

async function copyText(text, from) {
  try {
    await (navigator.clipboard?.writeText(text) ?? copyWithoutTls(text));
    announce('Copied');
    const before = from.textContent;
    from.textContent = 'Copied';
    setTimeout(() => { from.textContent = before; }, 1200);
  } catch {
    announce('The browser does not let this page copy: select the text instead');
  }
}
