// The captions of an image, a field each.
"use strict";
const LONGEST = 2000;

export class CaptionFields {
  constructor(list, changed) {
    this.list = list;
    this.changed = changed;
    list.addEventListener("input", (event) => { this.fit(event.target); changed(); });
  }

  get fields() { return [...this.list.querySelectorAll("textarea")]; }
  get texts() { return this.fields.map((field) => field.value); }

  show(captions) {
    this.list.replaceChildren();
    for (const text of captions.length ? captions : [""]) this.insert(text, null);
    this.number();
  }

  insert(text, after) {
    const item = document.createElement("li"), field = document.createElement("textarea");
    const remove = document.createElement("button");
    Object.assign(field, { value: text, rows: 2, dir: "auto", spellcheck: true, maxLength: LONGEST, autocomplete: "off" });
    field.enterKeyHint = "done";
    Object.assign(remove, { type: "button", textContent: "×", className: "remove" });
    remove.addEventListener("click", () => this.remove(item));
    item.append(field, remove);
    if (after === null) this.list.append(item);
    else after.after(item);
    this.fit(field);
    return field;
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
      field.setAttribute("aria-label", `Caption ${place + 1}`);
      field.nextElementSibling.setAttribute("aria-label", `Remove caption ${place + 1}`);
      field.nextElementSibling.hidden = this.fields.length < 2;
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
