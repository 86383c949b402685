"use strict";
import { asked } from "./requests.js";
import { DraftQueue } from "./drafts.js";
import { CaptionFields } from "./fields.js";
import { Overview } from "./overview.js";

const part = (id) => document.getElementById(id);
const state = { images: 0, names: [], kept: new Set(), rejected: new Set(), drafts: new Set(), number: 0, order: [], confidences: null, confidence: null, shown: [], begins: true, agreed: false };
const isReviewed = (number) => state.kept.has(number) || state.rejected.has(number);
const filters = {
  all: () => true,
  open: (number) => !isReviewed(number),
  kept: (number) => state.kept.has(number),
  rejected: (number) => state.rejected.has(number),
  drafts: (number) => state.drafts.has(number),
};
const sources = {
  kept: "kept already", rejected: "rejected", draft: "draft, not kept yet", none: "none yet",
  table: "from the file of captions", "text file": "from the text file",
};
const UNREACHABLE = "The server does not answer. What you typed last is not stored yet: copy it, start `hf-captioners review` again, and open the new address.";

function say(text, isError = false) {
  part("message").textContent = text;
  part("message").className = isError ? "error" : "";
}

const explained = (error) => (error instanceof TypeError ? UNREACHABLE : error.message);

function showCounts() {
  const { images, kept, rejected, drafts } = state;
  part("place").textContent = `Image ${state.number + 1} of ${images}`;
  part("kept").textContent = `${kept.size} kept`;
  part("rejected").textContent = `${rejected.size} rejected`;
  part("drafts").textContent = `${drafts.size} draft${drafts.size === 1 ? "" : "s"}`;
  part("progress").max = images;
  part("progress").value = kept.size + rejected.size;
}

function showSource(source) {
  const isProposed = ["table", "text file"].includes(source) && state.confidence !== null;
  part("source").textContent = `(${sources[source]}${isProposed ? `; confidence ${state.confidence.toFixed(2)}` : ""})`;
  part("source").className = source;
}

function take(states) {
  for (const name of ["kept", "rejected", "drafts"]) state[name] = new Set(states[name]);
  showCounts();
}

const queue = new DraftQueue((draft, answer, error) => {
  if (error !== null) return say(explained(error), true);
  if (part("message").className === "error") say("");
  state.drafts[answer.draft ? "add" : "delete"](draft.number);
  showCounts();
  if (draft.number === state.number) showSource(answer.draft ? "draft" : state.source);
});

const fields = new CaptionFields(part("captions"), () => {
  queue.put({ number: state.number, captions: fields.texts, shown: state.shown, begins: state.begins });
  state.begins = false;
});

const isSelecting = () => ["filter", "order"].includes(document.activeElement.id); // whose arrow keys go on to the next kind
const isJumping = () => document.activeElement === part("target");
const focusContent = () => (part("grid").hidden ? fields : overview).focus();

async function show(number) {
  const { status, body } = await asked(`captions/${number}`);
  if (status !== 200) return say(body.error, true);
  state.number = number; // from here on nothing waits: what is typed meanwhile belongs to the image before
  history.replaceState(null, "", `#${number + 1}`);
  showCounts();
  part("one").hidden = false;
  part("grid").hidden = true;
  part("overview").setAttribute("aria-pressed", "false");
  part("fault").hidden = true;
  part("image").hidden = false;
  part("image").src = `images/${number}`;
  part("name").textContent = body.name;
  part("image").alt = body.name;
  state.shown = body.shown; // of the table, which another program may change
  state.source = body.draft ? (body.kept ? "kept" : body.rejected ? "rejected" : "none") : body.source;
  state.begins = true;
  state.confidence = body.assessed[0]?.confidence ?? null; // of the caption that is proposed
  fields.show(body.captions, body.assessed);
  showSource(body.source);
  part("buttons").after(part("message"));
  if (isSelecting() || isJumping() || matchMedia("(pointer: coarse)").matches) return; // a phone would open its keyboard
  fields.focus();
}

// The first image in their order that a condition holds for, after the current one (which comes last) or before it.
function following(condition, step = 1, from = state.order.indexOf(state.number)) {
  for (let away = 1; away <= state.images; away++) {
    const number = state.order[(from + step * away + away * state.images) % state.images];
    if (condition(number)) return number;
  }
  return null;
}

