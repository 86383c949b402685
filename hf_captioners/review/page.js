"use strict";
// Texts of captions and names are set as text only, never as HTML.
const part = (id) => document.getElementById(id);
const state = { images: 0, kept: new Set(), number: 0, agreed: false, shown: [] };

async function asked(path, options) {
  const answer = await fetch(path, options);
  const body = await answer.json().catch(() => ({ error: `The server answered ${answer.status}.` }));
  return { status: answer.status, body };
}

function say(text, isError = false) {
  part("message").textContent = text;
  part("message").className = isError ? "error" : "";
}

function showCounts() {
  part("place").textContent = `Image ${state.number + 1} of ${state.images}`;
  part("kept").textContent = `${state.kept.size} kept`;
  part("progress").max = state.images;
  part("progress").value = state.kept.size;
}

async function show(number) {
  state.number = number;
  showCounts();
  part("fault").hidden = true;
  part("image").hidden = false;
  part("image").src = `images/${number}`;
  const { status, body } = await asked(`captions/${number}`);
  if (state.number !== number) return; // a key was pressed meanwhile
  if (status !== 200) return say(body.error, true);
  part("name").textContent = body.name;
  part("image").alt = body.name;
  part("captions").value = body.captions.join("\n");
  state.shown = body.source === "kept" ? body.captions : []; // of the table, which another program may change
  const sources = { kept: "kept already", table: "from the table of captions", "text file": "from the text file", none: "none yet" };
  part("source").textContent = `(${sources[body.source]})`;
  part("captions").focus();
}

function following() {
  for (let step = 1; step <= state.images; step++) {
    const number = (state.number + step) % state.images;
    if (!state.kept.has(number)) return number;
  }
  return null;
}

const moveBy = (step) => show((state.number + step + state.images) % state.images);

function goOn() {
  const number = following();
  if (number === null) {
    say("Every image has captions.");
    return show(state.number);
  }
  return show(number);
}

async function keep() {
  const number = state.number;
  const captions = part("captions").value.split("\n");
  const { status, body } = await asked(`captions/${number}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ captions, agreed: state.agreed, shown: state.shown }),
  });
  if (status === 409) {
    if (body.changed) state.changed = body.changed;
    part("question").textContent = body.ask;
    part("ask").returnValue = "no";
    return part("ask").showModal();
  }
  if (status !== 200) return say(body.error, true);
  state.kept.add(number);
  say(`${part("name").textContent} is kept.`);
  return goOn();
}

part("ask").addEventListener("close", () => {
  const changed = state.changed;
  state.changed = undefined;
  if (part("ask").returnValue !== "yes") return say("Nothing was written.");
  if (changed) state.shown = changed;
  state.agreed = true;
  return keep();
});

part("image").addEventListener("error", async () => {
  const number = state.number;
  const { body } = await asked(`images/${number}`);
  if (state.number !== number) return;
  part("image").hidden = true;
  part("fault").hidden = false;
  part("fault").textContent = `This image cannot be read: ${body.error}`;
});

const actions = { keep, skip: goOn, previous: () => moveBy(-1), next: () => moveBy(1) };
let busy = Promise.resolve(); // one action after the other, however fast keys are pressed
function act(name) {
  busy = busy.then(actions[name]).catch((error) => say(`The server does not answer (${error.message}).`, true));
}
for (const name of Object.keys(actions)) part(name).addEventListener("click", () => act(name));

document.addEventListener("keydown", (event) => {
  if (part("ask").open || event.isComposing) return;
  const name =
    event.key === "Enter" && !event.shiftKey && event.target.tagName !== "BUTTON" ? "keep"
    : event.key === "Escape" ? "skip"
    : event.altKey && event.key === "ArrowLeft" ? "previous"
    : event.altKey && event.key === "ArrowRight" ? "next"
    : null;
  if (name === null) return;
  event.preventDefault();
  act(name);
});

async function begin() {
  const { status, body } = await asked("folder");
  if (status !== 200) return say(body.error, true);
  state.images = body.images;
  state.kept = new Set(body.kept);
  part("folder").textContent = body.folder;
  state.number = state.images - 1; // so that what follows is the first image without captions
  const first = following();
  return show(first === null ? 0 : first);
}
busy = busy.then(begin).catch((error) => say(`The server does not answer (${error.message}).`, true));
