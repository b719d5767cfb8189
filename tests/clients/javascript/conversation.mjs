// The program's side of the conversation with the test: reports and questions. See ../program.py.

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

// Asks the test for something that only it can do; several questions may be open at once.
let questions = 0;

export function ask(question, details = {}) {
  const id = questions++;
  const answered = new Promise((resolve) => asked.set(id, resolve));
  say({ ask: question, id, ...details });
  return answered;
}

// Standard input keeps the program alive; call this after the last question.
export function done() {
  process.stdin.destroy();
}
