// What is typed is sent at once; while a request is on its way, only the newest text waits.
"use strict";
import { asked } from "./requests.js";
const RETRY = 2000; // milliseconds

export class DraftQueue {
  constructor(told) {
    this.told = told; // (draft, answer, error)
    this.waiting = null;
    this.current = null;
    this.sending = null;
  }

  put(draft) {
    const time = performance.timeOrigin + performance.now();
    const begins = draft.begins || (this.waiting !== null && this.waiting.begins);
    this.waiting = { ...draft, begins, time };
    this.start();
  }

  start() {
    clearTimeout(this.timer);
    this.sending ??= this.send().finally(() => { this.sending = null; });
    this.sending.catch(() => {});
    return this.sending;
  }

  async send() {
    while (this.waiting !== null) {
      const draft = this.current = this.waiting;
      this.waiting = null;
      try {
        const { status, body } = await asked(`drafts/${draft.number}`, draft);
        if (status !== 200) throw new Error(body.error);
        this.told(draft, body, null);
      } catch (error) {
        this.waiting ??= draft;
        this.timer = setTimeout(() => this.start(), RETRY);
        this.told(draft, null, error);
        throw error;
      } finally {
        this.current = null;
      }
    }
  }

  // Resolves once everything is stored; fails if it cannot be.
  async stored() {
    while (this.sending !== null || this.waiting !== null) await this.start();
  }

  get isPending() { return this.waiting !== null || this.current !== null; }

  // The page goes away: the request outlives it.
  leave() {
    if (this.waiting !== null) asked(`drafts/${this.waiting.number}`, this.waiting).catch(() => {});
  }
}
