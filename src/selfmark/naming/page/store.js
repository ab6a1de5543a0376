// The state of the page and the functions that change it. Views call `subscribe` to be notified of changes.

export const state = {
  run: null, // answer of /api/run: what does not change while the page is open
  card: null, // answer of /api/card: the model card, the corrections and notes for the user
  selected: 0, // number of the selected landmark
  row: 0, // number of the shown image
  view: "images", // images, gallery or mirror
  tool: "select", // select, connect, pair or correct
  first: null, // first landmark clicked while connecting or pairing
  message: "", // shown instead of the hint of the tool
};

const listeners = [];
let undoStack = []; // each entry is a list of edits that undoes one change
let redoStack = []; // each entry is a list of edits that redoes one change

export function subscribe(listener) {
  listeners.push(listener);
}

// Change what the page shows. This saves nothing on the server.
export function update(changes) {
  Object.assign(state, changes);
  notify(Object.keys(changes));
}

function notify(changed) {
  for (const listener of listeners) listener(new Set(changed));
}

// --- server ---------------------------------------------------------------------------------------

async function request(address, options = {}) {
  let response;
  try {
    response = await fetch(address, options);
  } catch {
    const error = new Error(`The server has stopped. Start '${state.run?.tool === "correct" ? "selfmark correct" : "selfmark name"}' again. All saved changes are safe.`);
    error.offline = true;
    throw error;
  }
  if (response.status === 204) return null;
  if (response.ok) return response.json();
  const json = (response.headers.get("content-type") || "").includes("json");
  const message = json ? (await response.json()).error : await response.text();
  throw new Error(typeof message === "string" ? message : "The server did not understand the request.");
}

export const get = (address) => request(address);

// Return the address of a rendered image. It contains the session, so the browser does not show cached images of another session.
export const imageUrl = (row, kind) => `/images/${row}/${kind}?session=${state.run.session}`;

export async function start() {
  [state.run, state.card] = await Promise.all([get("/api/run"), get("/api/card")]);
  restoreSession();
  state.tool = state.run.tool;
  notify(["run", "card", "selected", "row", "view", "tool"]);
  setInterval(poll, 3000);
}

// Fetch changes that were made in another window, and show an error if the server does not answer.
async function poll() {
  if (document.hidden) return;
  try {
    const card = await get(`/api/card?revision=${state.card.revision}`);
    showError("");
    if (card) {
      state.card = card;
      notify(["card"]);
    }
  } catch (error) {
    showError(error.message);
  }
}

export function showError(message) {
  const bar = document.getElementById("error");
  bar.textContent = message;
  bar.hidden = !message;
}

// --- edits ------------------------------------------------------------------------------------------

const CORRECTIONS = ["move", "reset", "absent", "done"]; // kinds of edits that change the landmarks of an image, not the card

async function send(edits) {
  const response = await request(CORRECTIONS.includes(edits[0].kind) ? "/api/corrections" : "/api/edits", {
    method: "POST",
    headers: { "content-type": "application/json", "x-selfmark": "1" },
    body: JSON.stringify({ edits }),
  });
  const { undo, ...card } = response;
  state.card = card;
  return undo;
}

// Save edits. Resolves to "", or to the error message if the server rejects them.
export async function edit(...edits) {
  try {
    undoStack.push(await send(edits));
    redoStack = [];
    return succeed("Saved");
  } catch (error) {
    return fail(error);
  }
}

async function replay(from, to, message) {
  const edits = from.at(-1);
  if (!edits) return "";
  try {
    to.push(await send(edits));
    from.pop();
    return succeed(message);
  } catch (error) {
    if (!error.offline) from.pop(); // The server rejects these edits, because the card was changed in another window.
    saveSession();
    return fail(error);
  }
}

export const undo = () => replay(undoStack, redoStack, "Undone");
export const redo = () => replay(redoStack, undoStack, "Redone");
export const canUndo = () => undoStack.length > 0;
export const canRedo = () => redoStack.length > 0;

function succeed(message) {
  saveSession();
  showError("");
  showStatus(message);
  notify(["card"]);
  return "";
}

function fail(error) {
  showError(error.message);
  notify(["card"]);
  return error.message;
}

