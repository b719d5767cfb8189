// Every action of SQS with the AWS SDK for JavaScript v3, one step per subject. See ../test_programs.py.

import assert from "node:assert/strict";

import * as aws from "@aws-sdk/client-sqs";

import { sqs } from "./connect.mjs";
import { ask, done, say } from "./conversation.mjs";

const actions = new Set();
sqs.middlewareStack.add(
  (next, context) => (args) => {
    actions.add(context.commandName.replace(/Command$/, ""));
    return next(args);
  },
  { step: "initialize" },
);

const send = (action, input) => sqs.send(new aws[`${action}Command`](input));

async function queue(name, Attributes = {}) {
  return (await send("CreateQueue", { QueueName: name, Attributes })).QueueUrl;
}

async function receive(QueueUrl, more = {}) {
  const reply = await send("ReceiveMessage", { QueueUrl, MaxNumberOfMessages: 10, ...more });
  return reply.Messages ?? [];
}

const bodies = (messages) => messages.map((message) => message.Body);

const handles = (messages, more = {}) =>
  messages.map(({ ReceiptHandle }, index) => ({ Id: String(index), ReceiptHandle, ...more }));

async function counted(QueueUrl) {
  const names = ["", "NotVisible", "Delayed"].map((state) => `ApproximateNumberOfMessages${state}`);
  const { Attributes } = await send("GetQueueAttributes", { QueueUrl, AttributeNames: names });
  return names.map((name) => Number(Attributes[name]));
}

async function attribute(QueueUrl, name) {
  const { Attributes } = await send("GetQueueAttributes", { QueueUrl, AttributeNames: [name] });
  return Attributes[name];
}

