// What this service has done, by the key of each message: a file of JSON lines, in place of a database.
//
// A message may come twice: after a time-out, a crash, or when an operator replays it. So its key is kept together
// with the effect, and both are written at once. In a database that is one transaction.

import { appendFileSync, existsSync, readFileSync } from "node:fs";

export class Effects {
  #path;
  #keys;

  constructor(path) {
    this.#path = path;
    const lines = existsSync(path) ? readFileSync(path, "utf8").trimEnd().split("\n") : [];
    this.#keys = new Set(lines.filter(Boolean).map((line) => JSON.parse(line).key));
  }

  /** Take effect, unless this was done before. Returns whether it was done now. Throws if it cannot be kept. */
  once(key, effect) {
    if (this.#keys.has(key)) return false;
    appendFileSync(this.#path, JSON.stringify({ key, ...effect }) + "\n");
    this.#keys.add(key);
    return true;
  }
}
