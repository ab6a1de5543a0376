// One large image with its landmarks, and a strip of thumbnails below it.

import { element, icon, ICONS, svgElement, textColorOn } from "./dom.js";
import { startCorrectBar } from "./correct.js";
import { separate } from "./separate.js";
import { applyTool, chooseLandmark, correctionOf, edit, get, imageUrl, isHidden, isTrustKnown, isUntrusted, numberedName, showError, state, subscribe,
  trustText, update } from "./store.js";

const IMAGES_PER_REQUEST = 24; // also the length of the strip
const TOOLS = [["select", "Select", "V", ICONS.select], ["connect", "Connect", "C", ICONS.connect], ["pair", "Pair", "M", ICONS.mirror],
  ["correct", "Correct", "D", ICONS.move]];
const MARK_RADIUS = 11; // screen pixels
const HINTS = {
  select: "Click a point to name it.",
  connect: "Click two points or names, or draw a line between two points. Do it again to remove the line.",
  correct: "Drag points to where they belong. If all points of an image are right, press Enter.",
  pair: "Click two points or names that swap sides in a mirrored image. If a point is on the midline, click it twice.",
};
const NEXT_HINTS = {
  connect: (first) => `${first} is chosen. Click the point or name to connect it to.`,
  pair: (first) => `${first} is chosen. Click the point or name that it becomes in a mirrored image; click it again if it is on the midline.`,
};

const imageCache = new Map(); // image data by row
let marks = []; // [x, y] where each landmark is drawn, in pixels of the image; null for hidden landmarks
let photo, overlay, caption, strip, rowInput, toolButtons, hint;
// The current press of the pointer, or null. `x`, `y`: where it began on the screen. `landmark`: the landmark there; null if none is close.
// `to`: where the pointer is now, in the image; null before it moves. With the tool Correct, the landmark is dragged from `from` to `to`.
let press = null;
const INTERRUPTED = "The browser interrupted the drag, so nothing was moved. Drag the point again.";

export function startImages() {
  build(document.getElementById("view-images"));
  subscribe((changed) => {
    if (changed.has("row") || changed.has("run")) showImage();
    else if (changed.has("card") && imageCache.has(state.row)) { draw(); renderStrip(Number(strip.dataset.start)); }
    else if (changed.has("selected") || changed.has("tool") || changed.has("first")) draw();
    if (changed.has("view") && state.view === "images") draw();
    if (state.card && (changed.has("tool") || changed.has("run") || changed.has("first") || changed.has("message"))) showTool();
  });
  new ResizeObserver(draw).observe(photo);
}

function build(view) {
  toolButtons = element("div", { class: "segments", role: "group", "aria-label": "Tool" }, TOOLS.map(([tool, name, key, path]) =>
    element("button", { data: { tool }, title: `${name} (${key})`, onclick: () => update({ tool, first: null, message: "" }) }, icon(path), name)));
  photo = element("img", { class: "photo", alt: "", draggable: "false", onload: draw });
  overlay = svgElement("svg", { class: "overlay", role: "img", "aria-label": "Landmarks in this image" });
  overlay.addEventListener("pointerdown", onPointerDown);
  overlay.addEventListener("pointermove", onPointerMove);
  overlay.addEventListener("pointerup", onPointerUp);
  overlay.addEventListener("pointercancel", () => { if (press?.to) update({ message: INTERRUPTED }); press = null; draw(); });
  overlay.addEventListener("dragstart", (event) => event.preventDefault()); // Otherwise the browser may drag selected text.
  caption = element("span", { class: "file" });
  rowInput = element("input", { type: "number", id: "row", min: 1, "aria-label": "Image number",
    onchange: (event) => update({ row: clampRow(Number(event.target.value) - 1) }) });
  strip = element("div", { class: "strip", role: "group", "aria-label": "Images" });
  hint = element("p", { class: "hint muted", id: "hint", role: "status" });
  view.append(
    element("div", { class: "toolbar" }, toolButtons, hint),
    startCorrectBar(),
    element("div", { class: "stage" }, arrow(-1, "Previous image", ICONS.previous), element("div", { class: "frame" }, photo, overlay),
      arrow(1, "Next image", ICONS.next)),
    element("p", { class: "caption" }, rowInput, element("span", { class: "muted", id: "total" }), caption),
    strip);
}

function arrow(step, name, path) {
  return element("button", { class: "icon arrow", "aria-label": name, title: name, onclick: () => stepImage(step) }, icon(path));
}

const clampRow = (row) => Math.max(0, Math.min(state.run.images - 1, Number.isFinite(row) ? Math.round(row) : 0));
export const stepImage = (step) => update({ row: clampRow(state.row + step) });

