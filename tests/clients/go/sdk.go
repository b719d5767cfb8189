// The actions of SQS with the AWS SDK for Go v2. See ../test_other_programs.py.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

var ctx = context.Background()

var client = sqs.New(sqs.Options{
	BaseEndpoint: aws.String(os.Getenv("VEILMQ_ENDPOINT")),
	Region:       "us-east-1",
	Credentials: credentials.NewStaticCredentialsProvider(
		os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY"), ""),
})

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func check(holds bool, values ...any) {
	if !holds {
		panic(fmt.Sprint(values...))
	}
}

func say(report map[string]any) {
	fmt.Println(string(must(json.Marshal(report))))
}

var answers = bufio.NewReader(os.Stdin)

// Asks the test for something that only it can do, and waits until it is done.
func ask(question string, details map[string]any) {
	report := map[string]any{"ask": question, "id": 0}
	maps.Copy(report, details)
	say(report)
	must(answers.ReadString('\n'))
}

func queue(name string, attributes map[string]string) *string {
	return must(client.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: &name, Attributes: attributes})).QueueUrl
}

func send(url *string, body string) {
	must(client.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: url, MessageBody: &body}))
}

func receive(url *string, wait int32) []types.Message {
	return must(client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl: url, MaxNumberOfMessages: 10, WaitTimeSeconds: wait, MessageAttributeNames: []string{"All"},
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
	})).Messages
}

func remove(url *string, message types.Message) {
	must(client.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: url, ReceiptHandle: message.ReceiptHandle}))
}

func attribute(url *string, name types.QueueAttributeName) string {
	reply := must(client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl: url, AttributeNames: []types.QueueAttributeName{name}}))
	return reply.Attributes[string(name)]
}

func queues() {
	url := queue("go-queues", map[string]string{"VisibilityTimeout": "45"})
	found := must(client.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: aws.String("go-queues")})).QueueUrl
	check(*found == *url, *found)
	check(attribute(url, types.QueueAttributeNameVisibilityTimeout) == "45")
	listed := must(client.ListQueues(ctx, &sqs.ListQueuesInput{QueueNamePrefix: aws.String("go-q")})).QueueUrls
	check(slices.Equal(listed, []string{*url}), listed)
	must(client.TagQueue(ctx, &sqs.TagQueueInput{QueueUrl: url, Tags: map[string]string{"team": "blue"}}))
	check(must(client.ListQueueTags(ctx, &sqs.ListQueueTagsInput{QueueUrl: url})).Tags["team"] == "blue")
	must(client.DeleteQueue(ctx, &sqs.DeleteQueueInput{QueueUrl: url}))
}

func message() {
	url := queue("go-message", nil)
	text, binary := "höhe <&> \U0001f600", []byte{0, 255, 128}
	must(client.SendMessage(ctx, &sqs.SendMessageInput{
		QueueUrl: url, MessageBody: &text,
		MessageAttributes: map[string]types.MessageAttributeValue{
			"size": {DataType: aws.String("Number.int"), StringValue: aws.String("7")},
			"seal": {DataType: aws.String("Binary"), BinaryValue: binary},
		},
	}))
	got := receive(url, 0)
	check(len(got) == 1 && *got[0].Body == text, got)
	check(slices.Equal(got[0].MessageAttributes["seal"].BinaryValue, binary))
	check(*got[0].MessageAttributes["size"].StringValue == "7")
	check(got[0].Attributes["ApproximateReceiveCount"] == "1")
	remove(url, got[0])
	check(attribute(url, types.QueueAttributeNameApproximateNumberOfMessagesNotVisible) == "0")
}

func batches() {
	url := queue("go-batches", nil)
	var entries []types.SendMessageBatchRequestEntry
	for number := range 10 {
		id := strconv.Itoa(number)
		entries = append(entries, types.SendMessageBatchRequestEntry{Id: &id, MessageBody: aws.String("m" + id)})
	}
	entries[3].DelaySeconds = 901
	sent := must(client.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{QueueUrl: url, Entries: entries}))
	check(len(sent.Successful) == 9 && len(sent.Failed) == 1 && *sent.Failed[0].Id == "3", sent.Failed)
	var gone []types.DeleteMessageBatchRequestEntry
	for number, message := range receive(url, 0) {
		id := strconv.Itoa(number)
		gone = append(gone, types.DeleteMessageBatchRequestEntry{Id: &id, ReceiptHandle: message.ReceiptHandle})
	}
	deleted := must(client.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{QueueUrl: url, Entries: gone}))
	check(len(deleted.Successful) == 9 && len(deleted.Failed) == 0, deleted)
}

func visibility() {
	url := queue("go-visibility", nil)
	send(url, "again")
	first := receive(url, 0)[0]
	check(len(receive(url, 0)) == 0)
	must(client.ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{
		QueueUrl: url, ReceiptHandle: first.ReceiptHandle, VisibilityTimeout: 0}))
	second := receive(url, 0)[0]
	check(second.Attributes["ApproximateReceiveCount"] == "2", second.Attributes)
	ask("advance", map[string]any{"ms": 30_000})
	check(receive(url, 0)[0].Attributes["ApproximateReceiveCount"] == "3")
}

func longPoll() {
	url := queue("go-poll", nil)
	got := make(chan []types.Message)
	go func() { got <- receive(url, 20) }()
	ask("parked", nil)
	send(url, "woken")
	check(*(<-got)[0].Body == "woken")
}

func failures() {
	_, err := client.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: aws.String("go-none")})
	var missing *types.QueueDoesNotExist
	check(errors.As(err, &missing), err)
	url := queue("go-errors", nil)
	_, err = client.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: url, ReceiptHandle: aws.String("made-up")})
	var invalid *types.ReceiptHandleIsInvalid
	check(errors.As(err, &invalid), err)
}

func deadLetters() {
	dead := queue("go-dead", nil)
	policy := fmt.Sprintf(`{"deadLetterTargetArn":"%s","maxReceiveCount":"1"}`,
		attribute(dead, types.QueueAttributeNameQueueArn))
	url := queue("go-source", map[string]string{"RedrivePolicy": policy, "VisibilityTimeout": "0"})
	send(url, "poison")
	receive(url, 0)
	check(len(receive(url, 0)) == 0)
	check(*receive(dead, 0)[0].Body == "poison")
}

func fifo() {
	url := queue("go.fifo", map[string]string{"FifoQueue": "true", "ContentBasedDeduplication": "true"})
	for _, body := range []string{"a", "b", "a"} {
		must(client.SendMessage(ctx, &sqs.SendMessageInput{
			QueueUrl: url, MessageBody: aws.String(body), MessageGroupId: aws.String("group")}))
	}
	got := receive(url, 0)
	check(len(got) == 2 && *got[0].Body == "a" && *got[1].Body == "b", got)
	check(got[0].Attributes["SequenceNumber"] < got[1].Attributes["SequenceNumber"])
	check(len(receive(url, 0)) == 0)
}

func main() {
	steps := []struct {
		name string
		run  func()
	}{
		{"queues", queues}, {"message", message}, {"batches", batches}, {"visibility", visibility},
		{"long_poll", longPoll}, {"errors", failures}, {"dead_letters", deadLetters}, {"fifo", fifo},
	}
	for _, step := range steps {
		step.run()
		say(map[string]any{"step": step.name})
	}
}
