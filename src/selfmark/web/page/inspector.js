// Everything that can be said of the chosen landmark.

import { badge, element, icon, ICONS } from "./dom.js";
import { connections, edit, get, indices, isConfirmed, isHidden, isNamed, look, otherSide, partner, state, watch } from "./store.js";

// Distinguished by people with any kind of colour vision (Okabe and Ito), and black and white.
const SAFE = [["orange", "#e69f00"], ["sky blue", "#56b4e9"], ["green", "#009e73"], ["yellow", "#f0e442"], ["blue", "#0072b2"],
  ["vermilion", "#d55e00"], ["pink", "#cc79a7"], ["white", "#ffffff"], ["black", "#000000"]];
const SAMPLES = 6;

let shownFor = -1;
let crops = [];

export function startInspector() {
  const place = document.getElementById("inspector");
  watch((changed) => {
    if (!state.said || !(changed.has("said") || changed.has("selected"))) return;
    const held = place.contains(document.activeElement) ? document.activeElement.id : "";
    const typing = held === "name" && !changed.has("selected") ? document.activeElement.value : null;
    place.replaceChildren(...parts());
    if (held && document.getElementById(held)) document.getElementById(held).focus();
    if (typing !== null) document.getElementById("name").value = typing;
    if (shownFor !== state.selected) sample(state.selected);
  });
}

function parts() {
  const index = state.selected;
  return [head(index), nameField(index), samples(), colourField(index), mirrorField(index), skeletonField(index)];
}

// --- name and visibility -----------------------------------------------------------------------------

function head(index) {
  const hidden = isHidden(index);
  return element("div", { class: "inspector-head" },
    badge(index, state.said.colours[index]),
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

function nameField(index) {
  const input = element("input", { id: "name", type: "text", maxlength: state.run.longest_name, value: state.said.names[index],
    autocomplete: "off", autocapitalize: "off", spellcheck: "false", enterkeyhint: "next", "aria-describedby": "name-trouble" });
  const words = element("p", { id: "name-trouble", class: "trouble", role: "alert" });
  const save = async (onwards) => {
    if (input.value.trim() !== state.said.names[index]) {
      const refused = await edit({ kind: "rename", landmark: index, name: input.value });
      if (refused) {
        const now = document.getElementById("name");
        now.setAttribute("aria-invalid", "true");
        document.getElementById("name-trouble").textContent = refused;
        now.focus();
        return;
      }
      document.getElementById("name").value = state.said.names[index];
    }
    if (onwards) focusName(Math.min(index + 1, state.run.landmarks - 1));
  };
  input.addEventListener("focus", () => input.select());
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") { event.preventDefault(); save(true); }
    if (event.key === "Escape") { input.value = state.said.names[index]; input.blur(); }
  });
  // Leaving the field saves too, unless it leads to another landmark's page first.
  input.addEventListener("change", () => { if (state.selected === index) save(false); });
  return element("div", { class: "field" }, element("label", { for: "name" }, "Name"), input, words, suggestion(index));
}

export function focusName(index) {
  look({ selected: index });
  document.getElementById("name").focus();
}

// A left ear has a right ear for a partner.
function suggestion(index) {
  const other = partner(index), name = otherSide(state.said.names[index]);
  if (other === index || !name || state.said.names[other] === name || isNamed(other)) return null;
  return element("button", { id: "suggest", class: "quiet wide", onclick: () => edit({ kind: "rename", landmark: other, name }) },
    badge(other, state.said.colours[other], true), element("span", {}, `Call its partner “${name}”`));
}

// --- what it looks like ------------------------------------------------------------------------------

function samples() {
  const mine = shownFor === state.selected ? crops : []; // those of another until they have come
  return element("div", { class: "samples", id: "samples" }, mine.map(({ row, score }) =>
    element("button", { class: "crop", title: `image ${row + 1}, score ${score}`, "aria-label": `Open image ${row + 1}`,
      onclick: () => look({ row, view: "images" }) },
      element("img", { src: `/pictures/${row}/landmark/${shownFor}`, alt: "", width: 84, height: 84 }),
      element("span", { class: "ring", style: { "border-color": state.said.colours[shownFor] } }))));
}

async function sample(landmark) {
  try {
    const answer = await get(`/api/gallery/${landmark}?most=${SAMPLES}`);
    if (landmark !== state.selected) return; // another was chosen meanwhile
    [shownFor, crops] = [landmark, answer.crops];
    document.getElementById("samples").replaceWith(samples());
  } catch { /* the page says so where it asks for names */ }
}

function colourField(index) {
  const now = state.said.colours[index];
  const put = (colour) => edit({ kind: "colour", landmark: index, colour });
  const usual = state.run.usual_colours[index];
  const swatch = ([name, colour, value]) => element("button", { class: "swatch", id: `colour-${name.replace(" ", "-")}`,
    "aria-label": name, title: name, "aria-pressed": String(now === colour), style: { background: colour }, onclick: () => put(value ?? colour) });
  return element("fieldset", { class: "field" }, element("legend", {}, "Colour"),
    element("div", { class: "swatches" }, SAFE.map(swatch), swatch(["usual", usual, ""]),
      element("label", { class: "swatch other", title: "any colour" }, element("span", { class: "unseen" }, "any colour"),
        element("input", { id: "colour", type: "color", value: now, onchange: (event) => put(event.target.value) }))));
}

// --- mirror partner and skeleton ---------------------------------------------------------------------

export const titled = (index) => `${index} · ${state.said.names[index]}`;

function mirrorField(index) {
  const sure = isConfirmed(index);
  return element("div", { class: "field" }, element("label", { for: "partner" }, "Becomes in a mirrored image"),
    element("div", { class: "row" },
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
      badge(other, state.said.colours[other], true), element("span", {}, state.said.names[other]),
      element("button", { class: "tiny", "aria-label": `Disconnect from ${titled(other)}`, onclick: () => connect(other, false) }, icon(ICONS.cross))))),
    element("select", { id: "connect", value: "", onchange: (event) => event.target.value !== "" && connect(Number(event.target.value), true) },
      element("option", { value: "" }, linked.length ? "and with …" : "choose a landmark …"),
      indices().filter((other) => other !== index && !linked.includes(other)).map((other) => element("option", { value: other }, titled(other)))));
}