async function loadImages(start) {
  const rows = [...Array(IMAGES_PER_REQUEST).keys()].map((offset) => start + offset).filter((row) => row < state.run.images);
  if (rows.every((row) => imageCache.has(row))) return;
  if (imageCache.size > 50 * IMAGES_PER_REQUEST) imageCache.clear();
  for (const image of (await get(`/api/images?start=${start}&limit=${IMAGES_PER_REQUEST}`)).images) imageCache.set(image.row, image);
}

async function showImage() {
  const row = state.row, start = Math.floor(row / IMAGES_PER_REQUEST) * IMAGES_PER_REQUEST;
  try {
    await loadImages(start);
  } catch (error) {
    showError(error.message);
    return;
  }
  if (row !== state.row) return; // the user has opened another image meanwhile
  const image = imageCache.get(row);
  photo.src = imageUrl(row, "large");
  photo.alt = `Image ${row + 1}, ${image.name}`;
  photo.style.setProperty("--ratio", `${image.view[2]} / ${image.view[3]}`);
  for (const part of [photo, overlay]) part.style.setProperty("--shape", String(image.view[2] / image.view[3]));
  Object.assign(caption, { textContent: image.name.split("/").slice(-2).join("/"), title: image.name });
  Object.assign(rowInput, { value: row + 1, max: state.run.images });
  document.getElementById("total").textContent = `of ${state.run.images.toLocaleString("en")}`;
  renderStrip(start);
  draw();
}

function renderStrip(start) {
  if (strip.dataset.start !== String(start)) {
    strip.dataset.start = start;
    const rows = [...Array(IMAGES_PER_REQUEST).keys()].map((offset) => start + offset).filter((row) => row < state.run.images);
    strip.replaceChildren(...rows.map((row) => element("button", { class: "thumbnail", data: { row }, "aria-label": `Image ${row + 1}`,
      onclick: () => update({ row }) }, element("img", { src: imageUrl(row, "thumbnail"), alt: "", loading: "lazy" }))));
  }
  for (const thumbnail of strip.children) {
    const row = Number(thumbnail.dataset.row), current = row === state.row, correction = correctionOf(row);
    thumbnail.setAttribute("aria-current", String(current));
    thumbnail.dataset.corrected = correction.done ? "done" : correction.moved.length || correction.absent.length ? "begun" : "";
    thumbnail.setAttribute("aria-label", `Image ${row + 1}${correction.done ? ", done" : ""}`);
    if (current) strip.scrollLeft = thumbnail.offsetLeft - strip.offsetLeft - (strip.clientWidth - thumbnail.clientWidth) / 2;
  }
}

// Show which tool is active, and what to do with it.
function showTool() {
  for (const button of toolButtons.children) button.setAttribute("aria-pressed", String(button.dataset.tool === state.tool));
  hint.textContent = state.message || (state.first === null ? HINTS[state.tool] : NEXT_HINTS[state.tool](numberedName(state.first)));
  overlay.classList.toggle("drawing", state.tool !== "select");
  document.body.dataset.activeTool = state.tool;
}

// --- drawing -------------------------------------------------------------------------------------------

function draw() {
  const original = imageCache.get(state.row);
  if (!original || !state.card || !overlay.clientWidth) return;
  const image = withCorrections(original);
  const [left, top, width, height] = image.view;
  overlay.setAttribute("viewBox", `${left} ${top} ${width} ${height}`);
  const unit = width / overlay.clientWidth; // one screen pixel, in pixels of the image
  const size = overlay.clientWidth < 480 ? 8.5 : MARK_RADIUS;
  const visible = [...state.card.names.keys()].filter((index) => !isHidden(index));
  marks = placeMarks(image, visible, 2 * (size + 2) * unit);
  // A dragged mark is drawn exactly where it would be dropped.
  if (state.tool === "correct" && press?.to) marks[press.landmark] = image.xy[press.landmark];
  const order = [...visible.filter((index) => index !== state.selected), ...visible.filter((index) => index === state.selected)];
  overlay.replaceChildren(
    ...state.card.skeleton.filter((edge) => !edge.some(isHidden)).flatMap((edge) => line(image.xy[edge[0]], image.xy[edge[1]], unit)),
    ...pairLines(image, visible, unit),
    ...(state.tool !== "correct" && press && press.landmark !== null && press.to ? line(marks[press.landmark], press.to, unit, "draft") : []),
    ...visible.flatMap((index) => leader(index, image, unit)),
    ...order.map((index) => point(index, image, unit, size)));
}

