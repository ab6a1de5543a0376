// Start everything; tabs, history and keys.

import { focusName, startInspector, toggleConfirmed, toggleHidden } from "./inspector.js";
import { startGallery } from "./gallery.js";
import { startImages, turn } from "./images.js";
import { startList } from "./list.js";
import { startMirror } from "./mirror.js";
import { canRedo, canUndo, look, redo, start, state, trouble, undo, watch } from "./store.js";

const VIEWS = ["images", "gallery", "mirror"];
const byId = (id) => document.getElementById(id);
const help = byId("help-box");

// --- views ----------------------------------------------------------------------------------------------

function startTabs() {
  const tabs = VIEWS.map((view) => byId(`tab-${view}`));
  for (const [at, tab] of tabs.entries()) {
    tab.addEventListener("click", () => look({ view: VIEWS[at] }));
    tab.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!by) return;
      event.stopPropagation();
      const next = (at + by + VIEWS.length) % VIEWS.length;
      look({ view: VIEWS[next] });
      tabs[next].focus();
    });
  }
  watch((changed) => {
    if (!changed.has("view")) return;
    for (const view of VIEWS) {
      byId(`view-${view}`).hidden = view !== state.view;
      byId(`tab-${view}`).setAttribute("aria-selected", String(view === state.view));
      byId(`tab-${view}`).tabIndex = view === state.view ? 0 : -1;
    }
    document.body.dataset.view = state.view;
  });
}

function startHistory() {
  byId("undo").addEventListener("click", undo);
  byId("redo").addEventListener("click", redo);
  byId("help").addEventListener("click", () => help.showModal());
  watch((changed) => {
    if (changed.has("run")) {
      byId("title").textContent = state.run.title;
      document.title = `${state.run.title} · naming · selfmark`;
    }
    if (state.said) document.body.dataset.revision = state.said.revision; // of what the page shows
    byId("undo").disabled = !canUndo();
    byId("redo").disabled = !canRedo();
  });
}

// --- keys -----------------------------------------------------------------------------------------------

const step = (by) => look({ selected: (state.selected + by + state.run.landmarks) % state.run.landmarks });

const KEYS = {
  ArrowUp: () => step(-1),
  ArrowDown: () => step(1),
  ArrowLeft: () => turn(-1),
  ArrowRight: () => turn(1),
  n: () => focusName(state.selected),
  h: toggleHidden,
  c: () => look({ view: "images", tool: "connect", first: null }),
  m: () => look({ view: "images", tool: "pair", first: null }),
  v: () => look({ tool: "choose", first: null }),
  Escape: () => look({ tool: "choose", first: null }),
  y: () => toggleConfirmed(state.selected),
  1: () => look({ view: "images" }),
  2: () => look({ view: "gallery" }),
  3: () => look({ view: "mirror" }),
  "?": () => help.showModal(),
};

function startKeys() {
  document.addEventListener("keydown", (event) => {
    if (!state.said || help.open || event.altKey) return;
    const writing = event.target.matches?.("input, select, textarea");
    if (event.ctrlKey || event.metaKey) {
      const key = event.key.toLowerCase();
      if (writing || !["z", "y"].includes(key)) return;
      event.preventDefault();
      if (key === "y" || event.shiftKey) redo();
      else undo();
      return;
    }
    if (writing) return;
    const act = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
}

startTabs();
startHistory();
startKeys();
startList();
startInspector();
startImages();
startGallery();
startMirror();
start().catch((error) => trouble(error.message));
