// A consumer of the npm package sqs-consumer, its options as JSON in the first argument. See ../test_sqs_consumer.py.

import { Consumer } from "sqs-consumer";

import { sqs } from "./connect.mjs";
import { ask, done, say } from "./conversation.mjs";

const { queueUrl, ...options } = JSON.parse(process.argv[2]);

// The test decides over each message: "done", or what to throw, or how many of a batch to acknowledge.
async function decided(messages) {
  const answer = await ask("handle", {
    bodies: messages.map(({ Body }) => Body),
    receives: messages.map(({ Attributes }) => Number(Attributes.ApproximateReceiveCount)),
  });
  if (answer.error) throw new Error(answer.error);
  return messages.slice(0, answer.acknowledge);
}

const handler =
  options.batchSize > 1
    ? { handleMessageBatch: decided }
    : { handleMessage: async (message) => (await decided([message]))[0] };

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

// The first heartbeat goes out when the test says so.
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