// Return the image with corrected landmarks at their corrected places. A landmark that is being dragged is at the pointer.
function withCorrections(image) {
  const { places } = correctionOf(state.row);
  const xy = image.xy.map((place, index) => places[index] ?? place);
  if (state.tool === "correct" && press?.to) xy[press.landmark] = press.to;
  return { ...image, xy };
}

// Return where to draw each landmark: at its place, or beside it if marks would cover each other.
function placeMarks(image, visible, distance) {
  const places = separate(visible.map((index) => image.xy[index]), distance);
  const placed = image.xy.map(() => null);
  for (const [order, index] of visible.entries()) placed[index] = places[order];
  return placed;
}

// If the mark of a landmark is drawn beside its place, return a line from the place to the mark.
function leader(index, image, unit) {
  const [x, y] = image.xy[index], [markX, markY] = marks[index];
  if (Math.hypot(markX - x, markY - y) < unit) return [];
  return [...line([x, y], [markX, markY], 0.6 * unit, "leader"),
    svgElement("circle", { cx: x, cy: y, r: 2.6 * unit, class: "leader-end", fill: state.card.colors[index], "stroke-width": unit })];
}

function line([ax, ay], [bx, by], unit, kind = "bone") {
  const ends = { x1: ax, y1: ay, x2: bx, y2: by };
  return [svgElement("line", { ...ends, class: `${kind} under`, "stroke-width": 5 * unit }),
    svgElement("line", { ...ends, class: kind, "stroke-width": 2.4 * unit })];
}

// Return lines between mirror partners; only the pair tool shows them.
function pairLines(image, visible, unit) {
  if (state.tool !== "pair") return [];
  const pairs = visible.filter((index) => state.card.mirror[index] > index && visible.includes(state.card.mirror[index]));
  return pairs.flatMap((index) => line(image.xy[index], image.xy[state.card.mirror[index]], unit, "pair-line"));
}

function point(index, image, unit, size) {
  const [x, y] = marks[index], color = state.card.colors[index], hollow = isUntrusted(index);
  const selected = index === state.selected, first = index === state.first;
  const radius = (selected ? size * 1.25 : size) * unit;
  const { absent, moved } = correctionOf(state.row);
  const kind = `${absent.includes(index) ? " absent" : ""}${moved.includes(index) ? " moved" : ""}`;
  if (state.tool === "correct" && press?.to && press.landmark === index) return crosshair(index, x, y, unit);
  return svgElement("g", { class: `point${selected ? " selected" : ""}${first ? " first" : ""}${kind}`, "data-landmark": index },
    svgElement("title", {}, [numberedName(index), `score ${image.score[index].toFixed(2)}`,
      isTrustKnown() ? trustText(index) : ""].filter(Boolean).join(", ")),
    svgElement("circle", { cx: x, cy: y, r: Math.max(radius, 20 * unit), class: "hit-area" }),
    selected || first ? svgElement("circle", { cx: x, cy: y, r: radius + 4.5 * unit, class: "halo", "stroke-width": 2.5 * unit }) : null,
    svgElement("circle", { cx: x, cy: y, r: radius + 2 * unit, class: "outline" }),
    hollow ? svgElement("circle", { cx: x, cy: y, r: radius - unit, class: "hollow", fill: "#fff", stroke: color, "stroke-width": 3.2 * unit })
      : svgElement("circle", { cx: x, cy: y, r: radius, fill: color, stroke: "#fff", "stroke-width": 1.6 * unit }),
    svgElement("text", { x, y: y + size * 0.36 * unit, "font-size": size * 1.05 * unit, fill: hollow ? "#000" : textColorOn(color) }, String(index)),
    selected ? svgElement("text", { x, y: labelY(index, radius, unit), class: "label", "font-size": 14 * unit, "stroke-width": 4 * unit },
      state.card.names[index]) : null);
}

// Return the mark of a landmark that is being dragged: a cross that leaves the pixels under its center free.
function crosshair(index, x, y, unit) {
  const [near, far] = [3 * unit, 14 * unit];
  const arms = [[near, 0, far, 0], [-near, 0, -far, 0], [0, near, 0, far], [0, -near, 0, -far]];
  return svgElement("g", { class: "point selected", "data-landmark": index },
    arms.flatMap(([ax, ay, bx, by]) => line([x + ax, y + ay], [x + bx, y + by], 0.6 * unit, "cross")));
}

