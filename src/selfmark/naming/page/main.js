// Start the page: tabs, undo and redo, keyboard shortcuts, and all views.

import { focusName, startInspector, toggleConfirmed, toggleHidden } from "./inspector.js";
import { startGallery } from "./gallery.js";
import { finishImage, resetPoint, toggleAbsent } from "./correct.js";
import { nudge, startImages, stepImage } from "./images.js";
import { startList } from "./list.js";
import { startMirror } from "./mirror.js";
import { canRedo, canUndo, redo, showError, start, state, subscribe, undo, update } from "./store.js";

const VIEWS = ["images", "gallery", "mirror"];
const VERDICTS = {
  good: "This run is good: the landmarks mark the same parts on different individuals.",
  usable: "This run is usable: check each landmark before you rely on it.",
  failed: "This run failed: the landmarks do not mark the same parts on different individuals.",
};
const byId = (id) => document.getElementById(id);
const help = byId("help-box");

// --- views ----------------------------------------------------------------------------------------------

function startTabs() {
  const tabs = VIEWS.map((view) => byId(`tab-${view}`));
  for (const [index, tab] of tabs.entries()) {
    tab.addEventListener("click", () => update({ view: VIEWS[index] }));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.stopPropagation();
      const next = (index + step + VIEWS.length) % VIEWS.length;
      update({ view: VIEWS[next] });
      tabs[next].focus();
    });
  }
  subscribe((changed) => {
    if (!changed.has("view")) return;
    for (const view of VIEWS) {
      byId(`view-${view}`).hidden = view !== state.view;
      byId(`tab-${view}`).setAttribute("aria-selected", String(view === state.view));
      byId(`tab-${view}`).tabIndex = view === state.view ? 0 : -1;
    }
    document.body.dataset.view = state.view;
  });
}

// Start the buttons for undo, redo and help, and show title and verdict of the run.
function startHeader() {
  byId("undo").addEventListener("click", undo);
  byId("redo").addEventListener("click", redo);
  byId("help").addEventListener("click", () => help.showModal());
  subscribe((changed) => {
    if (changed.has("run")) {
      byId("title").textContent = state.run.title;
      document.title = `${state.run.title} · ${state.run.tool === "correct" ? "correcting" : "naming"} · selfmark`;
      showVerdict(state.run);
    }
    if (state.card) document.body.dataset.revision = state.card.revision; // revision of the card that the page shows
    byId("undo").disabled = !canUndo();
    byId("redo").disabled = !canRedo();
  });
}

// Show the verdict of the run in words, and how many landmarks are trustworthy: a usable run may have none.
// A run of an earlier version has no verdict.
function showVerdict({ verdict, trust, good_trust: goodTrust }) {
  if (!verdict) return;
  document.body.dataset.verdict = verdict;
  const trusted = trust.filter((value) => value >= goodTrust).length;
  const count = `${trusted || "None"} of ${trust.length} landmarks ${trusted < 2 ? "is" : "are"} trustworthy.`;
  byId("verdict").textContent = `${VERDICTS[verdict]} ${count}`;
  byId("verdict").hidden = false;
}

// --- keyboard -------------------------------------------------------------------------------------------

const stepLandmark = (step) => update({ selected: (state.selected + step + state.run.landmarks) % state.run.landmarks });

const SHORTCUTS = {
  ArrowUp: () => stepLandmark(-1),
  ArrowDown: () => stepLandmark(1),
  ArrowLeft: () => stepImage(-1),
  ArrowRight: () => stepImage(1),
  n: () => focusName(state.selected),
  h: toggleHidden,
  c: () => update({ view: "images", tool: "connect", first: null, message: "" }),
  m: () => update({ view: "images", tool: "pair", first: null, message: "" }),
  d: () => update({ view: "images", tool: "correct", first: null, message: "" }),
  v: () => update({ tool: "select", first: null, message: "" }),
  Escape: () => update({ tool: "select", first: null, message: "" }),
  y: () => toggleConfirmed(state.selected),
  1: () => update({ view: "images" }),
  2: () => update({ view: "gallery" }),
  3: () => update({ view: "mirror" }),
  "?": () => help.showModal(),
};

// Shortcuts of the tool Correct. They take precedence over SHORTCUTS.
const CORRECT_SHORTCUTS = {
  Enter: finishImage,
  x: toggleAbsent,
  r: resetPoint,
  ShiftArrowLeft: () => nudge(-1, 0),
  ShiftArrowRight: () => nudge(1, 0),
  ShiftArrowUp: () => nudge(0, -1),
  ShiftArrowDown: () => nudge(0, 1),
};

function startShortcuts() {
  document.addEventListener("keydown", (event) => {
    if (!state.card || help.open || event.altKey) return;
    const typing = event.target.matches?.("input, select, textarea");
    if (event.ctrlKey || event.metaKey) {
      const key = event.key.toLowerCase();
      if (typing || !["z", "y"].includes(key)) return;
      event.preventDefault();
      if (key === "y" || event.shiftKey) redo();
      else undo();
      return;
    }
    if (typing) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const pressesButton = event.key === "Enter" && event.target.matches?.("button");
    const correcting = state.view === "images" && state.tool === "correct" && !pressesButton;
    const correctKey = event.shiftKey && key.startsWith("Arrow") ? `Shift${key}` : key;
    const action = (correcting && CORRECT_SHORTCUTS[correctKey]) || SHORTCUTS[key];
    if (!action) return;
    event.preventDefault();
    action();
  });
}

startTabs();
startHeader();
startShortcuts();
startList();
startInspector();
startImages();
startGallery();
startMirror();
start().catch((error) => showError(error.message));