const first = () => following(filters.open, 1, state.images - 1) ?? state.order[0];

function sort() {
  const numbers = state.names.map((_, number) => number), sure = (number) => state.confidences[number] ?? 2;
  state.order = part("order").value === "doubt" ? numbers.sort((a, b) => sure(a) - sure(b) || a - b) : numbers;
}

function reordered() {
  sort();
  return part("grid").hidden ? show(first()) : showOverview();
}

function moveBy(step) {
  const number = following(filters[part("filter").value], step);
  if (number === null) return say("No image is of this kind. Show all images to go on.");
  return show(number);
}

function goOn(told = "") {
  const filter = part("filter").value;
  const number = following(filters[filter === "all" ? "open" : filter]);
  const isAll = state.kept.size + state.rejected.size === state.images;
  const rest = number !== null ? "" : isAll ? "Every image is reviewed." : "No other image is of this kind. Show all images to go on.";
  say(`${told} ${rest}`.trim());
  if (number !== null) return show(number);
  return show(state.number);
}

async function change(path, done) {
  const { number, shown } = state;
  const time = performance.timeOrigin + performance.now();
  const { status, body } = await asked(`${path}/${number}`, { captions: fields.texts, agreed: state.agreed, shown, time });
  if (status === 409) {
    state.again = { path, done, changed: body.changed };
    part("question").textContent = body.ask;
    part("ask").returnValue = "no";
    return part("ask").showModal();
  }
  if (status !== 200) return say(body.error, true);
  for (const name of ["kept", "rejected", "drafts"]) state[name].delete(number);
  return goOn(done(number, body));
}

const keep = () => change("captions", (number, body) => {
  state.kept.add(number);
  return `${state.names[number]} is kept. ${body.note ?? ""}`;
});

const reject = () => change("rejected", (number) => {
  state.rejected.add(number);
  return `${state.names[number]} is rejected: not for training.`;
});

part("ask").addEventListener("close", () => {
  const { path, done, changed } = state.again;
  if (part("ask").returnValue !== "yes") return say("Nothing was written.");
  if (changed) state.shown = changed;
  state.agreed = true;
  return run(() => change(path, done));
});

async function turn(path) {
  const { status, body } = await asked(path, {});
  if (status !== 200) return say(body.error, status !== 404);
  take(body);
  say(body.message);
  return show(body.number);
}

function jump() {
  const text = part("target").value.trim(), wanted = text.toLowerCase();
  if (!text) return say("Type the number of an image, or a part of its name.");
  if (/^\d+$/.test(text) && Number(text) >= 1 && Number(text) <= state.images) {
    part("target").value = "";
    return show(Number(text) - 1);
  }
  const number = following((one) => state.names[one].toLowerCase().includes(wanted));
  if (number === null) return say(`No image has the number or name ${text}.`, true);
  const count = state.names.filter((name) => name.toLowerCase().includes(wanted)).length;
  say(count > 1 ? `${count} names have “${text}”; go again for the next one.` : "");
  return show(number);
}

const overview = new Overview(part("grid"), (number) => run(() => show(number)));
function describe(number) {
  const [is, badge] = state.drafts.has(number) ? ["draft", "Draft"] : state.kept.has(number) ? ["kept", "Kept"]
    : state.rejected.has(number) ? ["rejected", "Rejected"] : ["", ""];
  const sure = is === "kept" || is === "rejected" ? null : state.confidences?.[number] ?? null;
  return { text: [number + 1, ...(sure === null ? [] : [sure.toFixed(2)]), state.names[number]].join(" · "), state: is, badge };
}

function showOverview() {
  const numbers = state.order.filter(filters[part("filter").value]);
  part("one").hidden = true;
  part("grid").hidden = false;
  part("overview").setAttribute("aria-pressed", "true");
  part("grid").before(part("message"));
  say(numbers.length ? "" : "No image is of this kind.");
  overview.show(numbers, describe, state.number);
  if (!isSelecting() && !isJumping()) overview.focus(); // nothing takes the keyboard from a name that is typed
}

