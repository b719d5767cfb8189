// Talks with the test that runs the program: JSON objects out, one per line, and answers in. See ../program.py.

import { createInterface } from "node:readline";

const asked = new Map();

createInterface({ input: process.stdin }).on("line", (line) => {
  const { id, answer } = JSON.parse(line);
  asked.get(id)(answer);
  asked.delete(id);
});

export function say(report) {
  process.stdout.write(JSON.stringify(report) + "\n");
}

// Asks the test for something that only it can know or do; several questions may be open at once.
let questions = 0;

export function ask(question, details = {}) {
  const id = questions++;
  const answered = new Promise((resolve) => asked.set(id, resolve));
  say({ ask: question, id, ...details });
  return answered;
}

// Standard input keeps a program alive; call this when it has nothing more to ask.
export function done() {
  process.stdin.destroy();
}
