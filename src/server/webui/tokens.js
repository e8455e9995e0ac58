// An answer token by token, each tinted by how likely it was; what else could have stood there is
// on a card, for the mouse and for the keyboard (arrows go from token to token).

const percent = (logprob) => `${(100 * Math.exp(logprob)).toFixed(1)} %`;
const visible = (token) => token.replaceAll('\n', '↵\n');

// 0: sure, to 4: less than 1 in 10.
function doubt(logprob) {
  const share = Math.exp(logprob);
  return share > 0.9 ? 0 : share > 0.6 ? 1 : share > 0.3 ? 2 : share > 0.1 ? 3 : 4;
}

function tokenText({token, logprob}) {
  return `${JSON.stringify(token)} ${percent(logprob)}`;
}

class TokenView {
  constructor(place) {
    this.place = place;
    this.shown = 0;
    this.tokens = [];
    place.setAttribute('role', 'group');
    place.setAttribute('aria-label', 'Tokens: arrow keys go from one to the next');
    place.replaceChildren();
    place.addEventListener('mouseover', (event) => this.show(event.target));
    place.addEventListener('mouseleave', () => this.hide());
    place.addEventListener('focusin', (event) => this.show(event.target));
    place.addEventListener('focusout', () => this.hide());
    place.addEventListener('keydown', (event) => this.move(event));
  }

  // `tokens` has those shown before at its beginning.
  update(tokens) {
    this.tokens = tokens;
    const added = document.createDocumentFragment();
    for (; this.shown < tokens.length; ++this.shown) {
      const token = tokens[this.shown];
      added.append(element('span', {
        class: `token doubt${doubt(token.logprob)}`, tabindex: this.shown ? '-1' : '0', role: 'img',
        'aria-label': tokenText(token),
      }, visible(token.token)));
    }
    this.place.append(added);
  }

  show(span) {
    const token = this.tokens[Array.prototype.indexOf.call(this.place.children, span)];
    if (!token) return;
    const card = byId('token-card');
    card.replaceChildren(element('strong', {}, tokenText(token)),
      element('ol', {}, ...token.others.map((other) => element('li', {}, tokenText(other)))));
    card.hidden = false;
    const at = span.getBoundingClientRect();
    const below = at.bottom + card.offsetHeight + 8 < innerHeight;
    card.style.left = `${Math.max(8, Math.min(at.left, innerWidth - card.offsetWidth - 8))}px`;
    card.style.top = `${below ? at.bottom + 4 : at.top - card.offsetHeight - 4}px`;
  }

  hide() {
    byId('token-card').hidden = true;
  }

  move(event) {
    const steps = {ArrowRight: 'nextElementSibling', ArrowLeft: 'previousElementSibling'};
    const next = event.target[steps[event.key]];
    if (!next) return;
    event.preventDefault();
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }
}
