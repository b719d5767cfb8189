// A consumer of the npm package sqs-consumer, with its options as JSON in the first argument. See ../test_programs.py.

import { Consumer } from "sqs-consumer";

import { sqs } from "./connect.mjs";
import { ask, done, say } from "./conversation.mjs";

const { queueUrl, ...options } = JSON.parse(process.argv[2]);

// The test decides about each message: an error to throw, or how many messages of the batch to acknowledge.
async function handleMessages(messages) {
  const answer = await ask("handle", {
    bodies: messages.map(({ Body }) => Body),
    receives: messages.map(({ Attributes }) => Number(Attributes.ApproximateReceiveCount)),
  });
  if (answer.error) throw new Error(answer.error);
  return messages.slice(0, answer.acknowledge);
}

const handler =
  options.batchSize > 1
    ? { handleMessageBatch: handleMessages }
    : { handleMessage: async (message) => (await handleMessages([message]))[0] };

const consumer = Consumer.create({
  queueUrl,
  sqs,
  messageSystemAttributeNames: ["ApproximateReceiveCount"],
  strictReturn: true,
  ...handler,
  ...options,
});

for (const event of ["started", "stopped"]) consumer.on(event, () => say({ event }));
for (const event of ["processing_error", "error"]) consumer.on(event, ({ message }) => say({ event, message }));
consumer.on("message_processed", ({ Body }) => say({ event: "message_processed", body: Body }));

// Sends the first heartbeat when the test answers.
let beats = 0;
sqs.middlewareStack.add(
  (next, { commandName }) => async (args) => {
    if (!options.heartbeatInterval || !commandName.startsWith("ChangeMessageVisibility") || beats++) return next(args);
    await ask("heartbeat");
    const result = await next(args);
    say({ event: "heartbeat" });
    return result;
  },
  { step: "initialize" },
);

consumer.start();
const stopped = new Promise((resolve) => consumer.on("stopped", resolve));
consumer.stop(await ask("running"));
await stopped;
done();
