// Talks with the test that runs the program: one JSON object per line out, lines in. See ../program.py.

import { createInterface } from "node:readline";

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

export function say(report) {
  process.stdout.write(JSON.stringify(report) + "\n");
}

// Asks the test to do something that only it can do, and waits until it is done.
export async function ask(what, details = {}) {
  say({ ask: what, ...details });
  return (await lines.next()).value;
}

// Waits for a line of the test.
export async function told() {
  return (await lines.next()).value;
}

// Standard input keeps a program alive; call this when it has nothing more to hear.
export function done() {
  process.stdin.destroy();
}
