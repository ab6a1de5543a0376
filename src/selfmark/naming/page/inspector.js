// The panel that shows and edits the selected landmark.

import { badge, element, icon, ICONS } from "./dom.js";
import { allLandmarks, connectedTo, edit, get, imageUrl, isConfirmed, isHidden, isNamed, isTrustKnown, isUntrusted, numberedName,
  otherSide, partnerOf, state, subscribe, trustText, update } from "./store.js";

// The palette of Okabe and Ito, plus white. People with color blindness can tell these colors apart, too.
const PALETTE = [["orange", "#e69f00"], ["sky blue", "#56b4e9"], ["green", "#009e73"], ["yellow", "#f0e442"], ["blue", "#0072b2"],
  ["vermilion", "#d55e00"], ["pink", "#cc79a7"], ["white", "#ffffff"], ["black", "#000000"]];
const SAMPLES = 6;

let sampledLandmark = -1; // landmark of the loaded crops
let crops = [];
let input, nameError; // created once; rendering them again would interrupt typing

export function startInspector() {
  input = nameInput();
  nameError = element("p", { id: "name-error", class: "error", role: "alert" });
  const parts = { head, trustNote, suggestion, samples, colorField, mirrorField, skeletonField };
  const slots = Object.fromEntries(Object.keys(parts).map((name) => [name, element("div")]));
  const nameField = element("div", { class: "field" }, element("label", { for: "name" }, "Name"), input, nameError, slots.suggestion);
  document.getElementById("inspector").append(slots.head, nameField, slots.trustNote, slots.samples, slots.colorField, slots.mirrorField,
    slots.skeletonField);
  subscribe((changed) => {
    if (!state.card || !(changed.has("card") || changed.has("selected"))) return;
    const focused = document.activeElement?.id;
    for (const [part, render] of Object.entries(parts)) slots[part].replaceChildren(render(state.selected) ?? "");
    if (focused && document.activeElement?.id !== focused) document.getElementById(focused)?.focus();
    input.maxLength = state.run.max_name_length;
    if (changed.has("selected") || document.activeElement !== input) showName(state.card.names[state.selected], "");
    if (sampledLandmark !== state.selected) loadSamples(state.selected);
  });
}

// --- name and visibility -----------------------------------------------------------------------------

function head(index) {
  const hidden = isHidden(index);
  return element("div", { class: "inspector-head" },
    badge(index, state.card.colors[index]),
    element("h2", {}, state.card.names[index]),
    element("button", { id: "hide", class: hidden ? "quiet on" : "quiet", "aria-pressed": String(hidden), title: "Hide or show (H)",
      onclick: () => toggleHidden() }, icon(hidden ? ICONS.eyeClosed : ICONS.eye), hidden ? "Hidden" : "Hide"),
    element("button", { id: "expand", class: "icon", "aria-label": "More about this landmark", "aria-controls": "inspector",
      "aria-expanded": String(document.body.dataset.sheet === "open"), onclick: toggleSheet }, icon(ICONS.up)));
}

function trustNote(index) {
  if (!isTrustKnown()) return null;
  const text = trustText(index);
  return element("p", { id: "trust", class: isUntrusted(index) ? "low" : "" }, text[0].toUpperCase() + text.slice(1));
}

// Expand or collapse the panel on a phone, where it is a sheet at the bottom that shows only the name at first.
function toggleSheet(event) {
  const open = document.body.dataset.sheet !== "open";
  document.body.dataset.sheet = open ? "open" : "";
  event.currentTarget.setAttribute("aria-expanded", String(open));
}

export const toggleHidden = () => edit({ kind: "hide", landmark: state.selected, hidden: !isHidden(state.selected) });

function showName(name, error) {
  input.value = name;
  nameError.textContent = error;
  input.setAttribute("aria-invalid", String(Boolean(error)));
}

function nameInput() {
  const field = element("input", { id: "name", type: "text", autocomplete: "off", autocapitalize: "off", spellcheck: "false",
    enterkeyhint: "next", "aria-describedby": "name-error" });
  field.addEventListener("focus", () => field.select());
  field.addEventListener("change", () => saveName());
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      event.preventDefault();
      saveName();
      focusName(Math.min(state.selected + 1, state.run.landmarks - 1)); // without waiting for the server
    }
    if (event.key === "Escape") {
      showName(state.card.names[state.selected], "");
      field.blur();
    }
  });
  return field;
}

