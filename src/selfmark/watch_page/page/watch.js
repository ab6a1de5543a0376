// Fetches the state of the run every two seconds and shows it.

const INTERVAL = 2000; // milliseconds between two requests
const element = id => document.getElementById(id);
let selected = null; // step whose preview the user chose; null shows the newest preview
let previews = []; // previews of all steps so far, as the server lists them
let chosenView = null; // view that the user chose; null shows the view that is training
let view = ""; // view that is shown; empty for a run without views
let timer = null; // timer of the next request

function make(name, text = "", attributes = {}) {
  const made = document.createElement(name);
  made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function describeTime(seconds) {
  if (seconds === null) return "";
  if (seconds < 90) return `${seconds} s left`;
  const minutes = Math.round(seconds / 60);
  return minutes < 90 ? `${minutes} min left` : `${Math.floor(minutes / 60)} h ${minutes % 60} min left`;
}

function showPicture() {
  const shown = previews.find(preview => preview.step === selected) ?? previews.at(-1);
  if (!shown) {
    element("picture-link").hidden = true;
    element("caption").textContent = "Images with landmarks appear here as soon as the run has found the first landmarks.";
    return;
  }
  const address = `/preview/${encodeURIComponent(shown.step)}?view=${encodeURIComponent(view)}&v=${shown.version}`;
  if (element("picture").getAttribute("src") !== address) element("picture").src = address;
  element("picture").alt = `Images with landmarks: ${shown.caption}`;
  element("picture-link").href = address;
  element("picture-link").hidden = false;
  element("caption").textContent = shown.note ? `${shown.caption}: ${shown.note}` : shown.caption;
  for (const button of element("steps").children) {
    button.setAttribute("aria-pressed", String(button.dataset.step === shown.step));
  }
}

function showSteps(newPreviews) {
  const isSame = newPreviews.map(item => item.step).join() === previews.map(item => item.step).join();
  previews = newPreviews;
  if (!isSame) {
    element("steps").replaceChildren(...previews.map(preview => {
      const button = make("button", preview.caption, { type: "button", "data-step": preview.step });
      button.addEventListener("click", () => {
        selected = preview.step === previews.at(-1).step ? null : preview.step;
        showPicture();
      });
      return button;
    }));
  }
  showPicture();
}

// Draws a loss curve in a box of 100 x 40 units; points are [iteration, loss].
function drawChart({ name, points }) {
  const losses = points.map(point => point[1]);
  const [low, high] = [Math.min(...losses), Math.max(...losses)];
  const [first, last] = [points[0][0], points.at(-1)[0]];
  const x = iteration => (100 * (iteration - first)) / (last - first || 1);
  const y = loss => 38 - (36 * (loss - low)) / (high - low || 1);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 100 40");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `Loss of ${name}: from ${losses[0].toPrecision(3)} to ${losses.at(-1).toPrecision(3)}`);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  line.setAttribute("points", points.map(([iteration, loss]) => `${x(iteration)},${y(loss)}`).join(" "));
  svg.append(line);
  const caption = make("figcaption");
  caption.append(make("span", name), make("span", losses.at(-1).toPrecision(3)));
  const figure = make("figure");
  figure.append(svg, caption);
  return figure;
}

function showViews(state) {
  element("views").hidden = state.views.length === 0;
  const texts = state.views.map(({ name, status }) => `${name}: ${status}`);
  const buttons = [...element("views").children];
  if (buttons.map(button => button.textContent).join() !== texts.join()) {
    element("views").replaceChildren(...state.views.map(({ name }, index) => {
      const button = make("button", texts[index], { type: "button", "data-view": name });
      button.addEventListener("click", () => {
        chosenView = name;
        refresh();
      });
      return button;
    }));
  }
  for (const button of element("views").children) {
    button.setAttribute("aria-pressed", String(button.dataset.view === state.view));
  }
}

function show(state) {
  const name = state.view ? `${state.title}, view ${state.view}` : state.title;
  view = state.view;
  showViews(state);
  element("title").textContent = name;
  document.title = `${name} · ${state.stage}`;
  element("status").textContent = state.status;
  element("status").className = state.status;
  element("stage").textContent = state.stage;
  const [done, total] = state.progress;
  element("bar").max = total || 1;
  element("bar").value = done;
  element("left").textContent = state.status === "running" ? describeTime(state.seconds_left) : "";
  element("summary").replaceChildren(...state.summary.map(sentence => make("p", sentence)));
  element("verdict").hidden = !state.verdict;
  element("verdict").textContent = `Verdict: ${state.verdict}`;
  element("resume").hidden = state.status !== "stopped";
  element("command").textContent = state.resume;
  showSteps(state.previews);
  element("loss").hidden = state.losses.length === 0;
  element("charts").replaceChildren(...state.losses.map(drawChart));
  element("notes").hidden = state.messages.length === 0;
  element("messages").replaceChildren(...state.messages.map(message => make("li", message)));
}

function showError(text) {
  element("error").hidden = !text;
  element("error").textContent = text;
}

async function refresh() {
  let isDone = false;
  clearTimeout(timer);
  try {
    const response = await fetch(`/api/state?view=${encodeURIComponent(chosenView ?? "")}`);
    if (!response.ok) throw new Error(`${response.status} ${await response.text()}`);
    const state = await response.json();
    show(state);
    showError("");
    isDone = state.is_done;
  } catch (error) {
    // fetch raises a TypeError if it cannot connect.
    const reason = error instanceof TypeError ? "the server has stopped" : error.message;
    showError(`The state of the run is unknown: ${reason}. Run 'selfmark watch' to open this page again.`);
  }
  clearTimeout(timer); // a click on a view may have started another timer in the meantime
  if (!isDone) timer = setTimeout(refresh, INTERVAL);
}

refresh();
