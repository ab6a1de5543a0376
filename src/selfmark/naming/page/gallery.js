// The chosen landmark cut out of many images: does it sit on the same spot in each?

import { badge, element } from "./dom.js";
import { get, look, picture, state, trouble, watch } from "./store.js";

const PAGE = 48; // cut-outs asked for at a time
const ORDERS = [["mixed", "Mixed"], ["surest", "Surest first"], ["least", "Least sure first"]];

let order = "mixed", shown = [], of = 0, of_landmark = -1;
let head, grid, more, orders;

export function startGallery() {
  const place = document.getElementById("view-gallery");
  head = element("div", { class: "gallery-head" });
  orders = element("div", { class: "segments", role: "group", "aria-label": "Order" }, ORDERS.map(([value, name]) =>
    element("button", { data: { order: value }, onclick: () => { order = value; begin(); } }, name)));
  grid = element("div", { class: "crops" });
  more = element("button", { class: "wide", id: "more", onclick: () => load() }, "Show more");
  place.append(element("div", { class: "toolbar" }, head, orders), grid, more);
  watch((changed) => {
    if (state.view !== "gallery") return;
    if (changed.has("view") || changed.has("selected")) begin();
    else if (changed.has("said")) paint();
  });
}

function begin() {
  [shown, of, of_landmark] = [[], 0, state.selected];
  for (const button of orders.children) button.setAttribute("aria-pressed", String(button.dataset.order === order));
  load();
}

async function load() {
  const landmark = of_landmark, asked = order;
  try {
    const answer = await get(`/api/gallery/${landmark}?order=${asked}&start=${shown.length}&most=${PAGE}`);
    if (landmark !== of_landmark || asked !== order) return;
    shown.push(...answer.crops);
    of = answer.of;
    paint();
  } catch (error) {
    trouble(error.message);
  }
}

function paint() {
  const color = state.said.colors[of_landmark], name = state.said.names[of_landmark];
  head.replaceChildren(badge(of_landmark, color), element("h2", {}, name),
    element("span", { class: "soft" }, `${shown.length} of ${of.toLocaleString("en")} images`));
  grid.replaceChildren(...shown.map(({ row, score }) =>
    element("button", { class: "crop", "aria-label": `${name} in image ${row + 1}, score ${score}`,
      onclick: () => look({ row, view: "images" }) },
      element("img", { src: picture(row, `landmark/${of_landmark}`), alt: "", loading: "lazy", width: 168, height: 168 }),
      element("span", { class: "ring", style: { "border-color": color } }),
      element("span", { class: "score" }, score.toFixed(2)))));
  more.hidden = shown.length >= of;
}
