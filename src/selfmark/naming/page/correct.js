// The bar of the tool Correct: mark an image as done, mark a landmark as not visible, or reset a landmark.

import { element, icon, ICONS } from "./dom.js";
import { stepImage } from "./images.js";
import { correctionOf, edit, isHidden, numberedName, state, subscribe } from "./store.js";

let progress, doneButton, absentButton, resetButton;

export function startCorrectBar() {
  doneButton = element("button", { id: "done", class: "primary", title: "All points are right (Enter)", onclick: () => finishImage() });
  absentButton = element("button", { id: "absent", title: "The selected landmark is not visible in this image (X)", onclick: () => toggleAbsent() },
    icon(ICONS.eyeClosed), "Not visible");
  resetButton = element("button", { id: "reset", title: "Move the selected landmark back to its predicted place (R)",
    onclick: () => resetPoint() }, "As predicted");
  progress = element("span", { id: "corrected", class: "muted" });
  subscribe((changed) => {
    if (state.card && (changed.has("card") || changed.has("row") || changed.has("selected"))) render();
  });
  return element("div", { class: "correct-bar", role: "group", "aria-label": "Correct" }, doneButton, absentButton, resetButton, progress);
}

function render() {
  const { absent, done, moved } = correctionOf(state.row), isAbsent = absent.includes(state.selected);
  doneButton.replaceChildren(icon(ICONS.check), done ? "Done" : "All points are right");
  doneButton.setAttribute("aria-pressed", String(done));
  doneButton.classList.toggle("on", done);
  absentButton.setAttribute("aria-pressed", String(isAbsent));
  absentButton.classList.toggle("on", isAbsent);
  absentButton.disabled = isHidden(state.selected);
  resetButton.disabled = !isAbsent && !moved.includes(state.selected);
  const corrections = Object.values(state.card.corrections);
  const numDone = corrections.filter((image) => image.done).length;
  const numMoved = corrections.reduce((sum, image) => sum + image.moved.length, 0);
  progress.textContent = `${numDone} of ${state.run.images.toLocaleString("en")} images done; points moved: ${numMoved}`
    + (isAbsent ? `; ${numberedName(state.selected)} is not visible here` : "");
}

// Mark the image as done and go to the next image. If the image is already done, mark it as not done.
export async function finishImage() {
  const done = !correctionOf(state.row).done;
  const error = await edit({ kind: "done", row: state.row, done });
  if (!error && done) stepImage(1);
}

export function toggleAbsent() {
  if (isHidden(state.selected)) return;
  const isAbsent = correctionOf(state.row).absent.includes(state.selected);
  edit({ kind: isAbsent ? "reset" : "absent", row: state.row, landmark: state.selected });
}

export const resetPoint = () => edit({ kind: "reset", row: state.row, landmark: state.selected });
