// One episode as a conversation: what the policy wrote, what came back, and where in it the answer stands.

const SHOWN = 4000;
const MARKED = 2000000;

/** Finds any gold answer in running text, whatever its case, punctuation and spacing; null when no gold is usable. */
function evidencePattern(answers) {
  const forms = answers
    .map((answer) => answer.toLowerCase().replace(/^(a|an|the)\s+/, "").match(/[\p{L}\p{N}]+/gu) || [])
    .filter((words) => words.length > 0 && words.join("").length > 1)
    .map((words) => words.map((word) => word.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&")).join("[^\\p{L}\\p{N}]{1,3}"));
  if (!forms.length) return null;
  forms.sort((a, b) => b.length - a.length);
  return new RegExp(`(?<![\\p{L}\\p{N}])(?:${forms.join("|")})(?![\\p{L}\\p{N}])`, "giu");
}

function evidenceIn(text, pattern) {
  return pattern ? [...text.slice(0, MARKED).matchAll(pattern)].map((match) => [match.index, match.index + match[0].length]) : [];
}

/** Text with marks at the given ranges; a long text is cut, with a button that shows the rest. */
function longText(text, ranges, className, decorate) {
  const holder = h("div", { class: `text ${className}` });
  const show = (length) => {
    const shown = text.slice(0, length);
    replace(holder, decorate ? decorate(shown) : marked(shown, ranges));
    if (length < text.length) {
      const beyond = ranges.filter(([start]) => start >= length).length;
      const more = `Show all ${text.length.toLocaleString("en")} characters${beyond ? `, with ${beyond} more of the answer` : ""}`;
      holder.append(h("button", { type: "button", class: "more-text", onclick: () => show(text.length) }, more));
    }
  };
  show(text.length > SHOWN * 1.5 ? SHOWN : text.length);
  return holder;
}

function marked(text, ranges) {
  const parts = [];
  let from = 0;
  for (const [start, end] of ranges) {
    if (end > text.length) break;
    parts.push(document.createTextNode(text.slice(from, start)), h("mark", null, text.slice(start, end)));
    from = end;
  }
  parts.push(document.createTextNode(text.slice(from)));
  return parts;
}

const PIECES = /(<think>[\s\S]*?(?:<\/think>|$))|(<\/?(?:search|answer|tool_call|information)>)|(```[\s\S]*?(?:```|$))/g;

/** A policy's text: thoughts quieter, tags quieter still, programs highlighted. */
function actionParts(text) {
  const parts = [];
  let from = 0;
  for (const match of text.matchAll(PIECES)) {
    if (match.index > from) parts.push(document.createTextNode(text.slice(from, match.index)));
    if (match[1]) parts.push(h("span", { class: "thought" }, match[1]));
    else if (match[2]) parts.push(h("span", { class: "tag" }, match[2]));
    else parts.push(h("span", { class: "program" }, codeParts(match[3])));
    from = match.index + match[0].length;
  }
  if (from < text.length) parts.push(document.createTextNode(text.slice(from)));
  return parts;
}

const CODE = /(#[^\n]*)|("""[\s\S]*?(?:"""|$)|'''[\s\S]*?(?:'''|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?)|\b(and|as|break|class|continue|def|elif|else|except|False|for|from|if|import|in|is|lambda|None|not|or|pass|return|True|try|while|with)\b|\b([A-Za-z_]\w*)(?=\()/g;

function codeParts(text) {
  const parts = [];
  let from = 0;
  for (const match of text.matchAll(CODE)) {
    const name = match[1] ? "comment" : match[2] ? "string" : match[3] ? "keyword" : "call";
    parts.push(document.createTextNode(text.slice(from, match.index)), h("span", { class: `code-${name}` }, match[0]));
    from = match.index + match[0].length;
  }
  parts.push(document.createTextNode(text.slice(from)));
  return parts;
}

const KINDS = { search: "searched", code: "ran a program", call: "called a tool", answer: "answered", invalid: "unreadable action" };

function conversation(episode) {
  const pattern = evidencePattern(episode.question.answers);
  const support = new Set(episode.question.support);
  return h(
    "div",
    { class: "conversation" },
    h(
      "details",
      { class: "prompt" },
      h("summary", null, `Prompt, ${count(episode.prompt.length, "message")}`),
      episode.prompt.map((message) => [h("p", { class: "role" }, message.role), longText(message.text, [], "prompt-text")]),
    ),
    h("ol", { class: "turns" }, episode.turns.map((turn, at) => turnItem(turn, at, pattern, support))),
    ending(episode),
  );
}

function turnItem(turn, at, pattern, support) {
  const head = h(
    "p",
    { class: "turn-head" },
    h("b", null, `Turn ${at + 1}`),
    h("span", { class: turn.kind === "invalid" ? "kind bad" : "kind" }, KINDS[turn.kind] || turn.kind),
    turn.forced && h("span", { class: "kind" }, "forced answer"),
    turn.tokens[0] > 0 && h("span", { class: "tokens" }, count(turn.tokens[0], "token")),
  );
  const action = longText(turn.action, [], "action", actionParts);
  return h("li", { class: "turn" }, head, action, turn.observation || turn.calls.length ? observation(turn, pattern, support) : null);
}

function observation(turn, pattern, support) {
  const ranges = evidenceIn(turn.observation, pattern);
  const found = turn.calls.flatMap((call) => call.documents).some((id) => support.has(id));
  return h(
    "div",
    { class: "observation" },
    h(
      "p",
      { class: "turn-head" },
      h("span", { class: "kind" }, "came back"),
      ranges.length > 0 && h("span", { class: "chip chip-good" }, ranges.length === 1 ? "holds the answer" : `holds the answer ×${ranges.length}`),
      found && h("span", { class: "chip chip-good" }, "gold page"),
      turn.cut && h("span", { class: "chip" }, "cut to its budget"),
      turn.tokens[1] > 0 && h("span", { class: "tokens" }, count(turn.tokens[1], "token")),
    ),
    turn.calls.map((call) => callLine(call, support)),
    turn.observation && longText(turn.observation.trim(), evidenceIn(turn.observation.trim(), pattern), "observed"),
  );
}

function callLine(call, support) {
  const words = Object.values(call.arguments).map((value) => (typeof value === "string" ? value : JSON.stringify(value)));
  return h(
    "div",
    { class: "call" },
    h("p", null, h("code", null, `${call.name}(${cut(words.join(", "), 200)})`), call.documents.map((id) => h("span", { class: support.has(id) ? "chip chip-good" : "chip" }, cut(id, 40)))),
    call.error && h("p", { class: "call-error" }, call.error),
    call.result && h("details", null, h("summary", null, "what the call returned"), longText(call.result, [], "observed")),
  );
}

function ending(episode) {
  const reasons = {
    answered: "answered", max_turns: "ran out of turns", max_tokens: "ran out of tokens", parse_error: "ended on an unreadable action",
    tool_stop: "ended by a tool", infra_failure: "infrastructure failure, left out of every score",
  };
  const parts = [reasons[episode.stop] || episode.stop, isNumber(episode.seconds) && episode.seconds > 0 && duration(episode.seconds), episode.temperature === 0 ? "greedy" : `temperature ${plain(episode.temperature)}`];
  if (episode.stage === "rl") parts.push(`policy version ${episode.policy}`);
  return h("p", { class: "ending" }, parts.filter(Boolean).join(" · "), episode.failure && h("span", { class: "call-error" }, ` ${cut(episode.failure, 2000)}`));
}

function outcomeBadge(outcome) {
  const { name, sign } = OUTCOMES[outcome];
  return h("span", { class: `badge badge-${outcome}` }, h("span", { "aria-hidden": "true" }, sign), ` ${name}`);
}
