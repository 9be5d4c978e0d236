// Text of an episode on the page: long ones cut, programs highlighted, the places marked where an answer stands.

const SHOWN = 4000;
const MARKED = 2000000;

/** Finds any of the answers in running text, whatever its case, punctuation and spacing; null when none is usable. */
function evidencePattern(answers) {
  const forms = answers
    .map((answer) => answer.toLowerCase().replace(/^(a|an|the)\s+/, "").match(/[\p{L}\p{N}]+/gu) || [])
    .filter((parts) => parts.length > 0 && parts.length <= 60 && parts.join("").length > 1 && !["yes", "no"].includes(parts.join("")))
    .map((parts) => parts.join("[^\\p{L}\\p{N}]{1,3}"));
  if (!forms.length) return null;
  forms.sort((a, b) => b.length - a.length);
  return new RegExp(`(?<![\\p{L}\\p{N}])(?:${forms.join("|")})(?![\\p{L}\\p{N}])`, "giu");
}

/** Where gold answers stand, and where a wrong answer was taken from: [start, end, class], in order, apart. */
function evidenceIn(text, { gold, given }) {
  const find = (pattern, name) => (pattern ? [...text.slice(0, MARKED).matchAll(pattern)].map((match) => [match.index, match.index + match[0].length, name]) : []);
  const found = [...find(gold, "gold"), ...find(given, "given")].sort((a, b) => a[0] - b[0] || b[1] - a[1]);
  let end = 0;
  return found.filter(([from, to]) => {
    if (from < end) return false;
    end = to;
    return true;
  });
}

/** What the policy itself wrote and an observation repeats, which is no evidence: queries, a program's lines in a traceback. */
function ownWords(text, turn) {
  const traced = turn.kind === "code" ? text.indexOf("Error:\nTraceback (most recent call last):\n") : -1;
  const lines = [...text.matchAll(/^Query: .*$/gm)].filter(([line]) => turn.calls.some((call) => line === `Query: ${call.arguments.query}`));
  return [...lines.map((line) => [line.index, line.index + line[0].length]), ...(traced >= 0 ? [[traced, text.length]] : [])];
}

/** The patterns of an episode. A wrong answer is looked for too: one sees which words misled. */
function patternsOf(episode) {
  const isWrong = episode.outcome === "wrong" && typeof episode.answer === "string";
  return { gold: evidencePattern(episode.question.answers), given: isWrong ? evidencePattern([episode.answer.slice(0, 400)]) : null };
}

/** Text with marks at the given ranges; a long text is cut, with a button that shows the rest. */
function longText(text, ranges, className, decorate) {
  const holder = h("div", { class: `text ${className}` });
  const show = (length) => {
    const shown = text.slice(0, length);
    replace(holder, decorate ? decorate(shown) : marked(shown, ranges));
    if (length < text.length) {
      const beyond = ranges.filter(([start, , name]) => start >= length && name === "gold").length;
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
  for (const [start, end, name] of ranges) {
    if (end > text.length) break;
    const title = name === "gold" ? "a gold answer" : "the answer that was given";
    parts.push(document.createTextNode(text.slice(from, start)), h("mark", { class: name, title }, text.slice(start, end)));
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
