// Markdown to elements, safely: marked reads it, with HTML in it taken for text; DOMPurify lets
// only the elements through that Markdown has; and the page's Content-Security-Policy would run
// nothing that came through both.

const kTags = ['a', 'b', 'blockquote', 'br', 'code', 'del', 'em', 'h1', 'h2', 'h3', 'h4', 'h5',
  'h6', 'hr', 'i', 'li', 'ol', 'p', 'pre', 'span', 'strong', 'table', 'tbody', 'td', 'th', 'thead',
  'tr', 'ul'];
const kPurify = {
  ALLOWED_TAGS: kTags,
  ALLOWED_ATTR: ['href', 'title', 'class', 'start', 'align'],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

const escaped = (text) => text.replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);

// While it is written, code is not coloured: it would be done again for every line.
let colours = true;

const renderer = {
  html: escaped,
  image: (address, title, text) => `<a href="${escaped(address)}">${text || 'image'}</a>`,
  code(text, info) {
    const language = (info || '').match(/^[\w+#-]*/)[0].toLowerCase();
    const known = colours && hljs.getLanguage(language);
    const inner = known ? hljs.highlight(language, text, true).value : escaped(text);
    return `<pre><code class="language-${language}">${inner}</code></pre>`;
  },
};

// Formulas stay as they are written: Markdown would take their backslashes and underscores.
const formula = {
  name: 'formula',
  level: 'inline',
  start: (text) => text.match(/\\[([]|\$\$/)?.index,
  tokenizer(text) {
    const found = /^(?:\\\([^]*?\\\)|\\\[[^]*?\\\]|\$\$[^]+?\$\$)/.exec(text);
    return found ? {type: 'formula', raw: found[0]} : undefined;
  },
  renderer: (token) => `<span class="formula">${escaped(token.raw)}</span>`,
};

marked.use({renderer, extensions: [formula], breaks: true, headerIds: false, mangle: false});

// A block of code has its language and a button that copies it; links open elsewhere.
function furnish(fragment) {
  for (const link of fragment.querySelectorAll('a')) {
    link.target = '_blank';
    link.rel = 'noopener noreferrer';
  }
  for (const table of fragment.querySelectorAll('table')) {
    const frame = element('div',
      {class: 'wide', tabindex: '0', role: 'region', 'aria-label': 'Table'});
    table.replaceWith(frame);
    frame.append(table);
  }
  for (const block of fragment.querySelectorAll('pre')) {
    const code = block.firstElementChild;
    const language = code?.className.replace('language-', '') ?? '';
    const copy = button('Copy', 'Copy this code', () => copyText(code.textContent, copy));
    const frame = element('div', {class: 'block'},
      element('div', {class: 'bar'}, element('span', {}, language), copy));
    block.tabIndex = 0;
    block.replaceWith(frame);
    frame.append(block);
  }
  return fragment;
}

const toFragment = (tokens) => furnish(DOMPurify.sanitize(marked.parser(tokens), kPurify));

function renderMarkdown(text) {
  colours = true;
  return toFragment(marked.lexer(text));
}

// A text that grows. Blocks before the last one can no longer change, and are made once; the last
// one is made again, the less often the longer that takes, so that a fast model does not outrun the
// page.
class GrowingMarkdown {
  constructor(place) {
    this.live = element('div');
    this.place = place;
    this.place.replaceChildren(this.live);
    this.taken = 0;
    this.tail = '';
    this.next = 0;
  }

  // Whether it shows all of `text`, of which what was shown before is the beginning.
  update(text, now) {
    if (now < this.next || text.length === this.taken) return text.length === this.taken;
    // As marked counts the source.
    this.tail = (this.tail + text.slice(this.taken)).replace(/\r\n|\r/g, '\n')
      .replace(/^( *)(\t+)/gm, (_, spaces, tabs) => spaces + '    '.repeat(tabs.length));
    this.taken = text.length;
    const tokens = marked.lexer(this.tail);
    let last = tokens.length - 1;
    while (last > 0 && tokens[last].type === 'space') --last;
    if (last > 0) {
      colours = true;
      const done = tokens.slice(0, last);
      this.live.before(toFragment(done));
      this.tail = this.tail.slice(done.reduce((length, token) => length + token.raw.length, 0));
    }
    colours = false;
    this.live.replaceChildren(toFragment(tokens.slice(Math.max(last, 0))));
    this.next = now + Math.max(40, 4 * (performance.now() - now));
    return true;
  }

  finish(text) {
    this.place.replaceChildren(renderMarkdown(text));
  }
}