function filtered() {
  if (!part("grid").hidden) return showOverview();
  const condition = filters[part("filter").value];
  return condition(state.number) ? say("") : moveBy(1);
}

part("image").addEventListener("error", async () => {
  const number = state.number;
  const { body } = await asked(`images/${number}`).catch(() => ({ body: { error: "the server does not answer." } }));
  if (state.number !== number) return;
  part("image").hidden = true;
  part("fault").hidden = false;
  part("fault").textContent = `This image cannot be read: ${body.error}`;
});

let busy = Promise.resolve(); // one action after the other, however fast keys are pressed
function run(action) {
  busy = busy.then(async () => {
    await queue.stored(); // nothing is left before what was typed is stored
    if (!part("ask").open) await action();
  }).catch((error) => say(explained(error), true));
}

// What is kept or rejected is what was on the page when the key was pressed.
function decide(decision) {
  const { number } = state;
  return run(() => (state.number === number ? decision() : undefined));
}

const actions = {
  skip: () => goOn(), previous: () => moveBy(-1), next: () => moveBy(1),
  undo: () => turn("undo"), redo: () => turn("redo"),
  overview: () => (part("grid").hidden ? showOverview() : show(state.number)),
};
for (const name of Object.keys(actions)) part(name).addEventListener("click", () => run(actions[name]));
part("keep").addEventListener("click", () => decide(keep));
part("reject").addEventListener("click", () => decide(reject));
part("add").addEventListener("click", () => fields.add());
part("filter").addEventListener("change", () => run(filtered));
part("order").addEventListener("change", () => run(reordered));
part("jump").addEventListener("submit", (event) => { event.preventDefault(); part("target").blur(); run(jump); });

const letters = { o: "overview", z: "undo" };
function actionOf(event) {
  const key = event.key.toLowerCase(), isGrid = !part("grid").hidden;
  if (event.altKey && !event.ctrlKey) {
    const letter = /^[a-z]$/.test(key) ? key : event.code.startsWith("Key") ? event.code.slice(3).toLowerCase() : ""; // a Mac types signs with Alt
    if (letter === "g") return () => part("target").select();
    if (letter === "l") return () => part("filter").focus();
    if (letter === "d" && !part("orders").hidden) return () => part("order").focus();
    if (letter === "z" && event.shiftKey) return () => run(actions.redo);
    if (letter in letters) return () => run(actions[letters[letter]]);
    if (isGrid) return null;
    if (letter === "r") return () => decide(reject);
    if (event.key === "ArrowLeft") return () => run(actions.previous);
    if (event.key === "ArrowRight") return () => run(actions.next);
    return null;
  }
  const isField = event.target.tagName === "TEXTAREA", isControl = ["BUTTON", "INPUT", "SELECT"].includes(event.target.tagName);
  if (isSelecting() && ["Enter", "Escape"].includes(event.key)) return focusContent;
  if (event.key === "Escape") {
    if (isGrid) return () => run(actions.overview);
    return isControl && event.target.tagName !== "BUTTON" ? () => fields.focus() : () => run(actions.skip);
  }
  if (isGrid || isControl || event.key !== "Enter") return null;
  return event.shiftKey ? (isField ? () => fields.add() : null) : () => decide(keep);
}

document.addEventListener("keydown", (event) => {
  if (part("ask").open || event.isComposing) return;
  const action = actionOf(event);
  if (action === null) return;
  event.preventDefault();
  if (!event.repeat || event.key.startsWith("Arrow")) action(); // a key that is held down keeps one image only
});

addEventListener("pagehide", () => queue.leave());
addEventListener("beforeunload", (event) => { if (part("message").className === "error" && queue.isPending) event.preventDefault(); });
addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });

async function begin() {
  const { status, body } = await asked("folder");
  if (status !== 200) return say(body.error, true);
  Object.assign(state, { images: body.images, names: body.names, confidences: body.confidences });
  fields.doubtfulBelow = body.doubtful_below;
  part("orders").hidden = body.confidences === null;
  sort();
  part("folder").textContent = body.folder;
  take(body);
  const typed = Number(location.hash.slice(1));
  if (Number.isInteger(typed) && typed >= 1 && typed <= state.images) return show(typed - 1);
  return show(first());
}
run(begin);