async function saveName() {
  const index = state.selected, name = input.value;
  if (name.trim() === state.card.names[index]) return;
  const error = await edit({ kind: "rename", landmark: index, name });
  if (!error) return;
  focusName(index); // go back to the rejected name, so that the user can correct it
  showName(name, error);
}

export function focusName(index) {
  update({ selected: index });
  input.focus();
  input.select();
}

// Suggest "right ear" for the partner of "left ear".
function suggestion(index) {
  const partner = partnerOf(index), name = otherSide(state.card.names[index]);
  if (partner === index || !name || state.card.names[partner] === name || isNamed(partner)) return null;
  return element("button", { id: "suggest", class: "quiet wide", onclick: () => edit({ kind: "rename", landmark: partner, name }) },
    badge(partner, state.card.colors[partner], true), element("span", {}, `Name its partner “${name}”`));
}

// --- samples and color -------------------------------------------------------------------------------

function samples(index) {
  const loaded = sampledLandmark === index ? crops : [];
  return element("div", { class: "samples", id: "samples" }, loaded.map(({ row, score }) =>
    element("button", { class: "crop", title: `image ${row + 1}, score ${score}`, "aria-label": `Open image ${row + 1}`,
      onclick: () => update({ row, view: "images" }) },
      element("img", { src: imageUrl(row, `crop/${sampledLandmark}`), alt: "", width: 84, height: 84 }),
      element("span", { class: "ring", style: { "border-color": state.card.colors[sampledLandmark] } }))));
}

async function loadSamples(landmark) {
  try {
    const response = await get(`/api/gallery/${landmark}?limit=${SAMPLES}`);
    if (landmark !== state.selected) return; // the user has selected another landmark
    [sampledLandmark, crops] = [landmark, response.crops];
    document.getElementById("samples").replaceWith(samples(landmark));
  } catch { /* `poll` in store.js reports that the server does not answer. */ }
}

function colorField(index) {
  const current = state.card.colors[index];
  const setColor = (color) => edit({ kind: "color", landmark: index, color });
  const swatch = ([name, color, value]) => element("button", { class: "swatch", id: `color-${name.replace(" ", "-")}`,
    "aria-label": name, title: name, "aria-pressed": String(current === color), style: { background: color }, onclick: () => setColor(value ?? color) });
  return element("fieldset", { class: "field" }, element("legend", {}, "Color"),
    element("div", { class: "swatches" }, PALETTE.map(swatch), swatch(["default", state.run.default_colors[index], ""]),
      element("label", { class: "swatch other", title: "any color" }, element("span", { class: "visually-hidden" }, "any color"),
        element("input", { id: "color", type: "color", value: current, onchange: (event) => setColor(event.target.value) }))));
}

// --- mirror partner and skeleton ---------------------------------------------------------------------

function mirrorField(index) {
  const confirmed = isConfirmed(index);
  return element("div", { class: "field" }, element("label", { for: "partner" }, "In a mirrored image it becomes"),
    element("div", { class: "stack" },
      element("select", { id: "partner", onchange: (event) => edit({ kind: "pair", landmark: index, partner: Number(event.target.value) }) },
        allLandmarks().map((other) => element("option", { value: other, selected: other === partnerOf(index) },
          other === index ? "itself" : numberedName(other)))),
      element("button", { id: "confirm", class: confirmed ? "quiet on" : "quiet", "aria-pressed": String(confirmed), title: "Confirm (Y)",
        onclick: () => toggleConfirmed(index) }, icon(ICONS.check), confirmed ? "Confirmed" : "Confirm")));
}

export const toggleConfirmed = (index) => edit({ kind: "confirm", landmark: index, confirmed: !isConfirmed(index) });

function skeletonField(index) {
  const connected = connectedTo(index);
  const connect = (other, on) => edit({ kind: "connect", landmark: index, other, connected: on });
  return element("div", { class: "field" }, element("label", { for: "connect" }, "Connected to"),
    element("ul", { class: "chips" }, connected.map((other) => element("li", { class: "chip" },
      badge(other, state.card.colors[other], true), element("span", {}, state.card.names[other]),
      element("button", { class: "tiny", "aria-label": `Disconnect from ${numberedName(other)}`, onclick: () => connect(other, false) }, icon(ICONS.cross))))),
    element("select", { id: "connect", value: "", onchange: (event) => event.target.value !== "" && connect(Number(event.target.value), true) },
      element("option", { value: "" }, connected.length ? "add another …" : "select a landmark …"),
      allLandmarks().filter((other) => other !== index && !connected.includes(other)).map((other) =>
        element("option", { value: other }, numberedName(other)))));
}
