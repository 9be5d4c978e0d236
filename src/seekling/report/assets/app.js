// Which view is shown, for which run; the keys that work everywhere; light and dark.

const VIEWS = { overview: ["Overview", overviewView], analysis: ["Analysis", analysisView], episodes: ["Episodes", episodesView], recipe: ["Recipe", recipeView] };
const place = { run: 0, view: "overview" };

/** Addresses are #/RUN/VIEW, #/RUN/episodes/NUMBER or #/RUN/episodes/STAGE:OUTCOME; anything else is an overview. */
function readAddress() {
  const [, run, view, detail] = location.hash.split("/");
  const known = REPORT.runs[Number(run)] ? Number(run) : 0;
  return { run: known, view: VIEWS[view] ? view : "overview", detail: /^\d+$/.test(detail || "") ? Number(detail) : /^[\w-]+:\w*$/.test(detail || "") ? detail : null };
}

function remember(run, number) {
  history.replaceState(null, "", `#/${run}/episodes/${number}`);
}

function show(isAgain = false) {
  const { run, view, detail } = readAddress();
  Object.assign(place, { run, view });
  const [name, build] = VIEWS[view];
  document.title = `${REPORT.runs[run].headline[0][1]} · ${name} · seekling`;
  replace(
    document.getElementById("tabs"),
    Object.entries(VIEWS).map(([key, [label]]) => h("a", { href: `#/${run}/${key}`, "aria-current": key === view ? "page" : null }, label)),
  );
  const picker = document.querySelector("#run-slot select");
  if (picker) picker.value = String(run);
  const main = document.getElementById("main");
  main.className = `view-${view}`;
  replace(main, part("This view", build, run, detail));
  if (view === "episodes" && explorer.view && explorer.shown.length) { scrollToSelected(); drawRows(); }
  if (isAgain !== true) window.scrollTo(0, 0);
}

function runPicker() {
  if (REPORT.runs.length < 2) return;
  const choose = (event) => { location.hash = `#/${event.target.value}/${place.view}`; };
  document.getElementById("run-slot").append(
    h("select", { "aria-label": "Run", onchange: choose }, REPORT.runs.map((data, run) => h("option", { value: run, selected: run === readAddress().run }, data.name))),
  );
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
}

function switchTheme() {
  const isDark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  setTheme(isDark ? "light" : "dark");
  try { localStorage.setItem("seekling-theme", isDark ? "light" : "dark"); } catch { /* a page on disk may have no storage */ }
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.getElementById("keys").open) return;
  const isTyping = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName);
  let isDone = false;
  if (place.view === "episodes" && explorer.run === place.run && explorer.view) isDone = explorerKey(event);
  else if (event.key === "/" && !isTyping) { location.hash = `#/${place.run}/episodes`; isDone = true; }
  if (!isDone && event.key === "?" && !isTyping) { document.getElementById("keys").showModal(); isDone = true; }
  if (isDone) event.preventDefault();
}

try { if (localStorage.getItem("seekling-theme")) setTheme(localStorage.getItem("seekling-theme")); } catch { /* as above */ }
document.getElementById("theme").addEventListener("click", switchTheme);
document.getElementById("help").addEventListener("click", () => document.getElementById("keys").showModal());
document.addEventListener("keydown", onKey);
window.addEventListener("hashchange", show);
window.addEventListener("resize", () => { if (place.view === "episodes" && explorer.view && explorer.shown.length) drawRows(); });
runPicker();
show();
