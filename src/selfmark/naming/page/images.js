// One image at a time, large, with its landmarks; below it the others.

import { drawn, element, icon, ICONS, inkOn } from "./dom.js";
import { get, isHidden, join, look, picture, state, trouble, watch } from "./store.js";

const STRIP = 24; // images asked for at a time
const TOOLS = [["choose", "Choose", "V", ICONS.choose], ["connect", "Connect", "C", ICONS.connect], ["pair", "Pair", "M", ICONS.mirror]];
const HINTS = {
  choose: "Choose a point to name it.",
  connect: "Choose two points, or draw a line between them, to connect or disconnect them.",
  pair: "Choose two points that change places in a mirrored image; one point twice if it stays.",
};

const known = new Map(); // image entries by row
let photo, overlay, caption, strip, number, tools, hint;
let finger = null; // where a pointer went down, and on which landmark

export function startImages() {
  build(document.getElementById("view-images"));
  watch((changed) => {
    if (changed.has("row") || changed.has("run")) show();
    else if (changed.has("said") || changed.has("selected") || changed.has("tool") || changed.has("first")) draw();
    if (changed.has("view") && state.view === "images") draw();
    if (changed.has("tool") || changed.has("run")) markTools();
  });
  new ResizeObserver(draw).observe(photo);
}

function build(place) {
  tools = element("div", { class: "segments", role: "group", "aria-label": "Tool" }, TOOLS.map(([tool, name, key, path]) =>
    element("button", { data: { tool }, title: `${name} (${key})`, onclick: () => look({ tool, first: null }) }, icon(path), name)));
  photo = element("img", { class: "picture", alt: "", draggable: "false", onload: draw });
  overlay = drawn("svg", { class: "overlay", role: "img", "aria-label": "Landmarks in this image" });
  overlay.addEventListener("pointerdown", down);
  overlay.addEventListener("pointermove", move);
  overlay.addEventListener("pointerup", up);
  overlay.addEventListener("pointercancel", () => { finger = null; draw(); });
  caption = element("span", { class: "file" });
  number = element("input", { type: "number", id: "row", min: 1, "aria-label": "Number of the image",
    onchange: (event) => look({ row: bounded(Number(event.target.value) - 1) }) });
  strip = element("div", { class: "strip", role: "group", "aria-label": "Images" });
  hint = element("p", { class: "hint soft" });
  place.append(
    element("div", { class: "toolbar" }, tools, hint),
    element("div", { class: "stage" }, arrow(-1, "Image before", ICONS.previous), element("div", { class: "frame" }, photo, overlay),
      arrow(1, "Image after", ICONS.next)),
    element("p", { class: "caption" }, number, element("span", { class: "soft", id: "of" }), caption),
    strip);
}

function arrow(by, name, path) {
  return element("button", { class: "icon arrow", "aria-label": name, title: name, onclick: () => turn(by) }, icon(path));
}

const bounded = (row) => Math.max(0, Math.min(state.run.images - 1, Number.isFinite(row) ? Math.round(row) : 0));
export const turn = (by) => look({ row: bounded(state.row + by) });

async function entries(start) {
  const missing = [...Array(STRIP).keys()].some((at) => start + at < state.run.images && !known.has(start + at));
  if (!missing) return;
  if (known.size > 50 * STRIP) known.clear();
  for (const image of (await get(`/api/images?start=${start}&most=${STRIP}`)).images) known.set(image.row, image);
}

async function show() {
  const row = state.row, start = Math.floor(row / STRIP) * STRIP;
  try {
    await entries(start);
  } catch (error) {
    trouble(error.message);
    return;
  }
  if (row !== state.row) return; // already elsewhere
  const image = known.get(row);
  photo.src = picture(row, "large");
  photo.alt = `Image ${row + 1}, ${image.name}`;
  photo.style.setProperty("--ratio", `${image.view[2]} / ${image.view[3]}`);
  for (const part of [photo, overlay]) part.style.setProperty("--shape", String(image.view[2] / image.view[3]));
  caption.textContent = image.name.split("/").slice(-2).join("/");
  caption.title = image.name;
  number.value = row + 1;
  number.max = state.run.images;
  document.getElementById("of").textContent = `of ${state.run.images.toLocaleString("en")}`;
  fillStrip(start);
  draw();
}

function fillStrip(start) {
  if (strip.dataset.start !== String(start)) {
    strip.dataset.start = start;
    const rows = [...Array(STRIP).keys()].map((at) => start + at).filter((row) => row < state.run.images);
    strip.replaceChildren(...rows.map((row) => element("button", { class: "tile", data: { row }, "aria-label": `Image ${row + 1}`,
      onclick: () => look({ row }) }, element("img", { src: picture(row, "tile"), alt: "", loading: "lazy" }))));
  }
  for (const tile of strip.children) {
    const current = Number(tile.dataset.row) === state.row;
    tile.setAttribute("aria-current", String(current));
    if (current) strip.scrollLeft = tile.offsetLeft - strip.offsetLeft - (strip.clientWidth - tile.clientWidth) / 2;
  }
}

function markTools() {
  for (const button of tools.children) button.setAttribute("aria-pressed", String(button.dataset.tool === state.tool));
  hint.textContent = HINTS[state.tool];
  overlay.classList.toggle("joining", state.tool !== "choose");
}

