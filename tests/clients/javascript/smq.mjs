// Every operation on queues with the SDK of SMQ for JavaScript, one step per subject. See ../test_programs.py.

import assert from "node:assert/strict";

import { ask, done, say } from "./conversation.mjs";
import { mns } from "./smq_connect.mjs";

const { endpoint } = mns;

async function queue(name, attributes = {}) {
  const { code, headers } = await mns.createQueue(name, attributes);
  assert.ok(code === 201 || code === 204, `created: ${code}`);
  assert.equal(headers.location, `${endpoint}/queues/${name}`);
  return name;
}

const send = async (name, body, more = {}) => (await mns.sendMessage(name, { MessageBody: body, ...more })).body;
const receive = async (name) => (await mns.receiveMessage(name)).body;
const bodies = (messages) => messages.map(({ MessageBody }) => MessageBody);
const fails = (call, code) => assert.rejects(call, (error) => error.name === `MNS${code}Error` || assert.fail(error));

async function counted(name) {
  const { body } = await mns.getQueueAttributes(name);
  return [body.ActiveMessages, body.InactiveMessages, body.DelayMessages].map(Number);
}

const steps = {
  async queues() {
    const names = ["page-0", "page-1", "page-2"];
    for (const name of names) await queue(name);
    assert.equal((await mns.createQueue("page-0", { VisibilityTimeout: 30 })).code, 204);
    await fails(mns.createQueue("page-0", { VisibilityTimeout: 31 }), "QueueAlreadyExist");

    const urls = ({ body }) => body.map(({ QueueURL }) => QueueURL);
    const expected = names.map((name) => `${endpoint}/queues/${name}`);
    assert.deepEqual(urls(await mns.listQueue("", 1000, "page-")), expected);
    assert.deepEqual(urls(await mns.listQueue("", 2, "page-")), expected.slice(0, 2));
    assert.deepEqual((await mns.listQueue("", 2, "none-")).body, undefined);

    // The SDK does not return the marker of the next page, but its client does.
    const paged = [];
    for (let marker = ""; marker !== undefined; ) {
      const headers = { "x-mns-prefix": "page-", "x-mns-ret-number": 2, "x-mns-marker": marker };
      const { body } = await mns.get("/queues", "Queues", { headers });
      paged.push(...body.Queue.map(({ QueueURL }) => QueueURL));
      marker = body.NextMarker;
    }
    assert.deepEqual(paged, expected);
  },

  async attributes() {
    const given = { DelaySeconds: 1, MaximumMessageSize: 2048, MessageRetentionPeriod: 3600, VisibilityTimeout: 43200 };
    const name = await queue("attributes", { ...given, PollingWaitSeconds: 30, LoggingEnabled: true });
    const { body } = await mns.getQueueAttributes(name);
    for (const [key, value] of Object.entries(given)) assert.equal(body[key], String(value), key);
    assert.deepEqual([body.QueueName, body.PollingWaitSeconds, body.LoggingEnabled], [name, "30", "True"]);
    assert.equal((await mns.setQueueAttributes(name, { VisibilityTimeout: 1 })).code, 204);
    assert.equal((await mns.getQueueAttributes(name)).body.VisibilityTimeout, "1");
    assert.equal((await mns.getQueueAttributes(name)).body.DelaySeconds, "1");
    await fails(mns.setQueueAttributes(name, { VisibilityTimeout: 0 }), "InvalidArgument");
    await fails(mns.setQueueAttributes(name, { VisibilityTimeout: 43201 }), "InvalidArgument");
  },

  async message() {
    const name = await queue("message");
    const text = "é 漢 \u{10ffff} &lt;&amp;&gt;"; // the SDK does not escape
    const sent = await send(name, text);
    const first = await receive(name);
    await fails(mns.receiveMessage(name), "MessageNotExist");
    assert.equal(first.MessageBody, "é 漢 \u{10ffff} <&>");
    assert.deepEqual([first.MessageId, first.MessageBodyMD5], [sent.MessageId, sent.MessageBodyMD5]);
    assert.deepEqual([first.DequeueCount, first.Priority], ["1", "8"]);
    assert.equal(Number(first.NextVisibleTime), Number(first.FirstDequeueTime) + 30_000);
    await ask("advance", { ms: 29_999 });
    await fails(mns.receiveMessage(name), "MessageNotExist");
    await ask("advance", { ms: 1 });
    const second = await receive(name);
    assert.equal(second.DequeueCount, "2");
    await fails(mns.deleteMessage(name, first.ReceiptHandle), "MessageNotExist");
    assert.equal((await mns.deleteMessage(name, second.ReceiptHandle)).code, 204);
    assert.deepEqual(await counted(name), [0, 0, 0]);
  },

  async visibility() {
    const name = await queue("visibility");
    await send(name, "m");
    const { ReceiptHandle: old } = await receive(name);
    const { body } = await mns.changeMessageVisibility(name, old, 60);
    assert.notEqual(body.ReceiptHandle, old);
    await fails(mns.changeMessageVisibility(name, old, 60), "MessageNotExist");
    await fails(mns.deleteMessage(name, old), "MessageNotExist");
    await fails(mns.changeMessageVisibility(name, body.ReceiptHandle, 0), "InvalidArgument");
    await ask("advance", { ms: 59_999 });
    assert.deepEqual(await counted(name), [0, 1, 0]);
    assert.equal((await mns.deleteMessage(name, body.ReceiptHandle)).code, 204);
  },

  async delay() {
    const name = await queue("delay");
    const { ReceiptHandle } = await send(name, "later", { DelaySeconds: 604_800 });
    await send(name, "never", { DelaySeconds: 10 }).then((sent) => mns.deleteMessage(name, sent.ReceiptHandle));
    assert.deepEqual(await counted(name), [0, 0, 1]);
    await mns.changeMessageVisibility(name, ReceiptHandle, 1);
    await ask("advance", { ms: 1000 });
    assert.equal((await receive(name)).MessageBody, "later");
  },

  async priorities() {
    const name = await queue("priorities");
    for (const [body, Priority] of [["low", 16], ["high", 1], ["middle", 8]]) await send(name, body, { Priority });
    const peeked = await mns.batchPeekMessage(name, 16);
    assert.deepEqual(bodies(peeked.body), ["high", "middle", "low"]);
    assert.equal(peeked.body[0].ReceiptHandle, undefined);
    assert.equal((await mns.peekMessage(name)).body.MessageBody, "high");
    assert.deepEqual(bodies((await mns.batchReceiveMessage(name, 16)).body), ["high", "middle", "low"]);
    await fails(mns.peekMessage(name), "MessageNotExist");
    await fails(mns.batchPeekMessage(name, 16), "MessageNotExist");
  },

  async batches() {
    const name = await queue("batches");
    const texts = [..."0123456789abcdef"];
    const sent = await mns.batchSendMessage(name, texts.map((MessageBody) => ({ MessageBody, Priority: 1 })));
    assert.equal(sent.code, 201);
    assert.equal(new Set(sent.body.map(({ MessageId }) => MessageId)).size, 16);
    await fails(mns.batchSendMessage(name, [...texts, "g"].map((MessageBody) => ({ MessageBody }))), "InvalidArgument");
    await fails(mns.batchReceiveMessage(name, 17), "InvalidArgument");
    const { body: messages } = await mns.batchReceiveMessage(name, 16);
    assert.deepEqual(bodies(messages), texts);
    const receipts = messages.map(({ ReceiptHandle }) => ReceiptHandle);
    const all = await mns.batchDeleteMessage(name, receipts.slice(0, 8));
    assert.deepEqual([all.code, all.body], [204, undefined]);

    // The valid ones are deleted; the reply has an entry for each of the others.
    const some = await mns.batchDeleteMessage(name, ["nonsense", ...receipts.slice(7)]);
    assert.equal(some.code, 404);
    assert.deepEqual(some.body, [
      {
        ErrorCode: "ReceiptHandleError",
        ErrorMessage: "The receipt handle you provide is not valid.",
        ReceiptHandle: "nonsense",
      },
      { ErrorCode: "MessageNotExist", ErrorMessage: "Message not exist.", ReceiptHandle: receipts[7] },
    ]);
    assert.deepEqual(await counted(name), [0, 0, 0]);
  },

  async longPoll() {
    const name = await queue("long-poll");
    const waiting = mns.receiveMessage(name, 30);
    await ask("parked");
    await send(name, "now");
    assert.equal((await waiting).body.MessageBody, "now");
    const inVain = fails(mns.batchReceiveMessage(name, 16, 30), "MessageNotExist");
    await ask("parked");
    await ask("advance", { ms: 30_000 });
    await inVain;
  },

  async errors() {
    const name = await queue("errors");
    const table = {
      QueueNotExist: () => mns.getQueueAttributes("none"),
      InvalidQueueName: () => mns.createQueue("no_name"),
      QueueNameLengthError: () => mns.createQueue("n".repeat(257)),
      InvalidArgument: () => send(name, ""),
      MalformedXML: () => send(name, "a & b"),
      ReceiptHandleError: () => mns.deleteMessage(name, "nonsense"),
      MessageNotExist: () => mns.receiveMessage(name),
    };
    for (const [code, call] of Object.entries(table)) await fails(call(), code);
    for (const body of ["x".repeat(70_000), "x".repeat(9_000_000), "a<b/>c"]) await fails(send(name, body), "InvalidArgument");
    await fails(mns.receiveMessage(name), "MessageNotExist");
  },

  async end() {
    const name = await queue("end");
    await send(name, "m");
    assert.equal((await mns.deleteQueue(name)).code, 204);
    assert.equal((await mns.deleteQueue(name)).code, 204);
    await fails(mns.receiveMessage(name), "QueueNotExist");
  },
};

for (const [step, run] of Object.entries(steps)) {
  await run();
  say({ step });
}
done();
