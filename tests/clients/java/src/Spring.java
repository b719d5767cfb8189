import io.awspring.cloud.sqs.listener.SqsMessageListenerContainer;
import io.awspring.cloud.sqs.operations.SqsOperations;
import io.awspring.cloud.sqs.operations.SqsTemplate;
import java.net.URI;
import java.time.Duration;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import software.amazon.awssdk.services.sqs.SqsAsyncClient;
import software.amazon.awssdk.services.sqs.model.QueueAttributeName;

/** Spring Cloud AWS: a template sends and receives; a listener receives a message again after an exception. */
final class Spring {
    public static void main(String[] words) throws Exception {
        SqsAsyncClient sqs =
                SqsAsyncClient.builder().endpointOverride(URI.create(System.getenv("VEILMQ_ENDPOINT"))).build();
        SqsOperations template = SqsTemplate.newSyncTemplate(sqs);
        Test.step("template", () -> {
            sqs.createQueue(request -> request.queueName("spring-template")).get();
            template.send("spring-template", "hello");
            String got = template.receive("spring-template", String.class).orElseThrow().getPayload();
            Test.check(got.equals("hello"), got);
            String url = sqs.getQueueUrl(request -> request.queueName("spring-template")).get().queueUrl();
            QueueAttributeName hidden = QueueAttributeName.APPROXIMATE_NUMBER_OF_MESSAGES_NOT_VISIBLE;
            var counts = sqs.getQueueAttributes(request -> request.queueUrl(url).attributeNames(hidden)).get().attributes();
            Test.check(counts.get(hidden).equals("0"), counts);
        });
        sqs.createQueue(request -> request.queueName("spring-listener")).get();
        LinkedBlockingQueue<String> handled = new LinkedBlockingQueue<>();
        AtomicInteger refusals = new AtomicInteger();
        SqsMessageListenerContainer<String> container = SqsMessageListenerContainer.<String>builder()
                .sqsAsyncClient(sqs)
                .queueNames("spring-listener")
                .configure(options -> options.pollTimeout(Duration.ofSeconds(20)).maxConcurrentMessages(1).maxMessagesPerPoll(1))
                .messageListener(message -> {
                    handled.add(message.getPayload());
                    if (refusals.getAndIncrement() == 0) {
                        throw new IllegalStateException("not at first");
                    }
                })
                .build();
        container.start();
        Test.step("listener", () -> {
            Test.ask("parked", 0);
            template.send("spring-listener", "again");
            Test.check("again".equals(handled.poll(20, TimeUnit.SECONDS)), handled);
            Test.ask("parked", 0);
            Test.ask("advance", 30_000);
            Test.check("again".equals(handled.poll(20, TimeUnit.SECONDS)), handled);
        });
        System.exit(0); // the container still polls, and the server's clock does not advance, so the poll would never end
    }
}
