// Everything that can be said of the chosen landmark.

import { badge, element, icon, ICONS } from "./dom.js";
import { connections, edit, get, indices, isConfirmed, isHidden, isNamed, look, otherSide, partner, picture, state, watch } from "./store.js";

// Distinguished by people with any kind of color vision (Okabe and Ito), and black and white.
const SAFE = [["orange", "#e69f00"], ["sky blue", "#56b4e9"], ["green", "#009e73"], ["yellow", "#f0e442"], ["blue", "#0072b2"],
  ["vermilion", "#d55e00"], ["pink", "#cc79a7"], ["white", "#ffffff"], ["black", "#000000"]];
const SAMPLES = 6;

let shownFor = -1; // whose samples these are
let crops = [];
let input, trouble; // of the name; they stay while everything around them is made anew, so that nobody is interrupted

export function startInspector() {
  input = nameInput();
  trouble = element("p", { id: "name-trouble", class: "trouble", role: "alert" });
  const slots = { head, suggestion, samples, colorField, mirrorField, skeletonField };
  const places = Object.fromEntries(Object.keys(slots).map((name) => [name, element("div")]));
  const name = element("div", { class: "field" }, element("label", { for: "name" }, "Name"), input, trouble, places.suggestion);
  document.getElementById("inspector").append(places.head, name, places.samples, places.colorField, places.mirrorField, places.skeletonField);
  watch((changed) => {
    if (!state.said || !(changed.has("said") || changed.has("selected"))) return;
    const held = document.activeElement?.id;
    for (const [slot, make] of Object.entries(slots)) places[slot].replaceChildren(make(state.selected) ?? "");
    if (held && document.activeElement?.id !== held) document.getElementById(held)?.focus();
    input.maxLength = state.run.longest_name;
    if (changed.has("selected") || document.activeElement !== input) show(state.said.names[state.selected], "");
    if (shownFor !== state.selected) sample(state.selected);
  });
}

// --- name and visibility -----------------------------------------------------------------------------

function head(index) {
  const hidden = isHidden(index);
  return element("div", { class: "inspector-head" },
    badge(index, state.said.colors[index]),
    element("h2", {}, state.said.names[index]),
    element("button", { id: "hide", class: hidden ? "quiet on" : "quiet", "aria-pressed": String(hidden), title: "Hide or show (H)",
      onclick: () => toggleHidden() }, icon(hidden ? ICONS.closed : ICONS.eye), hidden ? "Hidden" : "Hide"),
    element("button", { id: "unfold", class: "icon", "aria-label": "More about this landmark", "aria-controls": "inspector",
      "aria-expanded": String(document.body.dataset.sheet === "open"), onclick: unfold }, icon(ICONS.up)));
}

// On a phone the inspector is a sheet of which only the name is seen at first.
function unfold(event) {
  const open = document.body.dataset.sheet !== "open";
  document.body.dataset.sheet = open ? "open" : "";
  event.currentTarget.setAttribute("aria-expanded", String(open));
}

export const toggleHidden = () => edit({ kind: "hide", landmark: state.selected, hidden: !isHidden(state.selected) });

function show(name, words) {
  input.value = name;
  trouble.textContent = words;
  input.setAttribute("aria-invalid", String(Boolean(words)));
}

function nameInput() {
  const field = element("input", { id: "name", type: "text", autocomplete: "off", autocapitalize: "off", spellcheck: "false",
    enterkeyhint: "next", "aria-describedby": "name-trouble" });
  field.addEventListener("focus", () => field.select());
  field.addEventListener("change", () => save());
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      event.preventDefault();
      save();
      focusName(Math.min(state.selected + 1, state.run.landmarks - 1)); // without waiting: fast typists are not held up
    }
    if (event.key === "Escape") {
      show(state.said.names[state.selected], "");
      field.blur();
    }
  });
  return field;
}

async function save() {
  const index = state.selected, name = input.value;
  if (name.trim() === state.said.names[index]) return;
  const refused = await edit({ kind: "rename", landmark: index, name });
  if (!refused) return;
  focusName(index); // back to where it was typed, to be mended
  show(name, refused);
}

export function focusName(index) {
  look({ selected: index });
  input.focus();
  input.select();
}

