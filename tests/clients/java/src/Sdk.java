import java.net.URI;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.stream.IntStream;
import software.amazon.awssdk.core.SdkBytes;
import software.amazon.awssdk.services.sqs.SqsClient;
import software.amazon.awssdk.services.sqs.model.ChangeMessageVisibilityRequest;
import software.amazon.awssdk.services.sqs.model.DeleteMessageBatchRequestEntry;
import software.amazon.awssdk.services.sqs.model.Message;
import software.amazon.awssdk.services.sqs.model.MessageAttributeValue;
import software.amazon.awssdk.services.sqs.model.MessageSystemAttributeName;
import software.amazon.awssdk.services.sqs.model.QueueAttributeName;
import software.amazon.awssdk.services.sqs.model.QueueDoesNotExistException;
import software.amazon.awssdk.services.sqs.model.ReceiptHandleIsInvalidException;
import software.amazon.awssdk.services.sqs.model.SendMessageBatchRequestEntry;

/** The actions of SQS with the AWS SDK for Java 2; region and keys come from the environment. */
final class Sdk {
    private static final SqsClient SQS =
            SqsClient.builder().endpointOverride(URI.create(System.getenv("VEILMQ_ENDPOINT"))).build();

    private static String queue(String name, Map<QueueAttributeName, String> attributes) {
        return SQS.createQueue(request -> request.queueName(name).attributes(attributes)).queueUrl();
    }

    private static void send(String url, String body) {
        SQS.sendMessage(request -> request.queueUrl(url).messageBody(body));
    }

    private static List<Message> receive(String url, int wait) {
        return SQS.receiveMessage(request -> request.queueUrl(url)
                        .maxNumberOfMessages(10)
                        .waitTimeSeconds(wait)
                        .messageAttributeNames("All")
                        .messageSystemAttributeNames(MessageSystemAttributeName.ALL))
                .messages();
    }

    private static String attribute(String url, QueueAttributeName name) {
        return SQS.getQueueAttributes(request -> request.queueUrl(url).attributeNames(name)).attributes().get(name);
    }

    private static String count(Message message) {
        return message.attributes().get(MessageSystemAttributeName.APPROXIMATE_RECEIVE_COUNT);
    }

    private static void queues() {
        String url = queue("java-queues", Map.of(QueueAttributeName.VISIBILITY_TIMEOUT, "45"));
        Test.check(SQS.getQueueUrl(request -> request.queueName("java-queues")).queueUrl().equals(url), url);
        Test.check(attribute(url, QueueAttributeName.VISIBILITY_TIMEOUT).equals("45"), url);
        List<String> listed = SQS.listQueues(request -> request.queueNamePrefix("java-q")).queueUrls();
        Test.check(listed.equals(List.of(url)), listed);
        SQS.tagQueue(request -> request.queueUrl(url).tags(Map.of("team", "blue")));
        Test.check(SQS.listQueueTags(request -> request.queueUrl(url)).tags().get("team").equals("blue"), url);
        SQS.deleteQueue(request -> request.queueUrl(url));
    }

    private static void message() {
        String url = queue("java-message", Map.of());
        String text = "höhe <&> \uD83D\uDE00";
        SdkBytes binary = SdkBytes.fromByteArray(new byte[] {0, -1, -128});
        SQS.sendMessage(request -> request.queueUrl(url)
                .messageBody(text)
                .messageAttributes(Map.of(
                        "size", MessageAttributeValue.builder().dataType("Number.int").stringValue("7").build(),
                        "seal", MessageAttributeValue.builder().dataType("Binary").binaryValue(binary).build())));
        Message got = receive(url, 0).get(0);
        Test.check(got.body().equals(text), got);
        Test.check(got.messageAttributes().get("seal").binaryValue().equals(binary), got);
        Test.check(got.messageAttributes().get("size").stringValue().equals("7"), got);
        Test.check(count(got).equals("1"), got);
        SQS.deleteMessage(request -> request.queueUrl(url).receiptHandle(got.receiptHandle()));
        String hidden = attribute(url, QueueAttributeName.APPROXIMATE_NUMBER_OF_MESSAGES_NOT_VISIBLE);
        Test.check(hidden.equals("0"), hidden);
    }

