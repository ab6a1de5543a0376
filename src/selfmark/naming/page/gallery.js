// Crops of the selected landmark from many images, to check that it marks the same spot in all of them.

import { badge, element } from "./dom.js";
import { get, imageUrl, isTrustKnown, isUntrusted, showError, state, subscribe, trustText, update } from "./store.js";

const CROPS_PER_REQUEST = 48;
const ORDERS = [["mixed", "Mixed"], ["highest", "Highest score first"], ["lowest", "Lowest score first"]];

let order = "mixed", crops = [], total = 0, landmark = -1;
let head, grid, moreButton, orderButtons;

export function startGallery() {
  const view = document.getElementById("view-gallery");
  head = element("div", { class: "gallery-head" });
  orderButtons = element("div", { class: "segments", role: "group", "aria-label": "Order" }, ORDERS.map(([value, name]) =>
    element("button", { data: { order: value }, onclick: () => { order = value; reset(); } }, name)));
  grid = element("div", { class: "crops" });
  moreButton = element("button", { class: "wide", id: "more", onclick: () => loadMore() }, "Show more");
  view.append(element("div", { class: "toolbar" }, head, orderButtons), grid, moreButton);
  subscribe((changed) => {
    if (state.view !== "gallery") return;
    if (changed.has("view") || changed.has("selected")) reset();
    else if (changed.has("card")) render();
  });
}

function reset() {
  [crops, total, landmark] = [[], 0, state.selected];
  for (const button of orderButtons.children) button.setAttribute("aria-pressed", String(button.dataset.order === order));
  loadMore();
}

async function loadMore() {
  const requested = { landmark, order };
  try {
    const response = await get(`/api/gallery/${landmark}?order=${order}&start=${crops.length}&limit=${CROPS_PER_REQUEST}`);
    if (requested.landmark !== landmark || requested.order !== order) return; // the user has chosen another landmark or order
    crops.push(...response.crops);
    total = response.total;
    render();
  } catch (error) {
    showError(error.message);
  }
}

function render() {
  const color = state.card.colors[landmark], name = state.card.names[landmark];
  head.replaceChildren(badge(landmark, color), element("h2", {}, name),
    element("span", { class: "muted" }, `${crops.length} of ${total.toLocaleString("en")} images`),
    isTrustKnown() ? element("span", { class: isUntrusted(landmark) ? "trust low" : "trust" }, trustText(landmark)) : "");
  grid.replaceChildren(...crops.map(({ row, score }) =>
    element("button", { class: "crop", "aria-label": `${name} in image ${row + 1}, score ${score}`,
      onclick: () => update({ row, view: "images" }) },
      element("img", { src: imageUrl(row, `crop/${landmark}`), alt: "", loading: "lazy", width: 168, height: 168 }),
      element("span", { class: "ring", style: { "border-color": color } }),
      element("span", { class: "score" }, score.toFixed(2)))));
  moreButton.hidden = crops.length >= total;
}
