// What the page knows, and the only way to change it. Views ask to be told of changes with `watch`.

export const state = {
  run: null, // title, images, landmarks, longest_name, usual_colors
  said: null, // names, mirror, skeleton, colors, hidden, confirmed, notes, revision
  selected: 0, // landmark
  row: 0, // image
  view: "images",
  tool: "choose", // choose, connect or pair
  first: null, // the landmark chosen first while connecting or pairing
};

const watchers = [];
let undone = []; // edits to send for redo
let done = []; // edits to send for undo

export function watch(watcher) {
  watchers.push(watcher);
}

// Change what is looked at, not what is saved.
export function look(changes) {
  Object.assign(state, changes);
  tell(Object.keys(changes));
}

function tell(changed) {
  for (const watcher of watchers) watcher(new Set(changed));
}

// --- the server -----------------------------------------------------------------------------------

async function ask(address, options = {}) {
  let answer;
  try {
    answer = await fetch(address, options);
  } catch {
    const error = new Error("selfmark no longer answers. Start 'selfmark name' again; nothing that was saved is lost.");
    error.gone = true;
    throw error;
  }
  if (answer.status === 204) return null;
  if (answer.ok) return answer.json();
  const json = (answer.headers.get("content-type") || "").includes("json");
  const words = json ? (await answer.json()).error : await answer.text();
  throw new Error(typeof words === "string" ? words : "selfmark did not understand this.");
}

export const get = (address) => ask(address);

// A picture's address; browsers keep pictures, so those of another run on the same port must have another.
export const picture = (row, kind) => `/pictures/${row}/${kind}?of=${state.run.pictures}`;

export async function start() {
  [state.run, state.said] = await Promise.all([get("/api/run"), get("/api/names")]);
  recall();
  tell(["run", "said", "selected", "row", "view", "tool"]);
  setInterval(follow, 3000);
}

// Others may be naming too, on another screen or in another process.
async function follow() {
  if (document.hidden) return;
  try {
    const said = await get(`/api/names?known=${state.said.revision}`);
    trouble("");
    if (said) {
      state.said = said;
      tell(["said"]);
    }
  } catch (error) {
    trouble(error.message);
  }
}

export function trouble(words) {
  const place = document.getElementById("trouble");
  place.textContent = words;
  place.hidden = !words;
}

// --- edits ------------------------------------------------------------------------------------------

async function send(edits) {
  const answer = await ask("/api/edits", {
    method: "POST",
    headers: { "content-type": "application/json", "x-selfmark": "1" },
    body: JSON.stringify({ edits }),
  });
  const { back, ...said } = answer;
  state.said = said;
  return back;
}

// Save edits; resolves to "" or to the words that say why they cannot be.
export async function edit(...edits) {
  try {
    const back = await send(edits);
    done.push(back);
    undone = [];
    return finish("Saved");
  } catch (error) {
    return fail(error);
  }
}

async function step(from, onto, word) {
  const edits = from.at(-1);
  if (!edits) return "";
  try {
    onto.push(await send(edits));
    from.pop();
    return finish(word);
  } catch (error) {
    if (!error.gone) from.pop(); // it can no longer be done: somebody else has changed what it was about
    remember();
    return fail(error);
  }
}

export const undo = () => step(done, undone, "Undone");
export const redo = () => step(undone, done, "Redone");
export const canUndo = () => done.length > 0;
export const canRedo = () => undone.length > 0;

function finish(word) {
  remember();
  trouble("");
  announce(word);
  tell(["said"]);
  return "";
}

function fail(error) {
  trouble(error.message);
  tell(["said"]);
  return error.message;
}

let quiet;
export function announce(words) {
  const place = document.getElementById("saved");
  place.textContent = words;
  place.classList.add("fresh");
  clearTimeout(quiet);
  quiet = setTimeout(() => place.classList.remove("fresh"), 1600);
}

// Undo outlives a reload of the page, for as long as its tab is open.
const drawer = () => `selfmark ${state.run.title} ${state.run.landmarks}`;

function remember() {
  const kept = { done: done.slice(-200), undone: undone.slice(-200), selected: state.selected, row: state.row };
  sessionStorage.setItem(drawer(), JSON.stringify(kept));
}

function recall() {
  const kept = JSON.parse(sessionStorage.getItem(drawer()) || "{}");
  done = kept.done || [];
  undone = kept.undone || [];
  state.selected = Math.min(kept.selected || 0, state.run.landmarks - 1);
  state.row = Math.min(kept.row || 0, state.run.images - 1);
}

// --- small questions ----------------------------------------------------------------------------------

export const isHidden = (index) => state.said.hidden.includes(index);
export const isConfirmed = (index) => state.said.confirmed.includes(index);
export const partner = (index) => state.said.mirror[index];
export const indices = () => [...state.said.names.keys()];
export const isNamed = (index) => state.said.names[index] !== `landmark_${index}`;
export const connections = (index) =>
  state.said.skeleton.filter((edge) => edge.includes(index)).map(([a, b]) => (a === index ? b : a));
export const connected = (a, b) => connections(a).includes(b);

// What a tool does with two landmarks.
export function join(tool, a, b) {
  if (tool === "pair") return edit({ kind: "pair", landmark: a, partner: b });
  if (a === b) return Promise.resolve("");
  return edit({ kind: "connect", landmark: a, other: b, connected: !connected(a, b) });
}

// "left ear" for "right ear": what a partner may be called.
export function otherSide(name) {
  const sides = { left: "right", right: "left" };
  const swapped = name.replace(/(^|[^a-z])(left|right)(?=$|[^a-z])/i, (all, before, side) => {
    const other = sides[side.toLowerCase()];
    if (side === side.toUpperCase()) return before + other.toUpperCase();
    return before + (side[0] === side[0].toUpperCase() ? other[0].toUpperCase() + other.slice(1) : other);
  });
  if (swapped !== name) return swapped;
  const short = name.replace(/(^|[_. -])([lr])(?=$|[_. -])/i, (all, before, side) =>
    before + { l: "r", r: "l", L: "R", R: "L" }[side]);
  return short === name ? "" : short;
}