const steps = {
  async queues() {
    const names = ["page-0", "page-1", "page-2"];
    const urls = [];
    for (const name of names) urls.push(await queue(name));
    const listed = [];
    for await (const page of aws.paginateListQueues({ client: sqs, pageSize: 2 }, { QueueNamePrefix: "page-" })) {
      assert.ok(page.QueueUrls.length <= 2);
      listed.push(...page.QueueUrls);
    }
    assert.deepEqual(listed, urls);
    assert.equal((await send("GetQueueUrl", { QueueName: "page-1" })).QueueUrl, urls[1]);
    await send("SetQueueAttributes", { QueueUrl: urls[0], Attributes: { VisibilityTimeout: "5" } });
    const { Attributes } = await send("GetQueueAttributes", { QueueUrl: urls[0], AttributeNames: ["All"] });
    assert.equal(Attributes.VisibilityTimeout, "5");
    assert.match(Attributes.QueueArn, /^arn:aws:sqs:us-east-1:\d{12}:page-0$/);
  },

  async message() {
    const QueueUrl = await queue("message");
    const sent = await send("SendMessage", { QueueUrl, MessageBody: "é 漢 \u{10ffff} <&>" });
    const [message] = await receive(QueueUrl, { MessageSystemAttributeNames: ["All"] });
    assert.deepEqual([message.MessageId, message.Body], [sent.MessageId, "é 漢 \u{10ffff} <&>"]);
    assert.equal(message.Attributes.ApproximateReceiveCount, "1");
    assert.deepEqual(await receive(QueueUrl), []);
    await ask("advance", { ms: 30_000 });
    const [again] = await receive(QueueUrl, { AttributeNames: ["ApproximateReceiveCount"] });
    assert.equal(again.Attributes.ApproximateReceiveCount, "2");
    const { ReceiptHandle } = again;
    await send("ChangeMessageVisibility", { QueueUrl, ReceiptHandle, VisibilityTimeout: 60 });
    await ask("advance", { ms: 59_999 });
    assert.deepEqual(await counted(QueueUrl), [0, 1, 0]);
    await send("DeleteMessage", { QueueUrl, ReceiptHandle });
    assert.deepEqual(await counted(QueueUrl), [0, 0, 0]);
  },

  async delay() {
    const QueueUrl = await queue("delay");
    await send("SendMessage", { QueueUrl, MessageBody: "later", DelaySeconds: 900 });
    assert.deepEqual(await counted(QueueUrl), [0, 0, 1]);
    await ask("advance", { ms: 900_000 });
    assert.deepEqual(bodies(await receive(QueueUrl)), ["later"]);
  },

  async attributes() {
    const QueueUrl = await queue("attributes");
    const MessageAttributes = {
      text: { DataType: "String", StringValue: "漢" },
      number: { DataType: "Number.int", StringValue: "7" },
      bytes: { DataType: "Binary", BinaryValue: Uint8Array.of(0, 127, 128, 255) },
    };
    const MessageSystemAttributes = { AWSTraceHeader: { DataType: "String", StringValue: "Root=1" } };
    const sent = await send("SendMessage", { QueueUrl, MessageBody: "m", MessageAttributes, MessageSystemAttributes });
    const [message] = await receive(QueueUrl, {
      MessageAttributeNames: ["All"],
      MessageSystemAttributeNames: ["AWSTraceHeader"],
    });
    assert.deepEqual(message.MessageAttributes, MessageAttributes);
    assert.deepEqual(message.Attributes, { AWSTraceHeader: "Root=1" });
    assert.equal(message.MD5OfMessageAttributes, sent.MD5OfMessageAttributes);
    assert.ok(sent.MD5OfMessageSystemAttributes);
  },

  async batches() {
    const QueueUrl = await queue("batches");
    const texts = [..."0123456789"];
    const Entries = texts.map((text) => ({
      Id: text,
      MessageBody: text,
      MessageAttributes: { bytes: { DataType: "Binary", BinaryValue: Uint8Array.of(255) } },
    }));
    Entries[9].MessageBody = "\u0001";
    const sent = await send("SendMessageBatch", { QueueUrl, Entries });
    assert.deepEqual(sent.Successful.map(({ Id }) => Id), texts.slice(0, 9));
    assert.deepEqual(sent.Failed.map(({ Id, Code, SenderFault }) => [Id, Code, SenderFault]), [
      ["9", "InvalidMessageContents", true],
    ]);
    const messages = await receive(QueueUrl, { MessageAttributeNames: [".*"] });
    assert.deepEqual(bodies(messages).sort(), texts.slice(0, 9));
    const changes = handles(messages.slice(0, 4), { VisibilityTimeout: 0 });
    changes.push({ Id: "bad", ReceiptHandle: "nonsense", VisibilityTimeout: 0 });
    const changed = await send("ChangeMessageVisibilityBatch", { QueueUrl, Entries: changes });
    assert.equal(changed.Successful.length, 4);
    assert.deepEqual(changed.Failed.map(({ Id, Code }) => [Id, Code]), [["bad", "ReceiptHandleIsInvalid"]]);
    const deleted = await send("DeleteMessageBatch", { QueueUrl, Entries: handles(messages.slice(4)) });
    assert.equal(deleted.Successful.length, 5);
    assert.deepEqual(await counted(QueueUrl), [4, 0, 0]);
  },

  async longPoll() {
    const QueueUrl = await queue("long-poll");
    const waiting = receive(QueueUrl, { WaitTimeSeconds: 20 });
    await ask("parked");
    await send("SendMessage", { QueueUrl, MessageBody: "now" });
    assert.deepEqual(bodies(await waiting), ["now"]);
    const inVain = receive(QueueUrl, { WaitTimeSeconds: 20 });
    await ask("parked");
    await ask("advance", { ms: 20_000 });
    assert.deepEqual(await inVain, []);
  },

  async errors() {
    const QueueUrl = await queue("errors");
    const entry = (Id) => ({ Id, MessageBody: "m" });
    const Entries = [..."0123456789a"].map(entry);
    const table = {
      QueueDoesNotExist: () => send("GetQueueUrl", { QueueName: "none" }),
      QueueNameExists: () => queue("errors", { VisibilityTimeout: "31" }),
      InvalidAttributeName: () => send("SetQueueAttributes", { QueueUrl, Attributes: { Nope: "1" } }),
      InvalidAttributeValue: () => send("SetQueueAttributes", { QueueUrl, Attributes: { VisibilityTimeout: "43201" } }),
      InvalidMessageContents: () => send("SendMessage", { QueueUrl, MessageBody: "\u0001" }),
      EmptyBatchRequest: () => send("SendMessageBatch", { QueueUrl, Entries: [] }),
      TooManyEntriesInBatchRequest: () => send("SendMessageBatch", { QueueUrl, Entries }),
      BatchEntryIdsNotDistinct: () => send("SendMessageBatch", { QueueUrl, Entries: [entry("a"), entry("a")] }),
      InvalidBatchEntryId: () => send("SendMessageBatch", { QueueUrl, Entries: [entry("a b")] }),
      ReceiptHandleIsInvalid: () => send("DeleteMessage", { QueueUrl, ReceiptHandle: "nonsense" }),
    };
    for (const [name, call] of Object.entries(table)) {
      const error = await call().then(() => assert.fail(`no ${name}`), (raised) => raised);
      assert.ok(error instanceof aws[name], `${name}: ${error}`);
      assert.ok(error instanceof aws.SQSServiceException && error.message, name);
    }
  },

  async tags() {
    const { QueueUrl } = await send("CreateQueue", { QueueName: "tags", tags: { made: "with", gone: "soon" } });
    await send("TagQueue", { QueueUrl, Tags: { team: "é", none: "" } });
    await send("UntagQueue", { QueueUrl, TagKeys: ["gone"] });
    const { Tags } = await send("ListQueueTags", { QueueUrl });
    assert.deepEqual(Tags, { made: "with", team: "é", none: "" });
  },

  async deadLetters() {
    const dead = await queue("dead");
    const deadLetterTargetArn = await attribute(dead, "QueueArn");
    const RedrivePolicy = JSON.stringify({ deadLetterTargetArn, maxReceiveCount: 1 });
    const QueueUrl = await queue("alive", { RedrivePolicy });
    await send("SendMessage", { QueueUrl, MessageBody: "m" });
    assert.deepEqual(bodies(await receive(QueueUrl, { VisibilityTimeout: 0 })), ["m"]);
    assert.deepEqual(await receive(QueueUrl), []);
    const [message] = await receive(dead, { MessageSystemAttributeNames: ["DeadLetterQueueSourceArn"] });
    assert.equal(message.Body, "m");
    assert.equal(message.Attributes.DeadLetterQueueSourceArn, await attribute(QueueUrl, "QueueArn"));
    for await (const page of aws.paginateListDeadLetterSourceQueues({ client: sqs }, { QueueUrl: dead })) {
      assert.deepEqual(page.queueUrls, [QueueUrl]);
    }
  },

  // Three messages are moved at one a second; the task is cancelled before it ends.
  async moveTasks() {
    const dead = await queue("dead-2");
    const SourceArn = await attribute(dead, "QueueArn");
    const RedrivePolicy = JSON.stringify({ deadLetterTargetArn: SourceArn, maxReceiveCount: 1 });
    const QueueUrl = await queue("alive-2", { RedrivePolicy });
    const Entries = ["0", "1", "2"].map((Id) => ({ Id, MessageBody: Id }));
    await send("SendMessageBatch", { QueueUrl, Entries });
    await receive(QueueUrl, { VisibilityTimeout: 0 });
    assert.deepEqual(await receive(QueueUrl), []);
    assert.deepEqual(await counted(dead), [3, 0, 0]);
    const { TaskHandle } = await send("StartMessageMoveTask", { SourceArn, MaxNumberOfMessagesPerSecond: 1 });
    await ask("advance", { ms: 1000 });
    const [task] = (await send("ListMessageMoveTasks", { SourceArn, MaxResults: 10 })).Results;
    assert.deepEqual([task.Status, task.ApproximateNumberOfMessagesToMove], ["RUNNING", 3]);
    const moved = (await send("CancelMessageMoveTask", { TaskHandle })).ApproximateNumberOfMessagesMoved;
    assert.ok(moved > 0 && moved < 3, `moved ${moved}`);
    assert.deepEqual([(await counted(QueueUrl))[0], (await counted(dead))[0]], [moved, 3 - moved]);
  },

  async permissions() {
    const QueueUrl = await queue("permissions");
    const given = { AWSAccountIds: ["123456789012"], Actions: ["SendMessage", "ReceiveMessage"] };
    await send("AddPermission", { QueueUrl, Label: "one", ...given });
    await send("AddPermission", { QueueUrl, Label: "two", ...given });
    await send("RemovePermission", { QueueUrl, Label: "one" });
    const { Statement } = JSON.parse(await attribute(QueueUrl, "Policy"));
    assert.deepEqual(Statement.map(({ Sid, Effect }) => [Sid, Effect]), [["two", "Allow"]]);
  },

  async fifo() {
    const QueueUrl = await queue("steps.fifo", { FifoQueue: "true" });
    const given = ["a1", "a2", "b1", "a2"].map((text, index) => ({
      Id: String(index),
      MessageBody: text,
      MessageGroupId: text[0],
      MessageDeduplicationId: text,
    }));
    const { Successful } = await send("SendMessageBatch", { QueueUrl, Entries: given });
    assert.equal(Successful[3].MessageId, Successful[1].MessageId);
    assert.ok(Successful[0].SequenceNumber < Successful[1].SequenceNumber);
    const attempt = { ReceiveRequestAttemptId: "try", MaxNumberOfMessages: 1, AttributeNames: ["All"] };
    const [first] = await receive(QueueUrl, attempt);
    assert.deepEqual([first.Body, first.Attributes.MessageGroupId], ["a1", "a"]);
    assert.equal((await receive(QueueUrl, attempt))[0].ReceiptHandle, first.ReceiptHandle);
    assert.deepEqual(bodies(await receive(QueueUrl)), ["b1"]);
    await send("DeleteMessage", { QueueUrl, ReceiptHandle: first.ReceiptHandle });
    assert.deepEqual(bodies(await receive(QueueUrl)), ["a2"]);
  },

  async end() {
    const QueueUrl = await queue("end");
    await send("SendMessage", { QueueUrl, MessageBody: "m" });
    await send("PurgeQueue", { QueueUrl });
    assert.deepEqual(await counted(QueueUrl), [0, 0, 0]);
    await send("DeleteQueue", { QueueUrl });
    await assert.rejects(send("GetQueueUrl", { QueueName: "end" }), aws.QueueDoesNotExist);
  },
};

for (const [step, run] of Object.entries(steps)) {
  await run();
  say({ step });
}
say({ actions: [...actions] });
done();
