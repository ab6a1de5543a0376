// Mirror pairs, side by side: the partner is shown mirrored, so that a true pair looks alike.

import { badge, element, icon, ICONS } from "./dom.js";
import { edit, indices, isConfirmed, isHidden, look, partner, picture, state, watch } from "./store.js";
import { titled, toggleConfirmed } from "./inspector.js";

const SAMPLES = 4;

export function startMirror() {
  const place = document.getElementById("view-mirror");
  watch((changed) => {
    if (state.view === "mirror" && (changed.has("view") || changed.has("said") || changed.has("selected"))) fill(place, changed);
  });
}

function fill(place, changed) {
  const held = place.contains(document.activeElement) ? document.activeElement.id : "";
  const visible = indices().filter((index) => !isHidden(index));
  const pairs = visible.filter((index) => partner(index) > index || (partner(index) < index && isHidden(partner(index))));
  const alone = visible.filter((index) => partner(index) === index);
  const sure = [...pairs, ...alone].filter(isConfirmed).length;
  place.replaceChildren(
    element("div", { class: "toolbar" }, element("p", { class: "hint soft" },
      `${sure} of ${pairs.length + alone.length} confirmed. In a mirrored image, a left ear becomes a right ear: the partner is shown `
      + "mirrored here, so both sides of a true pair look alike.")),
    ...state.said.notes.map((note) => element("p", { class: "note" }, note)),
    element("h2", {}, "Pairs"),
    element("div", { class: "pairs" }, pairs.map((index) => card(index, partner(index)))),
    element("h2", {}, "On the axis"),
    element("div", { class: "pairs" }, alone.map((index) => card(index, index))));
  if (held && document.getElementById(held)) document.getElementById(held).focus({ preventScroll: !changed.has("view") });
}

function card(index, other) {
  const sure = isConfirmed(index);
  const chosen = index === state.selected || other === state.selected;
  return element("article", { class: `pair${sure ? " sure" : ""}${chosen ? " chosen" : ""}`, "aria-label": other === index
    ? `${titled(index)}, its own mirror image` : `${titled(index)} and ${titled(other)}` },
    side(index, false), side(other, true),
    element("div", { class: "row" },
      element("button", { id: `sure-${index}`, class: sure ? "main on" : "main", "aria-pressed": String(sure), onclick: () => toggleConfirmed(index) },
        icon(ICONS.check), sure ? "Confirmed" : "Confirm"),
      element("label", { class: "unseen", for: `partner-${index}` }, `Partner of ${titled(index)}`),
      element("select", { id: `partner-${index}`, onchange: (event) => edit({ kind: "pair", landmark: index, partner: Number(event.target.value) }) },
        indices().map((one) => element("option", { value: one, selected: one === other }, one === index ? "itself" : titled(one))))));
}

function side(index, mirrored) {
  const rows = [...Array(SAMPLES).keys()].map((at) => Math.floor(((at + 0.5) * state.run.images) / SAMPLES));
  return element("div", { class: "side" },
    element("button", { class: "who", onclick: () => look({ selected: index }) }, badge(index, state.said.colors[index]),
      element("span", {}, state.said.names[index]), mirrored ? element("span", { class: "soft" }, "mirrored") : null),
    element("div", { class: mirrored ? "four mirrored" : "four" }, [...new Set(rows)].map((row) =>
      element("span", { class: "crop" },
        element("img", { src: picture(row, `landmark/${index}`), alt: "", loading: "lazy", width: 84, height: 84 }),
        element("span", { class: "ring", style: { "border-color": state.said.colors[index] } })))));
}
