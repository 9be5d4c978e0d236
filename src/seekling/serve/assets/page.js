// The web page of a served agent. Whatever comes from documents is put in as text, never as markup: no innerHTML here,
// and the page's Content-Security-Policy refuses it too.
'use strict';

const byId = (id) => document.getElementById(id);
const KEY = 'seekling-key';
const KEPT_MESSAGES = 16; // the server reads no more of a conversation
let model = '';
let said = [];
let running = null;

function element(name, text = '', className = '') {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

async function call(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { 'Content-Type': 'application/json', ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  const response = await fetch(path, { ...options, headers });
  if (response.ok) return response;
  let message = `the server answered ${response.status}`;
  try { message = (await response.json()).error.message; } catch { /* no JSON: the status will do */ }
  if (response.status === 401) {
    sessionStorage.removeItem(KEY);
    byId('key-form').hidden = false;
    byId('key').focus();
  }
  throw new Error(message);
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split('\n\n');
    rest = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, '');
      if (data === '[DONE]') return;
      yield JSON.parse(data);
    }
  }
}

function status(text, isError = false) {
  byId('status').textContent = text;
  byId('status').className = isError ? 'error' : '';
}

async function loadModel() {
  try {
    model = (await (await call('v1/models')).json()).data[0].id;
    byId('agent').textContent = model;
    byId('key-form').hidden = true;
    status('');
  } catch (error) { status(error.message, true); }
}

function showTurn(steps, turn) {
  for (const made of turn.calls) {
    const pages = made.pages.map((page) => page.title || page.document_id).join(', ');
    steps.append(element('li', `${made.tool} “${made.query}” → ${pages || made.error || 'nothing found'}`));
    status(`Looking for ${made.query}`);
  }
}

function showAnswer(article, id, text, details) {
  const answer = element('p', text, details.is_found ? 'answer' : 'answer missing');
  if (details.question !== article.firstChild.textContent) article.append(element('p', `Asked as: ${details.question}`, 'note'));
  article.append(answer);
  if (details.is_found && details.confidence !== null) {
    const promise = details.promise === null ? ', nothing promised: check the quotes' : '';
    article.append(element('p', `Confidence ${Math.round(details.confidence * 100)} %${promise}`, 'note'));
  }
  if (!details.is_found && details.answer) article.append(element('p', `Perhaps: ${details.answer}`, 'note'));
  for (const citation of details.citations) article.append(quoteOf(citation));
  article.append(feedbackOn(id));
  status(details.is_found ? `Answer: ${text}` : text);
}

function quoteOf(citation) {
  const block = element('blockquote');
  block.append(element('p', citation.quote));
  const row = element('div', '', 'row');
  const place = citation.section ? `${citation.title || citation.document_id}, ${citation.section}` : citation.title || citation.document_id;
  const open = element('button', `Show in “${place}”`);
  open.type = 'button';
  open.addEventListener('click', () => showPage(citation));
  row.append(open);
  const url = new URL(citation.link, location.href);
  if (/^https?:$/.test(url.protocol) && url.origin !== location.origin) {
    const link = element('a', 'Original');
    link.href = url.href;
    link.rel = 'noopener noreferrer';
    link.target = '_blank';
    row.append(link);
  }
  block.append(row);
  return block;
}

// Where a quote stands in a text: at its place, which counts code points, where that holds its words in their order (of
// a link the quote has the words alone); else, the page having changed, where its words are; [0, 0] when it does not.
function placeOf(text, { quote, span }) {
  if (span) {
    const points = Array.from(text);
    const start = points.slice(0, span[0]).join('').length;
    const there = points.slice(...span).join('');
    let at = 0;
    const holds = (word) => (at = there.indexOf(word, at) + word.length) >= word.length;
    if (quote.trim().split(/\s+/).every(holds)) return [start, start + there.length];
  }
  const words = quote.trim().split(/\s+/).map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, '\\$&'));
  const found = quote.trim() ? new RegExp(words.join('\\s+')).exec(text) : null;
  return found ? [found.index, found.index + found[0].length] : [0, 0];
}

