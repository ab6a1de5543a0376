// The list of landmarks: which there are, how far one has come, which is chosen.

import { badge, element, icon, ICONS } from "./dom.js";
import { indices, isConfirmed, isHidden, isNamed, look, partner, state, watch } from "./store.js";

export function startList() {
  const list = document.getElementById("landmarks");
  watch((changed) => {
    if (changed.has("said") || changed.has("run")) fill(list);
    if (changed.has("said") || changed.has("selected")) mark(list, changed.has("selected"));
  });
}

function fill(list) {
  const held = list.contains(document.activeElement);
  list.replaceChildren(...indices().map(entry));
  if (held) list.children[state.selected].firstElementChild.focus();
  const named = indices().filter((index) => isNamed(index) || isHidden(index)).length;
  document.getElementById("progress").textContent = `${named} of ${state.run.landmarks} named or hidden`;
}

function entry(index) {
  const other = partner(index);
  const notes = [
    isHidden(index) ? "hidden" : "",
    other === index ? "" : `mirror partner ${other}${isConfirmed(index) ? ", confirmed" : ""}`,
  ].filter(Boolean);
  return element("li", {},
    element("button", { class: isHidden(index) ? "entry gone" : "entry", onclick: () => look({ selected: index }),
      data: { landmark: index } },
      badge(index, state.said.colors[index]),
      element("span", { class: isNamed(index) ? "name" : "name unnamed" }, state.said.names[index]),
      isHidden(index) ? icon(ICONS.closed) : null,
      !isHidden(index) && other !== index
        ? element("span", { class: isConfirmed(index) ? "twin sure" : "twin", "aria-hidden": "true" }, `⇄ ${other}`) : null,
      element("span", { class: "unseen" }, notes.length ? `, ${notes.join(", ")}` : "")));
}

function mark(list, moved) {
  for (const [index, item] of [...list.children].entries()) {
    const chosen = index === state.selected;
    item.firstElementChild.setAttribute("aria-current", chosen ? "true" : "false");
    if (chosen && moved) reveal(list, item);
  }
}

// Within the list alone: scrollIntoView would move the page as well.
function reveal(list, item) {
  const box = list.getBoundingClientRect(), place = item.getBoundingClientRect();
  list.scrollTop += Math.min(0, place.top - box.top - 8) + Math.max(0, place.bottom - box.bottom + 8);
  list.scrollLeft += Math.min(0, place.left - box.left - 24) + Math.max(0, place.right - box.right + 24);
}
