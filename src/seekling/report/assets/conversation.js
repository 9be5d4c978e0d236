// One episode as a conversation: what the policy wrote, what came back, and where in it the answer stands.

const KINDS = { search: "searched", code: "ran a program", call: "called a tool", answer: "answered", invalid: "unreadable action" };

function conversation(episode) {
  const patterns = patternsOf(episode);
  const support = new Set(episode.question.support);
  return h(
    "div",
    { class: paint.how === "mask" ? `conversation ${maskClass(episode)}` : "conversation" },
    h(
      "details",
      { class: "prompt" },
      h("summary", null, `Prompt, ${count(episode.prompt.length, "message")}`),
      episode.prompt.map((message) => [h("p", { class: "role" }, message.role), longText(message.text, [], "prompt-text")]),
    ),
    h("ol", { class: "turns" }, episode.turns.map((turn, at) => turnItem(turn, at, patterns, support))),
    ending(episode),
  );
}

function turnItem(turn, at, patterns, support) {
  const head = h(
    "p",
    { class: "turn-head" },
    h("b", null, `Turn ${at + 1}`),
    h("span", { class: turn.kind === "invalid" ? "kind bad" : "kind" }, KINDS[turn.kind] || turn.kind),
    turn.forced && h("span", { class: "kind" }, "forced answer"),
    turn.tokens[0] > 0 && h("span", { class: "tokens" }, count(turn.tokens[0], "token")),
  );
  const action = longText(turn.action, [], "action", painter(turn) || actionParts);
  return h("li", { class: "turn" }, head, action, turn.observation || turn.calls.length ? observation(turn, patterns, support) : null);
}

function observation(turn, patterns, support) {
  const text = turn.observation.trim();
  const own = ownWords(text, turn);
  const ranges = evidenceIn(text, patterns).filter(([from]) => !own.some(([start, end]) => from >= start && from < end));
  const golds = ranges.filter(([, , name]) => name === "gold").length;
  const found = turn.calls.flatMap((call) => call.documents).some((id) => support.has(id));
  return h(
    "div",
    { class: "observation" },
    h(
      "p",
      { class: "turn-head" },
      h("span", { class: "kind" }, "came back"),
      golds > 0 && h("span", { class: "chip chip-good" }, golds === 1 ? "holds the answer" : `holds the answer ×${golds}`),
      ranges.length > golds && h("span", { class: "chip chip-bad" }, "holds the wrong answer"),
      found && h("span", { class: "chip chip-good" }, "gold page"),
      turn.cut && h("span", { class: "chip" }, "cut to its budget"),
      turn.tokens[1] > 0 && h("span", { class: "tokens" }, count(turn.tokens[1], "token")),
    ),
    turn.calls.map((call) => callLine(call, support, patterns)),
    text && longText(text, ranges, "observed"),
  );
}

function callLine(call, support, patterns) {
  const said = Object.values(call.arguments).map((value) => (typeof value === "string" ? value : JSON.stringify(value)));
  return h(
    "div",
    { class: "call" },
    h("p", null, h("code", null, `${call.name}(${cut(said.join(", "), 200)})`), call.documents.map((id) => h("span", { class: support.has(id) ? "chip chip-good" : "chip" }, cut(id, 40)))),
    call.error && h("p", { class: "call-error" }, cut(call.error, 4000)),
    call.result && h("details", null, h("summary", null, "what the call returned"), longText(call.result, evidenceIn(call.result, patterns), "observed")),
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