async function showPage(citation) {
  try {
    const response = await call(`v1/pages/${encodeURIComponent(citation.document_id)}`);
    const page = await response.json();
    const [start, end] = placeOf(page.text, citation);
    const mark = element('mark', page.text.slice(start, end));
    byId('page-title').textContent = page.title || page.document_id;
    byId('page-note').textContent = end ? '' : 'The quoted sentence is not in the page as it is now.';
    byId('page-text').replaceChildren(page.text.slice(0, start), mark, page.text.slice(end));
    byId('page').showModal();
    byId('page-text').focus();
    mark.scrollIntoView({ block: 'center' });
  } catch (error) { status(error.message, true); }
}

function feedbackOn(id) {
  const form = element('form');
  const row = element('div', '', 'row');
  const note = element('p', '', 'note');
  note.setAttribute('role', 'status');
  const send = async (what, thanks) => {
    try {
      await call('v1/feedback', { method: 'POST', body: JSON.stringify({ id, ...what }) });
      note.textContent = thanks;
      return true;
    } catch (error) { note.textContent = error.message; return false; }
  };
  const thumbs = ['up', 'down'].map((which) => {
    const button = element('button', which === 'up' ? '👍 Right' : '👎 Wrong');
    button.type = 'button';
    button.setAttribute('aria-pressed', 'false');
    button.addEventListener('click', async () => {
      if (!await send({ thumbs: which }, 'Saved, thank you.')) return;
      for (const each of thumbs) each.setAttribute('aria-pressed', String(each === button));
      correction.hidden = which === 'up';
      if (which === 'down') input.focus();
    });
    return button;
  });
  const correction = element('div', '', 'row');
  const label = element('label', 'Right answer (“unknown” if the documents do not say)');
  const input = element('input');
  input.id = `right-${id}`;
  label.htmlFor = input.id;
  const save = element('button', 'Save correction');
  save.type = 'submit';
  correction.append(label, input, save);
  correction.hidden = true;
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    if (input.value.trim()) send({ thumbs: 'down', correction: input.value }, 'Correction saved, thank you.');
  });
  row.append(...thumbs);
  form.append(row, correction, note);
  return form;
}

async function ask(question) {
  const article = element('article');
  const steps = element('ol', '', 'steps');
  article.append(element('h2', question), steps);
  byId('talk').append(article);
  article.scrollIntoView({ block: 'nearest' });
  running = new AbortController();
  setBusy(true);
  status('Looking');
  const asked = { role: 'user', content: question };
  try {
    if (!model) await loadModel();
    const body = JSON.stringify({ model, stream: true, messages: [...said.slice(-KEPT_MESSAGES), asked] });
    const response = await call('v1/chat/completions', { method: 'POST', body, signal: running.signal });
    let isAnswered = false;
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      if (event.seekling?.turn) showTurn(steps, event.seekling.turn);
      else if (event.seekling) {
        const text = event.choices[0].delta.content;
        showAnswer(article, event.id, text, event.seekling);
        said.push(asked, { role: 'assistant', content: text });
        isAnswered = true;
      }
    }
    if (!isAnswered) throw new Error('the server ended without an answer');
  } catch (error) {
    const why = error.name === 'AbortError' ? 'Stopped.' : error.message;
    article.append(element('p', why, 'error'));
    status(why, true);
  } finally {
    running = null;
    setBusy(false);
    byId('question').focus();
  }
}

function setBusy(isBusy) {
  byId('ask').disabled = isBusy;
  byId('anew').disabled = isBusy;
  byId('stop').hidden = !isBusy;
}

byId('ask-form').addEventListener('submit', (event) => {
  event.preventDefault();
  const question = byId('question').value.trim();
  if (!question || running) return;
  byId('question').value = '';
  ask(question);
});
byId('question').addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    byId('ask-form').requestSubmit();
  }
});
byId('stop').addEventListener('click', () => running?.abort());
byId('anew').addEventListener('click', () => {
  said = [];
  byId('talk').replaceChildren();
  status('');
  byId('question').focus();
});
byId('key-form').addEventListener('submit', (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, byId('key').value.trim());
  byId('key').value = '';
  loadModel();
});
byId('page-close').addEventListener('click', () => byId('page').close());
loadModel();
