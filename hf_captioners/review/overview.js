// Thumbnails of the images that the filter shows; they load when they come into sight.
"use strict";
const AT_ONCE = 120;

export class Overview {
  constructor(grid, opened) {
    this.grid = grid;
    this.opened = opened;
    this.end = document.createElement("div");
    new IntersectionObserver((seen) => { if (seen.some((one) => one.isIntersecting)) this.more(); }).observe(this.end);
    grid.addEventListener("keydown", (event) => this.move(event));
  }

  show(numbers, described, current) {
    Object.assign(this, { numbers, described, next: 0 });
    this.grid.replaceChildren(this.end);
    this.place = Math.max(0, numbers.indexOf(current));
    do this.more(); while (this.next <= this.place && this.next < numbers.length);
  }

  focus() {
    const button = this.grid.querySelectorAll("button")[this.place];
    if (!button) return;
    button.focus();
    button.scrollIntoView({ block: "center" });
  }

  more() {
    for (const number of this.numbers?.slice(this.next, this.next + AT_ONCE) ?? []) {
      const button = document.createElement("button"), image = document.createElement("img");
      const name = document.createElement("span"), { text, state, badge } = this.described(number);
      button.type = "button";
      button.className = state;
      Object.assign(image, { loading: "lazy", alt: "", src: `thumbnails/${number}` });
      image.addEventListener("error", () => { image.classList.add("broken"); });
      name.textContent = text;
      name.dir = "auto";
      button.append(image, name);
      if (badge) {
        const mark = document.createElement("b");
        mark.textContent = badge;
        button.append(mark);
      }
      button.addEventListener("click", () => this.opened(number));
      this.end.before(button);
    }
    this.next += AT_ONCE;
  }

  move(event) {
    const buttons = [...this.grid.querySelectorAll("button")], place = buttons.indexOf(document.activeElement);
    if (place < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
    const top = buttons[0].offsetTop, first = buttons.findIndex((button) => button.offsetTop > top);
    const row = first < 0 ? buttons.length : first;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -row, ArrowDown: row, Home: -place, End: buttons.length - 1 - place };
    const button = buttons[place + (steps[event.key] ?? NaN)];
    if (!(event.key in steps)) return;
    event.preventDefault();
    if (button) button.focus();
  }
}