// Return the y of a name: above its mark, or below it if the name covers fewer other marks there.
function labelY(index, radius, unit) {
  const [x, y] = marks[index], halfWidth = 4.5 * unit * state.card.names[index].length;
  const countCovered = (middle) => marks.filter((mark, other) => mark && other !== index
    && Math.abs(mark[0] - x) < halfWidth + radius && Math.abs(mark[1] - middle) < radius + 7 * unit).length;
  const above = y - radius - 7 * unit, below = y + radius + 17 * unit;
  return countCovered(above - 5 * unit) > countCovered(below - 5 * unit) ? below : above;
}

// --- mouse and touch -----------------------------------------------------------------------------------

// Return the landmark whose mark or name is under the pointer, or else the nearest one. Return null if none is close.
function nearestLandmark(event) {
  const image = imageCache.get(state.row), box = overlay.getBoundingClientRect();
  if (!image) return null;
  const scale = box.width / image.view[2];
  let nearest = null, closest = event.pointerType === "touch" ? 30 : 20;
  for (const [index, mark] of marks.entries()) {
    if (!mark) continue;
    const [x, y] = mark;
    const distance = Math.hypot(box.left + (x - image.view[0]) * scale - event.clientX, box.top + (y - image.view[1]) * scale - event.clientY);
    if (distance < closest) [nearest, closest] = [index, distance];
  }
  // A name may cover a mark. The mark under the pointer then counts, not the name.
  const label = document.elementFromPoint(event.clientX, event.clientY)?.closest(".label");
  return label && closest > MARK_RADIUS ? Number(label.closest(".point").dataset.landmark) : nearest;
}

function onPointerDown(event) {
  if (event.button > 0) return;
  press = { x: event.clientX, y: event.clientY, landmark: nearestLandmark(event), to: null };
  if (state.tool !== "select" && press.landmark !== null) overlay.setPointerCapture(event.pointerId);
}

function onPointerMove(event) {
  if (!press || press.landmark === null || state.tool === "select") return;
  const minDistance = state.tool === "correct" ? 2 : 8; // screen pixels; a shorter move is a click
  if (!press.to && Math.hypot(event.clientX - press.x, event.clientY - press.y) < minDistance) return;
  const image = imageCache.get(state.row), box = overlay.getBoundingClientRect(), scale = image.view[2] / box.width;
  if (state.tool === "correct") {
    // Move the landmark by as much as the pointer: the user may have grabbed the mark beside its center.
    press.from ??= correctionOf(state.row).places[press.landmark] ?? image.xy[press.landmark];
    press.to = clampToView(image, [press.from[0] + (event.clientX - press.x) * scale, press.from[1] + (event.clientY - press.y) * scale]);
  } else press.to = [image.view[0] + (event.clientX - box.left) * scale, image.view[1] + (event.clientY - box.top) * scale];
  draw();
}

const clampToView = ({ view }, [x, y]) =>
  [Math.min(Math.max(x, view[0]), view[0] + view[2]), Math.min(Math.max(y, view[1]), view[1] + view[3])];

// Save the place of a landmark. In SVG, pixel centers are at 0.5; in the file, they are at integers.
const savePlace = (row, landmark, [x, y]) =>
  edit({ kind: "move", row, landmark, x: Math.round((x - 0.5) * 100) / 100, y: Math.round((y - 0.5) * 100) / 100 });

// Move the selected landmark by some pixels of the image.
export function nudge(dx, dy) {
  const image = imageCache.get(state.row), index = state.selected;
  if (state.tool !== "correct" || !image || isHidden(index)) return;
  const [x, y] = correctionOf(state.row).places[index] ?? image.xy[index];
  savePlace(state.row, index, clampToView(image, [x + dx, y + dy]));
}

function onPointerUp(event) {
  if (!press) return;
  const { x, y, landmark, to } = press;
  press = null;
  if (state.tool === "select") {
    const dx = event.clientX - x, dy = event.clientY - y;
    const isSwipe = event.pointerType === "touch" && Math.abs(dx) > 60 && Math.abs(dy) < 60;
    if (isSwipe) stepImage(dx < 0 ? 1 : -1);
    else if (landmark !== null) chooseLandmark(landmark);
    return;
  }
  if (state.tool === "correct") {
    if (landmark !== null) update({ selected: landmark });
    if (to) savePlace(state.row, landmark, to);
    return;
  }
  const target = nearestLandmark(event);
  if (to) { // a line was drawn
    if (landmark !== null && target !== null && target !== landmark) applyTool(state.tool, landmark, target);
    update({ first: null, message: "" });
  } else if (target === null) update({ first: null, message: "There is no landmark here. Click a point or a name." });
  else chooseLandmark(target);
}