let statusTimer;
function showStatus(message) {
  const status = document.getElementById("saved");
  status.textContent = message;
  status.classList.add("fresh");
  clearTimeout(statusTimer);
  statusTimer = setTimeout(() => status.classList.remove("fresh"), 1600);
}

// If the page is reloaded in the same tab, undo and redo still work, and the selection is that of the last saved change.
const storageKey = () => `selfmark ${state.run.tool} ${state.run.title} ${state.run.landmarks}`;

function saveSession() {
  const stored = { undo: undoStack.slice(-200), redo: redoStack.slice(-200), selected: state.selected, row: state.row };
  sessionStorage.setItem(storageKey(), JSON.stringify(stored));
}

function restoreSession() {
  const stored = JSON.parse(sessionStorage.getItem(storageKey()) || "{}");
  undoStack = stored.undo || [];
  redoStack = stored.redo || [];
  state.selected = Math.min(stored.selected || 0, state.run.landmarks - 1);
  state.row = Math.min(stored.row || 0, state.run.images - 1);
}

// --- landmarks ----------------------------------------------------------------------------------------

export const isHidden = (index) => state.card.hidden.includes(index);
export const isConfirmed = (index) => state.card.confirmed.includes(index);
export const isNamed = (index) => state.card.names[index] !== `landmark_${index}`;
export const isTrustKnown = () => state.run.trust.length > 0;
export const isUntrusted = (index) => isTrustKnown() && state.run.trust[index] < state.run.min_trust;
export const trustText = (index) =>
  `trust ${state.run.trust[index].toFixed(2)}${isUntrusted(index) ? ": do not rely on this landmark" : ""}`;
export const partnerOf = (index) => state.card.mirror[index];
export const allLandmarks = () => [...state.card.names.keys()];
export const numberedName = (index) => `${index} · ${state.card.names[index]}`;
export const connectedTo = (index) =>
  state.card.skeleton.filter((edge) => edge.includes(index)).map(([a, b]) => (a === index ? b : a));

// Use the current tool on a landmark whose point or name was clicked: select it, or connect or pair it with the landmark clicked before.
export function chooseLandmark(index) {
  const [tool, first] = [state.view === "images" ? state.tool : "select", state.first];
  if (tool === "select" || tool === "correct") update({ selected: index });
  else if (isHidden(index))
    update({ selected: index, message: `${numberedName(index)} is hidden, so it is not in the picture. Show it (H) to ${tool} it.` });
  else if (first === null) update({ first: index, selected: index, message: "" });
  else if (tool === "connect" && first === index)
    update({ message: `${numberedName(index)} cannot be connected to itself. Click another point or name.` });
  else {
    update({ first: null, selected: index, message: "" });
    applyTool(tool, first, index);
  }
}

// Apply the connect or pair tool to two landmarks.
export function applyTool(tool, a, b) {
  if (tool === "pair") return edit({ kind: "pair", landmark: a, partner: b });
  if (a === b) return Promise.resolve("");
  return edit({ kind: "connect", landmark: a, other: b, connected: !connectedTo(a).includes(b) });
}

// The value for an image without corrections. `places` are the places of labeled landmarks, by landmark; `moved` and `absent` are the landmarks
// that the user moved or marked as not visible; `done` is whether the user marked the image as done.
const UNCORRECTED = { places: {}, moved: [], absent: [], done: false };
export const correctionOf = (row) => state.card.corrections[row] ?? UNCORRECTED;

// Swap the side in a name ("left ear" becomes "right ear"). Returns "" if the name has no side.
export function otherSide(name) {
  const sides = { left: "right", right: "left" };
  const swapped = name.replace(/(^|[^a-z])(left|right)(?=$|[^a-z])/i, (match, before, side) => {
    const other = sides[side.toLowerCase()];
    if (side === side.toUpperCase()) return before + other.toUpperCase();
    return before + (side[0] === side[0].toUpperCase() ? other[0].toUpperCase() + other.slice(1) : other);
  });
  if (swapped !== name) return swapped;
  const short = name.replace(/(^|[_. -])([lr])(?=$|[_. -])/i, (match, before, side) =>
    before + { l: "r", r: "l", L: "R", R: "L" }[side]);
  return short === name ? "" : short;
}
