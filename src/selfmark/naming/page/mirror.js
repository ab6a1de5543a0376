// Mirror pairs side by side. The partner is shown mirrored, so the two pictures of a correct pair look alike.

import { badge, element, icon, ICONS } from "./dom.js";
import { toggleConfirmed } from "./inspector.js";
import { allLandmarks, edit, imageUrl, isConfirmed, isHidden, numberedName, partnerOf, state, subscribe, update } from "./store.js";

const SAMPLES = 4;

export function startMirror() {
  const view = document.getElementById("view-mirror");
  subscribe((changed) => {
    if (state.view === "mirror" && (changed.has("view") || changed.has("card") || changed.has("selected"))) render(view, changed);
  });
}

function render(view, changed) {
  const focused = view.contains(document.activeElement) ? document.activeElement.id : "";
  const visible = allLandmarks().filter((index) => !isHidden(index));
  // Each pair appears once: under its first landmark, or under its second if the first is hidden.
  const pairs = visible.filter((index) => partnerOf(index) > index || (partnerOf(index) < index && isHidden(partnerOf(index))));
  // A landmark whose partner the user has chosen is among the pairs, even if the detector has not learned this partner.
  const unpaired = visible.filter((index) => partnerOf(index) === index && state.card.without_partner.includes(index));
  const onMidline = visible.filter((index) => partnerOf(index) === index && !unpaired.includes(index));
  const total = pairs.length + onMidline.length + unpaired.length;
  const confirmed = [...pairs, ...onMidline].filter(isConfirmed).length;
  view.replaceChildren(
    element("div", { class: "toolbar" }, element("p", { class: "hint muted" },
      `${confirmed} of ${total} confirmed. In a mirrored image, the left ear becomes the right ear. `
      + "The partner is shown mirrored here, so the two pictures of a correct pair look alike.")),
    ...state.card.notes.map((note) => element("p", { class: "note" }, note)),
    element("h2", {}, "Pairs"),
    element("div", { class: "pairs" }, pairs.map((index) => pairCard(index, partnerOf(index)))),
    element("h2", {}, "On the midline"),
    element("div", { class: "pairs" }, onMidline.map((index) => pairCard(index, index))),
    ...(unpaired.length ? [
      element("h2", {}, "No partner found"),
      element("p", { class: "hint muted" }, "Choose the partner of each landmark, or confirm that the landmark is on the midline."),
      element("div", { class: "pairs" }, unpaired.map((index) => pairCard(index, index))),
    ] : []));
  if (focused && document.getElementById(focused)) document.getElementById(focused).focus({ preventScroll: !changed.has("view") });
}

function pairCard(index, partner) {
  const confirmed = isConfirmed(index);
  const selected = index === state.selected || partner === state.selected;
  return element("article", { class: `pair${confirmed ? " confirmed" : ""}${selected ? " selected" : ""}`, "aria-label": partner === index
    ? `${numberedName(index)}, its own mirror partner` : `${numberedName(index)} and ${numberedName(partner)}` },
    side(index, false), side(partner, true),
    element("div", { class: "row" },
      element("button", { id: `confirm-${index}`, class: confirmed ? "primary on" : "primary", "aria-pressed": String(confirmed),
        onclick: () => toggleConfirmed(index) }, icon(ICONS.check), confirmed ? "Confirmed" : "Confirm"),
      element("label", { class: "visually-hidden", for: `partner-${index}` }, `Partner of ${numberedName(index)}`),
      element("select", { id: `partner-${index}`, onchange: (event) => edit({ kind: "pair", landmark: index, partner: Number(event.target.value) }) },
        allLandmarks().map((other) => element("option", { value: other, selected: other === partner }, other === index ? "itself" : numberedName(other))))));
}

function side(index, mirrored) {
  const rows = [...Array(SAMPLES).keys()].map((sample) => Math.floor(((sample + 0.5) * state.run.images) / SAMPLES));
  return element("div", { class: "side" },
    element("button", { class: "side-name", onclick: () => update({ selected: index }) }, badge(index, state.card.colors[index]),
      element("span", {}, state.card.names[index]), mirrored ? element("span", { class: "muted" }, "mirrored") : null),
    element("div", { class: mirrored ? "side-crops mirrored" : "side-crops" }, [...new Set(rows)].map((row) =>
      element("span", { class: "crop" },
        element("img", { src: imageUrl(row, `crop/${index}`), alt: "", loading: "lazy", width: 84, height: 84 }),
        element("span", { class: "ring", style: { "border-color": state.card.colors[index] } })))));
}