// --- drawing -------------------------------------------------------------------------------------------

function draw() {
  const image = known.get(state.row);
  if (!image || !state.said || !overlay.clientWidth) return;
  const [left, top, width, height] = image.view;
  overlay.setAttribute("viewBox", `${left} ${top} ${width} ${height}`);
  const unit = width / overlay.clientWidth; // one pixel of the screen
  const size = overlay.clientWidth < 480 ? 8.5 : 11;
  const seen = [...state.said.names.keys()].filter((index) => !isHidden(index));
  const order = [...seen.filter((index) => index !== state.selected), ...seen.filter((index) => index === state.selected)];
  overlay.replaceChildren(
    ...state.said.skeleton.filter((edge) => !edge.some(isHidden)).flatMap((edge) => line(image.xy[edge[0]], image.xy[edge[1]], unit)),
    ...pairLines(image, seen, unit),
    ...(finger && finger.landmark !== null && finger.to ? line(image.xy[finger.landmark], finger.to, unit, "draft") : []),
    ...order.map((index) => point(index, image, unit, size)));
}

function line([ax, ay], [bx, by], unit, kind = "bone") {
  const ends = { x1: ax, y1: ay, x2: bx, y2: by };
  return [drawn("line", { ...ends, class: `${kind} under`, "stroke-width": 5 * unit }),
    drawn("line", { ...ends, class: kind, "stroke-width": 2.4 * unit })];
}

// While pairing, partners are seen together.
function pairLines(image, seen, unit) {
  if (state.tool !== "pair") return [];
  const pairs = seen.filter((index) => state.said.mirror[index] > index && seen.includes(state.said.mirror[index]));
  return pairs.flatMap((index) => line(image.xy[index], image.xy[state.said.mirror[index]], unit, "twin-line"));
}

function point(index, image, unit, size) {
  const [x, y] = image.xy[index], color = state.said.colors[index];
  const chosen = index === state.selected, begun = index === state.first;
  const radius = (chosen ? size * 1.25 : size) * unit;
  return drawn("g", { class: `point${chosen ? " chosen" : ""}${begun ? " begun" : ""}`, "data-landmark": index },
    drawn("title", {}, `${index} · ${state.said.names[index]}, score ${image.score[index].toFixed(2)}`),
    drawn("circle", { cx: x, cy: y, r: Math.max(radius, 20 * unit), class: "reach" }),
    chosen || begun ? drawn("circle", { cx: x, cy: y, r: radius + 4.5 * unit, class: "halo", "stroke-width": 2.5 * unit }) : null,
    drawn("circle", { cx: x, cy: y, r: radius + 2 * unit, class: "rim" }),
    drawn("circle", { cx: x, cy: y, r: radius, fill: color, stroke: "#fff", "stroke-width": 1.6 * unit }),
    drawn("text", { x, y: y + size * 0.36 * unit, "font-size": size * 1.05 * unit, fill: inkOn(color) }, String(index)),
    chosen ? drawn("text", { x, y: y - radius - 7 * unit, class: "label", "font-size": 14 * unit, "stroke-width": 4 * unit },
      state.said.names[index]) : null);
}

// --- pointing ------------------------------------------------------------------------------------------

// The landmark nearest to a place on the screen, if near enough for a finger.
function under(event) {
  const image = known.get(state.row), box = overlay.getBoundingClientRect();
  if (!image) return null;
  const scale = box.width / image.view[2];
  let best = null, least = event.pointerType === "touch" ? 30 : 20;
  for (const [index, [x, y]] of image.xy.entries()) {
    if (isHidden(index)) continue;
    const away = Math.hypot(box.left + (x - image.view[0]) * scale - event.clientX, box.top + (y - image.view[1]) * scale - event.clientY);
    if (away < least) [best, least] = [index, away];
  }
  return best;
}

function down(event) {
  if (event.button > 0) return;
  finger = { x: event.clientX, y: event.clientY, landmark: under(event), to: null };
  if (state.tool !== "choose" && finger.landmark !== null) overlay.setPointerCapture(event.pointerId);
}

function move(event) {
  if (!finger || finger.landmark === null || state.tool === "choose") return;
  if (!finger.to && Math.hypot(event.clientX - finger.x, event.clientY - finger.y) < 8) return;
  const image = known.get(state.row), box = overlay.getBoundingClientRect(), scale = image.view[2] / box.width;
  finger.to = [image.view[0] + (event.clientX - box.left) * scale, image.view[1] + (event.clientY - box.top) * scale];
  draw();
}

function up(event) {
  if (!finger) return;
  const { x, y, landmark, to } = finger;
  finger = null;
  if (state.tool === "choose") {
    const along = event.clientX - x;
    if (event.pointerType === "touch" && Math.abs(along) > 60 && Math.abs(event.clientY - y) < 60) turn(along < 0 ? 1 : -1);
    else if (landmark !== null) look({ selected: landmark });
    return;
  }
  const there = under(event);
  if (to) { // a line was drawn
    if (landmark !== null && there !== null && there !== landmark) join(state.tool, landmark, there);
    look({ first: null });
  } else if (there === null) look({ first: null });
  else if (state.first === null) look({ first: there, selected: there });
  else {
    join(state.tool, state.first, there);
    look({ first: null, selected: there });
  }
}