    private static void batches() {
        String url = queue("java-batches", Map.of());
        List<SendMessageBatchRequestEntry> entries = IntStream.range(0, 10)
                .mapToObj(number -> SendMessageBatchRequestEntry.builder()
                        .id("e" + number)
                        .messageBody("m" + number)
                        .delaySeconds(number == 3 ? 901 : 0)
                        .build())
                .toList();
        var sent = SQS.sendMessageBatch(request -> request.queueUrl(url).entries(entries));
        Test.check(sent.successful().size() == 9 && sent.failed().get(0).id().equals("e3"), sent);
        List<Message> got = receive(url, 0);
        List<DeleteMessageBatchRequestEntry> gone = IntStream.range(0, got.size())
                .mapToObj(number -> DeleteMessageBatchRequestEntry.builder()
                        .id("e" + number)
                        .receiptHandle(got.get(number).receiptHandle())
                        .build())
                .toList();
        var deleted = SQS.deleteMessageBatch(request -> request.queueUrl(url).entries(gone));
        Test.check(deleted.successful().size() == 9 && deleted.failed().isEmpty(), deleted);
    }

    private static void visibility() throws Exception {
        String url = queue("java-visibility", Map.of());
        send(url, "again");
        Message first = receive(url, 0).get(0);
        Test.check(receive(url, 0).isEmpty(), first);
        SQS.changeMessageVisibility(ChangeMessageVisibilityRequest.builder()
                .queueUrl(url)
                .receiptHandle(first.receiptHandle())
                .visibilityTimeout(0)
                .build());
        Test.check(count(receive(url, 0).get(0)).equals("2"), first);
        Test.ask("advance", 30_000);
        Test.check(count(receive(url, 0).get(0)).equals("3"), first);
    }

    private static void longPoll() throws Exception {
        String url = queue("java-poll", Map.of());
        CompletableFuture<List<Message>> got = CompletableFuture.supplyAsync(() -> receive(url, 20));
        Test.ask("parked", 0);
        send(url, "woken");
        Test.check(got.get().get(0).body().equals("woken"), got);
    }

    private static void errors() throws Exception {
        Test.failure(
                QueueDoesNotExistException.class, () -> SQS.getQueueUrl(request -> request.queueName("java-none")));
        String url = queue("java-errors", Map.of());
        Test.failure(
                ReceiptHandleIsInvalidException.class,
                () -> SQS.deleteMessage(request -> request.queueUrl(url).receiptHandle("made-up")));
    }

    private static void deadLetters() {
        String dead = queue("java-dead", Map.of());
        String arn = attribute(dead, QueueAttributeName.QUEUE_ARN);
        String policy = "{\"deadLetterTargetArn\":\"" + arn + "\",\"maxReceiveCount\":\"1\"}";
        String url = queue(
                "java-source",
                Map.of(QueueAttributeName.REDRIVE_POLICY, policy, QueueAttributeName.VISIBILITY_TIMEOUT, "0"));
        send(url, "poison");
        receive(url, 0);
        Test.check(receive(url, 0).isEmpty(), url);
        Test.check(receive(dead, 0).get(0).body().equals("poison"), dead);
    }

    private static void fifo() {
        String url = queue(
                "java.fifo",
                Map.of(QueueAttributeName.FIFO_QUEUE, "true", QueueAttributeName.CONTENT_BASED_DEDUPLICATION, "true"));
        for (String body : List.of("a", "b", "a")) {
            SQS.sendMessage(request -> request.queueUrl(url).messageBody(body).messageGroupId("group"));
        }
        List<Message> got = receive(url, 0);
        Test.check(got.stream().map(Message::body).toList().equals(List.of("a", "b")), got);
        Test.check(receive(url, 0).isEmpty(), got);
    }

    public static void main(String[] words) throws Exception {
        Test.step("queues", Sdk::queues);
        Test.step("message", Sdk::message);
        Test.step("batches", Sdk::batches);
        Test.step("visibility", Sdk::visibility);
        Test.step("long_poll", Sdk::longPoll);
        Test.step("errors", Sdk::errors);
        Test.step("dead_letters", Sdk::deadLetters);
        Test.step("fifo", Sdk::fifo);
    }
}
