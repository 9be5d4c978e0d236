// Building blocks of the page. Text reaches the document through text nodes only: no function here, and none elsewhere,
// turns a string into markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element: h("p", {class: "note", onclick: f}, "text", child, [more], null). */
function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(element, child);
    else element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Put children, which may be arrays or nothing, in the place of what an element holds. */
function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

/** 0.4123 -> "41.2 %"; an en dash for nothing. */
function percent(value, digits = 1) {
  return isNumber(value) ? `${(100 * value).toFixed(digits)}\u00a0%` : "–";
}

function points(value) {
  return isNumber(value) ? `${value < 0 ? "−" : "+"}${Math.abs(100 * value).toFixed(1)}` : "–";
}

/** A number with as many digits as help: 1234 -> "1,234", 0.00123 -> "0.00123", 1e-7 -> "1e-7". */
function plain(value, digits = 3) {
  if (!isNumber(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e7) return value.toExponential(1).replace("e+", "e").replace(".0e", "e");
  if (Number.isInteger(value)) return value.toLocaleString("en");
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(digits)));
}

function count(number, word, plural = `${word}s`) {
  if (!isNumber(number)) return `– ${plural}`;
  return `${number.toLocaleString("en")} ${number === 1 ? word : plural}`;
}

function duration(seconds) {
  if (!isNumber(seconds)) return "–";
  if (seconds < 60) return `${plain(seconds, 2)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** A part of a page, or a line that says why it could not be drawn: one odd file must not blank the rest. */
function part(name, build, ...inputs) {
  try {
    return build(...inputs);
  } catch (error) {
    return h("p", { class: "notice", role: "note" }, `${name} could not be drawn: ${error.message}.`);
  }
}

function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

function isObject(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

function cut(text, length) {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}
