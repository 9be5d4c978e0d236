// The data blocks of the page. The overview is parsed at the start, the index of a run when it is shown, and the texts of
// its episodes chunk by chunk when one is opened or searched.

/** Blocks that were fetched since the page was loaded, where it is served while a run goes on. */
const fresh = new Map();

let REPORT = block("overview");
const STAGES = {
  expert: { name: "Expert", long: "Scripted expert", tone: "expert" },
  sft: { name: "SFT data", long: "Training data of SFT", tone: "sft" },
  rl: { name: "RL training", long: "Sampled during RL", tone: "train" },
  "eval-base": { name: "base", long: "Base model, evaluation", tone: "base" },
  "eval-sft": { name: "SFT", long: "After SFT, evaluation", tone: "sft" },
  "eval-rl": { name: "SFT+RL", long: "After SFT and RL, evaluation", tone: "rl" },
};
const OUTCOMES = {
  right: { name: "right", sign: "✓" },
  wrong: { name: "wrong", sign: "✗" },
  none: { name: "no answer", sign: "∅" },
  failed: { name: "failed", sign: "!" },
  unscored: { name: "unscored", sign: "·" },
};

const BEFORE = { "eval-sft": "eval-base", "eval-rl": "eval-sft" };

function block(id) {
  if (fresh.has(id)) return fresh.get(id);
  const element = document.getElementById(id);
  return element ? JSON.parse(element.textContent) : null;
}

function stageOf(stage) {
  return (Object.hasOwn(STAGES, stage) && STAGES[stage]) || { name: stage.replace(/^eval-/, "") || "(none)", long: stage, tone: "other" };
}

const indexes = new Map();
const chunks = new Map();

/** The index of a run's episodes: columns of equal length, stages and questions. */
function indexOf(run) {
  if (!indexes.has(run)) {
    const index = block(`index-${run}`);
    let from = 0;
    if (index) index.starts = index.chunks.map(([, size]) => (from += size) - size);
    indexes.set(run, index);
  }
  return indexes.get(run);
}

/** The chunk that holds an episode, and its place there. */
function chunkOf(run, number) {
  const { chunks: names, starts } = indexOf(run);
  let [low, high] = [0, starts.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (starts[middle] <= number) low = middle;
    else high = middle - 1;
  }
  return { chunk: chunkAt(run, names[low][0]), at: number - starts[low] };
}

function chunkAt(run, name) {
  const key = `${run}-${name}`;
  if (!chunks.has(key)) chunks.set(key, block(`episodes-${key}`));
  return chunks.get(key);
}

/** One episode with its texts and its row of the index. */
function episodeAt(run, number) {
  const { chunk, at } = chunkOf(run, number);
  const packed = chunk.episodes[at];
  const text = (string) => (string === null ? "" : chunk.strings[string]);
  return {
    ...packed,
    ...rowAt(run, number),
    prompt: packed.prompt.map(([role, string]) => ({ role, text: text(string) })),
    turns: packed.turns.map((turn) => ({
      ...turn,
      action: text(turn.action),
      observation: text(turn.observation),
      calls: turn.calls.map((call) => ({ ...call, result: text(call.result) })),
    })),
  };
}

function rowAt(run, number) {
  const index = indexOf(run);
  const column = (name) => index.columns[name][number];
  return {
    number,
    stage: index.stages[column("stage")],
    questionNumber: column("question"),
    question: index.questions[column("question")],
    outcome: column("outcome"),
    shortAnswer: column("answer"),
    step: column("step"),
    reward: column("reward"),
    advantage: column("advantage"),
    searches: column("searches"),
    tokens: column("tokens"),
    behaviours: index.behaviours.filter((name, at) => column("behaviours") & (1 << at)),
    cause: index.causes[column("cause")],
  };
}

/** What makes an episode the same one after the run has grown: numbers shift when an earlier file does. */
function identitiesOf(run) {
  const index = indexOf(run);
  const { columns, questions, stages } = index;
  const seen = new Map();
  return columns.stage.map((stage, number) => {
    const { source, id, question } = questions[columns.question[number]];
    const key = JSON.stringify([stages[stage], columns.step[number], source, id, question]);
    seen.set(key, (seen.get(key) || 0) + 1);
    return `${key} ${seen.get(key)}`;
  });
}

/** A name such as not_retrieved in words. */
function spoken(name) {
  return name.replace(/_/g, " ");
}

const changes = new Map();

/** Per episode of an evaluation: "won" or "lost" against the evaluation before it, else "". */
function changesOf(run) {
  if (changes.has(run)) return changes.get(run);
  const { columns, stages, count: total } = indexOf(run);
  const byQuestion = new Map();
  for (let number = 0; number < total; number += 1) byQuestion.set(`${stages[columns.stage[number]]} ${columns.question[number]}`, columns.outcome[number]);
  const scored = ["right", "wrong", "none"];
  const found = columns.outcome.map((now, number) => {
    const before = byQuestion.get(`${BEFORE[stages[columns.stage[number]]]} ${columns.question[number]}`);
    if (!scored.includes(before) || !scored.includes(now) || (before === "right") === (now === "right")) return "";
    return now === "right" ? "won" : "lost";
  });
  changes.set(run, found);
  return found;
}

/** Everything the episode's turns say, in lower case: what a text search looks through. */
function searchTextAt(run, number) {
  const { chunk, at } = chunkOf(run, number);
  const parts = [];
  for (const turn of chunk.episodes[at].turns) {
    parts.push(chunk.strings[turn.action]);
    if (turn.observation !== null) parts.push(chunk.strings[turn.observation]);
  }
  return parts.join("\n").toLowerCase();
}