// A left ear has a right ear for a partner.
function suggestion(index) {
  const other = partner(index), name = otherSide(state.said.names[index]);
  if (other === index || !name || state.said.names[other] === name || isNamed(other)) return null;
  return element("button", { id: "suggest", class: "quiet wide", onclick: () => edit({ kind: "rename", landmark: other, name }) },
    badge(other, state.said.colors[other], true), element("span", {}, `Call its partner “${name}”`));
}

// --- what it looks like ------------------------------------------------------------------------------

function samples(index) {
  const mine = shownFor === index ? crops : []; // those of another until they have come
  return element("div", { class: "samples", id: "samples" }, mine.map(({ row, score }) =>
    element("button", { class: "crop", title: `image ${row + 1}, score ${score}`, "aria-label": `Open image ${row + 1}`,
      onclick: () => look({ row, view: "images" }) },
      element("img", { src: picture(row, `landmark/${shownFor}`), alt: "", width: 84, height: 84 }),
      element("span", { class: "ring", style: { "border-color": state.said.colors[shownFor] } }))));
}

async function sample(landmark) {
  try {
    const answer = await get(`/api/gallery/${landmark}?most=${SAMPLES}`);
    if (landmark !== state.selected) return; // another was chosen meanwhile
    [shownFor, crops] = [landmark, answer.crops];
    document.getElementById("samples").replaceWith(samples(landmark));
  } catch { /* the page says so where it asks for names */ }
}

function colorField(index) {
  const now = state.said.colors[index];
  const put = (color) => edit({ kind: "color", landmark: index, color });
  const usual = state.run.usual_colors[index];
  const swatch = ([name, color, value]) => element("button", { class: "swatch", id: `color-${name.replace(" ", "-")}`,
    "aria-label": name, title: name, "aria-pressed": String(now === color), style: { background: color }, onclick: () => put(value ?? color) });
  return element("fieldset", { class: "field" }, element("legend", {}, "Color"),
    element("div", { class: "swatches" }, SAFE.map(swatch), swatch(["usual", usual, ""]),
      element("label", { class: "swatch other", title: "any color" }, element("span", { class: "unseen" }, "any color"),
        element("input", { id: "color", type: "color", value: now, onchange: (event) => put(event.target.value) }))));
}

// --- mirror partner and skeleton ---------------------------------------------------------------------

export const titled = (index) => `${index} · ${state.said.names[index]}`;

function mirrorField(index) {
  const sure = isConfirmed(index);
  return element("div", { class: "field" }, element("label", { for: "partner" }, "Becomes in a mirrored image"),
    element("div", { class: "stack" },
      element("select", { id: "partner", onchange: (event) => edit({ kind: "pair", landmark: index, partner: Number(event.target.value) }) },
        indices().map((other) => element("option", { value: other, selected: other === partner(index) },
          other === index ? "itself" : titled(other)))),
      element("button", { id: "confirm", class: sure ? "quiet on" : "quiet", "aria-pressed": String(sure), title: "Confirm (Y)",
        onclick: () => toggleConfirmed(index) }, icon(ICONS.check), sure ? "Confirmed" : "Confirm")));
}

export const toggleConfirmed = (index) => edit({ kind: "confirm", landmark: index, confirmed: !isConfirmed(index) });

function skeletonField(index) {
  const linked = connections(index);
  const connect = (other, on) => edit({ kind: "connect", landmark: index, other, connected: on });
  return element("div", { class: "field" }, element("label", { for: "connect" }, "Connected with"),
    element("ul", { class: "chips" }, linked.map((other) => element("li", { class: "chip" },
      badge(other, state.said.colors[other], true), element("span", {}, state.said.names[other]),
      element("button", { class: "tiny", "aria-label": `Disconnect from ${titled(other)}`, onclick: () => connect(other, false) }, icon(ICONS.cross))))),
    element("select", { id: "connect", value: "", onchange: (event) => event.target.value !== "" && connect(Number(event.target.value), true) },
      element("option", { value: "" }, linked.length ? "and with …" : "choose a landmark …"),
      indices().filter((other) => other !== index && !linked.includes(other)).map((other) => element("option", { value: other }, titled(other)))));
}
