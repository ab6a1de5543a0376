// Helpers that create elements. They never parse HTML text, so text of users cannot run as code.

const SVG = "http://www.w3.org/2000/svg";

// Create an HTML element: element("button", { class: "primary", onclick: go, "aria-label": "Go" }, "Go")
export function element(tag, properties = {}, ...children) {
  return setUp(document.createElement(tag), properties, children);
}

export function svgElement(tag, properties = {}, ...children) {
  return setUp(document.createElementNS(SVG, tag), properties, children);
}

function setUp(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, part] of Object.entries(value)) node.style.setProperty(key, part);
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "value" || name === "checked" || name === "disabled") node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

// An icon drawn by one path in a 24 x 24 square.
export function icon(path) {
  return svgElement("svg", { viewBox: "0 0 24 24", "aria-hidden": "true", class: "icon-path" }, svgElement("path", { d: path }));
}

export const ICONS = {
  check: "m5 13 4.5 4.5L19 7",
  eye: "M2 12s4-7 10-7 10 7 10 7-4 7-10 7S2 12 2 12Zm7 0a3 3 0 1 0 6 0 3 3 0 0 0-6 0",
  eyeClosed: "M3 3l18 18M10.6 5.1A10 10 0 0 1 12 5c6 0 10 7 10 7a17 17 0 0 1-3.2 3.9M6.3 6.6A17 17 0 0 0 2 12s4 7 10 7a10 10 0 0 0 4.6-1.1M9.9 9.9a3 3 0 0 0 4.2 4.2",
  previous: "m15 5-7 7 7 7",
  next: "m9 5 7 7-7 7",
  up: "m5 15 7-7 7 7",
  cross: "M6 6l12 12M18 6 6 18",
  mirror: "M12 3v18M8 8l-5 4 5 4M16 8l5 4-5 4",
  select: "M5 3l14 8-6 1.5L10 19 5 3Z",
  move: "M12 3v18M3 12h18M9 6l3-3 3 3M9 18l3 3 3-3M6 9l-3 3 3 3M18 9l3 3-3 3",
  connect: "M6 18 18 6M4 18a2 2 0 1 0 4 0 2 2 0 1 0-4 0M16 6a2 2 0 1 0 4 0 2 2 0 1 0-4 0",
};

// Black or white, whichever has more contrast on a background color (relative luminance of WCAG).
export function textColorOn(color) {
  const parts = [1, 3, 5].map((start) => parseInt(color.slice(start, start + 2), 16) / 255);
  const [red, green, blue] = parts.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000" : "#fff";
}

// The round badge of a landmark: its number on its color.
export function badge(index, color, small = false) {
  return element("span", { class: small ? "badge small" : "badge", "aria-hidden": "true",
    style: { background: color, color: textColorOn(color) } }, String(index));
}

// The badge of an untrusted landmark: its number in a ring of its color.
export function hollowBadge(index, color) {
  return element("span", { class: "badge hollow", "aria-hidden": "true", style: { "border-color": color } }, String(index));
}
