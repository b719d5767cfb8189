<?php
// The actions of SQS with AsyncAws SQS 1.7.0 of Debian 12; region and keys come from the environment. See ../test_other_programs.py.

require '/usr/share/php/AsyncAws/Sqs/autoload.php';

use AsyncAws\Core\Exception\Http\ClientException;
use AsyncAws\Sqs\SqsClient;

$sqs = new SqsClient(['endpoint' => getenv('VEILMQ_ENDPOINT')]);

function check(bool $holds, mixed $found): void
{
    if (!$holds) {
        throw new Exception(var_export($found, true));
    }
}

// Asks the test for something that only it can do, and waits until it is done.
function ask(string $question, int $ms = 0): void
{
    echo json_encode(['ask' => $question, 'id' => 0, 'ms' => $ms]), "\n";
    fgets(STDIN);
}

function queue(string $name, array $attributes = []): string
{
    global $sqs;
    return $sqs->createQueue(['QueueName' => $name, 'Attributes' => $attributes])->getQueueUrl();
}

function receive(string $url, int $wait = 0): array
{
    global $sqs;
    $more = ['MaxNumberOfMessages' => 10, 'MessageAttributeNames' => ['All'], 'AttributeNames' => ['All']];
    return $sqs->receiveMessage(['QueueUrl' => $url, 'WaitTimeSeconds' => $wait] + $more)->getMessages();
}

function attribute(string $url, string $name): string
{
    global $sqs;
    return $sqs->getQueueAttributes(['QueueUrl' => $url, 'AttributeNames' => [$name]])->getAttributes()[$name];
}

function failure(callable $call): string
{
    try {
        $call()->resolve();
    } catch (ClientException $error) {
        return $error->getAwsCode();
    }
    throw new Exception('no error');
}

$steps = [
    'queues' => function () use ($sqs) {
        $url = queue('php-queues', ['VisibilityTimeout' => '45']);
        check($sqs->getQueueUrl(['QueueName' => 'php-queues'])->getQueueUrl() === $url, $url);
        check(attribute($url, 'VisibilityTimeout') === '45', $url);
        $listed = iterator_to_array($sqs->listQueues(['QueueNamePrefix' => 'php-q'])->getQueueUrls());
        check($listed === [$url], $listed);
        $sqs->deleteQueue(['QueueUrl' => $url])->resolve();
    },
    'message' => function () use ($sqs) {
        $url = queue('php-message');
        $attributes = [
            'size' => ['DataType' => 'Number.int', 'StringValue' => '7'],
            'seal' => ['DataType' => 'Binary', 'BinaryValue' => "\x00\xff\x80"],
        ];
        $body = "höhe <&> \u{1f600}";
        $sqs->sendMessage(['QueueUrl' => $url, 'MessageBody' => $body, 'MessageAttributes' => $attributes])->resolve();
        [$got] = receive($url);
        check($got->getBody() === $body, $got);
        check($got->getMessageAttributes()['seal']->getBinaryValue() === "\x00\xff\x80", $got);
        check($got->getAttributes()['ApproximateReceiveCount'] === '1', $got);
        $sqs->deleteMessage(['QueueUrl' => $url, 'ReceiptHandle' => $got->getReceiptHandle()])->resolve();
        check(attribute($url, 'ApproximateNumberOfMessagesNotVisible') === '0', $url);
    },
    'batches' => function () use ($sqs) {
        $url = queue('php-batches');
        $entry = fn (int $number) => [
            'Id' => "e$number", 'MessageBody' => "m$number", 'DelaySeconds' => 3 === $number ? 901 : 0,
        ];
        $sent = $sqs->sendMessageBatch(['QueueUrl' => $url, 'Entries' => array_map($entry, range(0, 9))]);
        check(9 === count($sent->getSuccessful()) && 'e3' === $sent->getFailed()[0]->getId(), $sent);
        $gone = fn ($message, int $number) => ['Id' => "e$number", 'ReceiptHandle' => $message->getReceiptHandle()];
        $got = receive($url);
        $entries = array_map($gone, $got, array_keys($got));
        $deleted = $sqs->deleteMessageBatch(['QueueUrl' => $url, 'Entries' => $entries]);
        check(9 === count($deleted->getSuccessful()) && [] === $deleted->getFailed(), $deleted);
    },
    'visibility' => function () use ($sqs) {
        $url = queue('php-visibility');
        $sqs->sendMessage(['QueueUrl' => $url, 'MessageBody' => 'again'])->resolve();
        [$first] = receive($url);
        check([] === receive($url), $first);
        $handle = ['QueueUrl' => $url, 'ReceiptHandle' => $first->getReceiptHandle()];
        $sqs->changeMessageVisibility($handle + ['VisibilityTimeout' => 0])->resolve();
        check('2' === receive($url)[0]->getAttributes()['ApproximateReceiveCount'], $first);
        ask('advance', 30_000);
        check('3' === receive($url)[0]->getAttributes()['ApproximateReceiveCount'], $first);
    },
    'long_poll' => function () use ($sqs) {
        $url = queue('php-poll');
        $poll = $sqs->receiveMessage(['QueueUrl' => $url, 'WaitTimeSeconds' => 20]);
        $poll->resolve(1.0); // AsyncAws sends a request only while the program waits for a reply
        ask('parked');
        $sqs->sendMessage(['QueueUrl' => $url, 'MessageBody' => 'woken'])->resolve();
        check('woken' === $poll->getMessages()[0]->getBody(), $url);
    },
    'errors' => function () use ($sqs) {
        $code = failure(fn () => $sqs->getQueueUrl(['QueueName' => 'php-none']));
        check(str_ends_with($code, 'NonExistentQueue'), $code);
        $url = queue('php-errors');
        $code = failure(fn () => $sqs->deleteMessage(['QueueUrl' => $url, 'ReceiptHandle' => 'made-up']));
        check('ReceiptHandleIsInvalid' === $code, $code);
    },
    'dead_letters' => function () use ($sqs) {
        $dead = queue('php-dead');
        $policy = json_encode(['deadLetterTargetArn' => attribute($dead, 'QueueArn'), 'maxReceiveCount' => '1']);
        $url = queue('php-source', ['RedrivePolicy' => $policy, 'VisibilityTimeout' => '0']);
        $sqs->sendMessage(['QueueUrl' => $url, 'MessageBody' => 'poison'])->resolve();
        receive($url);
        check([] === receive($url), $url);
        check('poison' === receive($dead)[0]->getBody(), $dead);
    },
    'fifo' => function () use ($sqs) {
        $url = queue('php.fifo', ['FifoQueue' => 'true', 'ContentBasedDeduplication' => 'true']);
        foreach (['a', 'b', 'a'] as $body) {
            $sqs->sendMessage(['QueueUrl' => $url, 'MessageBody' => $body, 'MessageGroupId' => 'group'])->resolve();
        }
        $bodies = array_map(fn ($message) => $message->getBody(), receive($url));
        check(['a', 'b'] === $bodies, $bodies);
        check([] === receive($url), $url);
    },
];

foreach ($steps as $name => $run) {
    $run();
    echo json_encode(['step' => $name]), "\n";
}
