// The page while a run goes on: asks what changed, fetches that, and draws anew without moving the reader.

const LIVE = { every: 2000, versions: block("versions"), failures: 0, changedAt: Date.now() };

async function json(address) {
  const response = await fetch(address, { cache: "no-store" });
  if (response.status !== 200) throw new Error(`${address}: ${response.status}`);
  return response.json();
}

async function poll() {
  try {
    const versions = await json("/versions.json");
    const changed = Object.keys(versions).filter((name) => LIVE.versions[name] !== versions[name]);
    if (changed.length) await take(changed, versions);
    LIVE.versions = versions;
    LIVE.failures = 0;
  } catch (error) {
    LIVE.failures += 1;
  }
  showLive();
  setTimeout(poll, document.hidden ? 4 * LIVE.every : LIVE.every);
}

/** Fetch blocks, all of one state of the run, and put them in the place of those that the page has. */
async function take(names, versions) {
  const values = await Promise.all(names.map((name) => json(`/blocks/${name}.json?version=${versions[name]}`)));
  const before = explorer.view ? { open: explorer.open, identities: identitiesOf(place.run) } : null;
  names.forEach((name, at) => fresh.set(name, values[at]));
  REPORT = block("overview");
  indexes.clear();
  chunks.clear();
  changes.clear();
  LIVE.changedAt = Date.now();
  if (place.view === "episodes" && before) followExplorer(before);
  else keepPlace(() => show(true));
}

/** The list grows around the reader; the open episode is drawn again only when its number has changed. */
function followExplorer({ open, identities }) {
  const { run } = place;
  const index = indexOf(run);
  const numbers = new Map(identitiesOf(run).map((identity, number) => [identity, number]));
  const menus = find("#choices");
  if (!menus.contains(document.activeElement)) replace(menus, choices(run, index));
  const now = open === undefined ? undefined : numbers.get(identities[open]);
  const box = find("#list");
  const offset = explorer.at * ROW - box.scrollTop;
  const said = explorer.words.trim().toLowerCase();
  const shown = candidatesOf(run).filter((number) => !said || holds(run, number, said));
  explorer.search += 1;
  explorer.shown = shown;
  explorer.at = Math.max(0, now === undefined ? explorer.at : shown.indexOf(now));
  tally(run, false);
  box.scrollTop = explorer.at * ROW - offset;
  drawRows();
  if (now === open && open !== undefined) return;
  if (now !== undefined && /^#\/\d+\/episodes\/\d+$/.test(location.hash)) remember(run, now);
  keepPlace(() => drawDetail(now === undefined ? shown[explorer.at] : now, true));
}

/** Draw anew, then put back what the reader had: scroll positions, open details, the focus. */
function keepPlace(draw) {
  const main = document.getElementById("main");
  const scrolled = () => [document.scrollingElement, ...main.querySelectorAll(".scroll, .columns, .detail, .list")];
  const before = scrolled().map((one) => [one.scrollLeft, one.scrollTop]);
  const open = [...main.querySelectorAll("details")].map((one) => one.open);
  const focusable = () => [...main.querySelectorAll("a, button, input, select, summary, [tabindex]")];
  const focused = focusable().indexOf(document.activeElement);
  draw();
  [...main.querySelectorAll("details")].forEach((one, at) => { one.open = open[at] || false; });
  scrolled().forEach((one, at) => { if (before[at]) [one.scrollLeft, one.scrollTop] = before[at]; });
  if (focused >= 0) focusable()[focused]?.focus({ preventScroll: true });
}

function showLive() {
  const isLost = LIVE.failures > 1;
  const seconds = Math.round((Date.now() - LIVE.changedAt) / 1000);
  const holder = document.getElementById("live");
  holder.className = isLost ? "is-lost" : "";
  const text = isLost ? "not served any more" : "live";
  holder.title = isLost ? "seekling report --watch has ended; the page shows what it had" : `last change ${duration(seconds)} ago`;
  if (holder.textContent !== text) replace(holder, h("i", { "aria-hidden": "true" }), text);
}

// After the first drawing, which is app.js's.
setTimeout(poll, 0);
