// The captions of an image, a field each; doubtful words are underlined, and named below for whoever sees no line.
"use strict";
const LONGEST = 2000;
const isLetter = (text) => /[\p{L}\p{N}]/u.test(text);

// Places [start, end, word] of words in a text, in their order; words that are not in it any more have none.
function placesOf(text, words) {
  const small = text.toLowerCase(), lowered = small.length === text.length ? small : text;
  const places = [];
  let from = 0;
  for (const word of words) {
    let start = lowered.indexOf(word.word, from);
    const end = () => start + word.word.length;
    while (start >= 0 && (isLetter(lowered[start - 1] ?? "") || isLetter(lowered[end()] ?? ""))) start = lowered.indexOf(word.word, start + 1);
    if (start < 0) continue;
    places.push([start, end(), word]);
    from = end();
  }
  return places;
}

export class CaptionFields {
  constructor(list, changed) {
    this.list = list;
    this.changed = changed;
    this.doubtfulBelow = 0;
    list.addEventListener("input", (event) => { this.mark(event.target.closest("li")); this.fit(event.target); changed(); });
  }

  get fields() { return [...this.list.querySelectorAll("textarea")]; }
  get texts() { return this.fields.map((field) => field.value); }

  // assessed: for each caption null, or its `words` with the confidence of each.
  show(captions, assessed = []) {
    this.list.replaceChildren();
    (captions.length ? captions : [""]).forEach((text, place) => this.insert(text, null, assessed[place]?.words ?? []));
    this.number();
  }

  insert(text, after, words = []) {
    const item = document.createElement("li"), field = document.createElement("textarea");
    const around = document.createElement("div"), marks = document.createElement("div"), doubt = document.createElement("span");
    const remove = document.createElement("button");
    Object.assign(field, { value: text, rows: 2, dir: "auto", spellcheck: true, maxLength: LONGEST, autocomplete: "off" });
    field.enterKeyHint = "done";
    Object.assign(remove, { type: "button", textContent: "×", className: "remove" });
    remove.addEventListener("click", () => this.remove(item));
    Object.assign(around, { className: "field" });
    Object.assign(marks, { className: "marks", dir: "auto", ariaHidden: "true" });
    Object.assign(doubt, { className: "doubt", hidden: true });
    item.doubtful = words.filter((word) => word.confidence < this.doubtfulBelow);
    around.append(field, marks, doubt);
    item.append(around, remove);
    this.mark(item);
    if (after === null) this.list.append(item);
    else after.after(item);
    this.fit(field);
    return field;
  }

  // Underlines the doubtful words that are still in the text.
  mark(item) {
    const [field, marks, doubt] = item.querySelector(".field").children;
    const places = placesOf(field.value, item.doubtful);
    let from = 0;
    marks.replaceChildren();
    for (const [start, end] of places) {
      const mark = document.createElement("mark");
      mark.textContent = field.value.slice(start, end);
      marks.append(field.value.slice(from, start), mark);
      from = end;
    }
    marks.append(field.value.slice(from)); // the end of a line from right to left moves its words
    doubt.hidden = !places.length;
    doubt.replaceChildren("Doubtful: ", ...places.flatMap(([, , { word, confidence }], place) => {
      const name = document.createElement("bdi"); // a word of Arabic keeps its number beside it
      name.textContent = word;
      return [place ? ", " : "", name, ` ${confidence.toFixed(2)}`];
    }));
  }

  add() {
    const focused = this.list.contains(document.activeElement) ? document.activeElement.closest("li") : null;
    const field = this.insert("", focused);
    this.number();
    field.focus();
    this.changed();
  }

  remove(item) {
    const next = item.nextElementSibling ?? item.previousElementSibling;
    item.remove();
    this.number();
    next.querySelector("textarea").focus();
    this.changed();
  }

  number() {
    this.fields.forEach((field, place) => {
      const remove = field.closest("li").querySelector(".remove"), doubt = field.parentElement.lastElementChild;
      doubt.id = `doubt${place + 1}`;
      field.setAttribute("aria-label", `Caption ${place + 1}`);
      field.setAttribute("aria-describedby", doubt.id);
      remove.setAttribute("aria-label", `Remove caption ${place + 1}`);
      remove.hidden = this.fields.length < 2;
    });
  }

  fit(field) {
    field.style.height = "auto";
    field.style.height = `${field.scrollHeight + 2}px`;
    if (field === document.activeElement) field.scrollIntoView({ block: "nearest" });
  }

  focus() {
    const field = this.fields[0];
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }
}
