// The list of landmarks. It shows the trust of each landmark, marks the selected one, and shows how many are named or hidden.

import { badge, element, hollowBadge, icon, ICONS } from "./dom.js";
import { allLandmarks, chooseLandmark, isConfirmed, isHidden, isNamed, isTrustKnown, isUntrusted, partnerOf, state, subscribe,
  trustText } from "./store.js";

export function startList() {
  const list = document.getElementById("landmarks");
  subscribe((changed) => {
    if (changed.has("card") || changed.has("run")) render(list);
    if (changed.has("card") || changed.has("selected")) markSelected(list, changed.has("selected"));
  });
}

function render(list) {
  const hadFocus = list.contains(document.activeElement);
  list.replaceChildren(...allLandmarks().map(entry));
  if (hadFocus) list.children[state.selected].firstElementChild.focus();
  const numDone = allLandmarks().filter((index) => isNamed(index) || isHidden(index)).length;
  document.getElementById("progress").textContent = `${numDone} of ${state.run.landmarks} named or hidden`;
}

function entry(index) {
  const partner = partnerOf(index);
  const notes = [
    isHidden(index) ? "hidden" : "",
    partner === index ? "" : `mirror partner ${partner}${isConfirmed(index) ? ", confirmed" : ""}`,
    isTrustKnown() ? trustText(index) : "",
  ].filter(Boolean);
  const makeBadge = isUntrusted(index) ? hollowBadge : badge;
  return element("li", {},
    element("button", { class: isHidden(index) ? "entry off" : "entry", onclick: () => chooseLandmark(index),
      data: { landmark: index } },
      makeBadge(index, state.card.colors[index]),
      element("span", { class: isNamed(index) ? "name" : "name unnamed" }, state.card.names[index]),
      isHidden(index) ? icon(ICONS.eyeClosed) : null,
      !isHidden(index) && partner !== index
        ? element("span", { class: isConfirmed(index) ? "partner confirmed" : "partner", "aria-hidden": "true" }, `⇄ ${partner}`) : null,
      isTrustKnown()
        ? element("span", { class: isUntrusted(index) ? "trust low" : "trust", title: trustText(index), "aria-hidden": "true" },
          state.run.trust[index].toFixed(2)) : null,
      element("span", { class: "visually-hidden" }, notes.length ? `, ${notes.join(", ")}` : "")));
}

function markSelected(list, scroll) {
  for (const [index, item] of [...list.children].entries()) {
    const selected = index === state.selected;
    item.firstElementChild.setAttribute("aria-current", selected ? "true" : "false");
    if (selected && scroll) scrollTo(list, item);
  }
}

// Scroll only the list; scrollIntoView would scroll the page as well.
function scrollTo(list, item) {
  const outer = list.getBoundingClientRect(), inner = item.getBoundingClientRect();
  list.scrollTop += Math.min(0, inner.top - outer.top - 8) + Math.max(0, inner.bottom - outer.bottom + 8);
  list.scrollLeft += Math.min(0, inner.left - outer.left - 24) + Math.max(0, inner.right - outer.right + 24);
}
